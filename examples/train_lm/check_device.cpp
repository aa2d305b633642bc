// Whether each function of the GPU gives what the CPU's gives, in float32 and in bfloat16, and whether a whole
// gradient does.
//
// Both are given the same numbers, rounded to the GPU's type. Inside, the GPU computes in float32: a result of n
// terms is off by at most 16 sqrt(n) u of the largest, u = 2^-24, where a sum's rounding errors add as a random
// walk (bound.cpp) and 16 leaves room for tensor cores, which cut their sums off rather than round them. Then it is
// rounded to its type, by half a last place: at most 2^-8 of it in bfloat16.
#include <bit>
#include <cmath>
#include <cstdio>

#include "bound.hpp"
#include "checks.hpp"
#include "model.hpp"
#include "random.hpp"
#include "trainer.hpp"

namespace train_lm {
namespace {

using Values = std::vector<float>;

std::uint16_t to_bfloat16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float from_bfloat16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

// The arrays of one function's call on one device, made of the same random numbers on each.
class Arrays {
 public:
  Arrays(Device &device, bool rounded) : device_(device), rounded_(rounded) {}

  // `spread` times normal numbers; those that the device holds in its dtype are rounded to what the GPU's can say.
  RealArray real(std::size_t count, float spread = 1.0f) {
    const Values values = numbers(count, spread, rounded_);
    RealArray array(device_, count);
    if (device_.element_bytes() == 4) {
      device_.copy(array.first().data, values.data(), array.bytes());
    } else {
      std::vector<std::uint16_t> narrow(count);
      for (std::size_t i = 0; i < count; ++i) narrow[i] = to_bfloat16(values[i]);
      device_.copy(array.first().data, narrow.data(), array.bytes());
    }
    return array;
  }
  DeviceArray<float> floats(std::size_t count, float spread = 1.0f) {
    const Values values = numbers(count, spread, false);
    DeviceArray<float> array(device_, count);
    device_.copy(array.data(), values.data(), array.bytes());
    return array;
  }
  DeviceArray<std::uint8_t> bytes(std::size_t count) {
    std::vector<std::uint8_t> values(count);
    for (std::uint8_t &value : values) value = static_cast<std::uint8_t>(random_.bits() % 250);
    DeviceArray<std::uint8_t> array(device_, count);
    device_.copy(array.data(), values.data(), array.bytes());
    return array;
  }

  Values read(RealArray &array) {
    const std::size_t size = static_cast<std::size_t>(device_.element_bytes()), count = array.bytes() / size;
    Values values(count);
    std::vector<std::uint16_t> narrow(count);
    device_.copy(size == 4 ? static_cast<void *>(values.data()) : narrow.data(), array.first().data, array.bytes());
    device_.wait();
    for (std::size_t i = 0; size == 2 && i < count; ++i) values[i] = from_bfloat16(narrow[i]);
    return values;
  }
  Values read(DeviceArray<float> &array) {
    Values values(array.size());
    device_.copy(values.data(), array.data(), array.bytes());
    device_.wait();
    return values;
  }
  Values read(DeviceArray<double> &array) {
    std::vector<double> values(array.size());
    device_.copy(values.data(), array.data(), array.bytes());
    device_.wait();
    return Values(values.begin(), values.end());
  }

 private:
  Values numbers(std::size_t count, float spread, bool rounded) {
    Values values(count);
    for (float &value : values) {
      value = spread * static_cast<float>(random_.normal());
      if (rounded) value = from_bfloat16(to_bfloat16(value));
    }
    return values;
  }

  Device &device_;
  const bool rounded_;
  Random random_{5};
};

struct Case {
  const char *name;
  double terms;   // of the longest sum
  bool narrowed;  // the result is of the device's dtype
  std::function<Values(Device &, Arrays &)> run;
};

constexpr std::int64_t kRows = 333;
constexpr std::size_t kCount = kRows;

Case norm_case(const char *name, Norm norm) {
  return {name, static_cast<double>(norm.width), true, [=](Device &device, Arrays &arrays) {
            const std::size_t width = static_cast<std::size_t>(norm.groups * norm.width);
            RealArray x = arrays.real(kCount * width, 0.7f), y = arrays.real(kCount * width);
            DeviceArray<float> gain = arrays.floats(width);
            device.rms_norm(x.first(), gain.data(), kRows, norm, y.first());
            return arrays.read(y);
          }};
}

Case norm_backward_case(const char *name, Norm norm, Store store, bool of_gain) {
  return {name, of_gain ? static_cast<double>(kRows) : norm.width, !of_gain, [=](Device &device, Arrays &arrays) {
            const std::size_t width = static_cast<std::size_t>(norm.groups * norm.width);
            RealArray x = arrays.real(kCount * width, 0.7f), dy = arrays.real(kCount * width);
            RealArray dx = arrays.real(kCount * width);
            DeviceArray<float> gain = arrays.floats(width), d_gain = arrays.floats(width);
            device.rms_norm_backward(x.first(), gain.data(), dy.first(), kRows, norm, store, dx.first(),
                                     d_gain.data());
            return of_gain ? arrays.read(d_gain) : arrays.read(dx);
          }};
}

std::vector<Case> norm_cases() {
  return {norm_case("rms_norm, width 72", stream_norm(72)),
          norm_case("rms_norm, width 1000", stream_norm(1000)),
          norm_case("rms_norm, width 1032", stream_norm(1032)),
          norm_case("rms_norm, width 16384", stream_norm(16384)),
          norm_case("rms_norm, 3 heads of 136", head_norm(3, 136)),
          norm_backward_case("rms_norm_backward, width 72, x", stream_norm(72), Store::add, false),
          norm_backward_case("rms_norm_backward, width 1000, x", stream_norm(1000), Store::add, false),
          norm_backward_case("rms_norm_backward, width 1000, gain", stream_norm(1000), Store::add, true),
          norm_backward_case("rms_norm_backward, width 5000, x", stream_norm(5000), Store::write, false),
          norm_backward_case("rms_norm_backward, width 5000, gain", stream_norm(5000), Store::write, true),
          norm_backward_case("rms_norm_backward, 3 heads of 136, x", head_norm(3, 136), Store::write, false),
          norm_backward_case("rms_norm_backward, 3 heads of 136, gain", head_norm(3, 136), Store::write, true)};
}

std::vector<Case> product_cases() {
  constexpr int kN = 72, kK = 40;
  return {{"multiply", kK, true,
           [](Device &device, Arrays &arrays) {
             RealArray a = arrays.real(kCount * kK), b = arrays.real(kK * kN), c = arrays.real(kCount * kN);
             device.multiply(kRows, kN, kK, a.first(), b.first(), 1.0f, c.first());
             return arrays.read(c);
           }},
          {"multiply, to float32", kK, false,
           [](Device &device, Arrays &arrays) {
             RealArray a = arrays.real(kCount * kK), b = arrays.real(kK * kN);
             DeviceArray<float> c = arrays.floats(kCount * kN);
             device.multiply(kRows, kN, kK, a.first(), b.first(), c.data());
             return arrays.read(c);
           }},
          {"multiply_transposed", kK, true,
           [](Device &device, Arrays &arrays) {
             RealArray a = arrays.real(kCount * kK), b = arrays.real(kN * kK), c = arrays.real(kCount * kN);
             device.multiply_transposed(kRows, kN, kK, a.first(), b.first(), c.first());
             return arrays.read(c);
           }},
          {"add_outer", kRows, false, [](Device &device, Arrays &arrays) {
             RealArray a = arrays.real(kCount * kK), b = arrays.real(kCount * kN);
             DeviceArray<float> c = arrays.floats(kK * kN);
             device.add_outer(kRows, kK, kN, a.first(), b.first(), c.data());
             return arrays.read(c);
           }}};
}

std::vector<Case> pointwise_cases() {
  constexpr int kWidth = 88, kClasses = 256;
  const auto cross_entropy = [](bool of_loss) {
    return [=](Device &device, Arrays &arrays) {
      DeviceArray<float> logits = arrays.floats(kCount * kClasses, 3.0f);
      DeviceArray<std::uint8_t> targets = arrays.bytes(kCount);
      RealArray d_logits = arrays.real(kCount * kClasses);
      DeviceArray<double> loss(device, 1);
      device.cross_entropy(logits.data(), targets.data(), kRows, kClasses, 0.25f, d_logits.first(), loss.data());
      return of_loss ? arrays.read(loss) : arrays.read(d_logits);
    };
  };
  return {{"gather", 1, true,
           [](Device &device, Arrays &arrays) {
             RealArray table = arrays.real(kClasses * kWidth), x = arrays.real(kCount * kWidth);
             DeviceArray<std::uint8_t> tokens = arrays.bytes(kCount);
             device.gather(tokens.data(), kRows, kWidth, table.first(), x.first());
             return arrays.read(x);
           }},
          {"add_by_token", kRows, false,
           [](Device &device, Arrays &arrays) {
             RealArray dx = arrays.real(kCount * kWidth);
             DeviceArray<float> table = arrays.floats(kClasses * kWidth);
             DeviceArray<std::uint8_t> tokens = arrays.bytes(kCount);
             device.add_by_token(tokens.data(), kRows, kWidth, dx.first(), table.data());
             return arrays.read(table);
           }},
          {"gate", 1, true,
           [](Device &device, Arrays &arrays) {
             RealArray gate_up = arrays.real(kCount * 2 * kWidth, 2.0f), a = arrays.real(kCount * kWidth);
             device.gate(gate_up.first(), kRows, kWidth, a.first());
             return arrays.read(a);
           }},
          {"gate_backward", 1, true,
           [](Device &device, Arrays &arrays) {
             RealArray gate_up = arrays.real(kCount * 2 * kWidth, 2.0f), da = arrays.real(kCount * kWidth);
             RealArray d_gate_up = arrays.real(kCount * 2 * kWidth);
             device.gate_backward(gate_up.first(), da.first(), kRows, kWidth, d_gate_up.first());
             return arrays.read(d_gate_up);
           }},
          {"cross_entropy, gradient", kClasses, true, cross_entropy(false)},
          {"cross_entropy, loss", kClasses, false, cross_entropy(true)}};
}

std::vector<Case> optimizer_cases() {
  constexpr std::size_t kParameters = 100000, kDecayed = 60000;
  const auto adam = [](bool of_weights) {
    return [=](Device &device, Arrays &arrays) {
      DeviceArray<float> gradient = arrays.floats(kParameters), parameters = arrays.floats(kParameters);
      DeviceArray<float> first = arrays.floats(kParameters, 0.1f), second(device, kParameters);
      DeviceArray<double> sums(device, 2);
      RealArray weights = arrays.real(kParameters);
      const Real own{reinterpret_cast<std::byte *>(parameters.data()), 4};
      const Real products = device.element_bytes() == 4 ? own : weights.first();
      const AdamStep step{1.0f, 0.9f, 0.98f, 1e-5f, 0.01f, 1.5f, 0.9f};
      device.norms(gradient.data(), kParameters, sums.data());
      device.adam(step, gradient.data(), sums.data(), kParameters, kDecayed,
                  {parameters.data(), first.data(), second.data(), products});
      return of_weights && device.element_bytes() == 2 ? arrays.read(weights) : arrays.read(parameters);
    };
  };
  return {{"norms", kParameters, false,
           [](Device &device, Arrays &arrays) {
             DeviceArray<float> x = arrays.floats(kParameters);
             DeviceArray<double> sums(device, 2);
             device.norms(x.data(), kParameters, sums.data());
             return arrays.read(sums);
           }},
          {"add", 1, false,
           [](Device &device, Arrays &arrays) {
             DeviceArray<float> x = arrays.floats(kParameters), y = arrays.floats(kParameters);
             device.add(y.data(), kParameters, x.data());
             return arrays.read(x);
           }},
          {"total", 3, false,
           [](Device &device, Arrays &arrays) {
             DeviceArray<double> values(device, 3), sum(device, 1);
             const double three[] = {1.0, 10.0, 100.0};
             device.copy(values.data(), three, sizeof three);
             device.total(values.data(), 3, sum.data());
             return arrays.read(sum);
           }},
          {"narrow", 1, true,
           [](Device &device, Arrays &arrays) {
             DeviceArray<float> x = arrays.floats(kParameters);
             RealArray y = arrays.real(kParameters);
             device.narrow(x.data(), kParameters, y.first());
             return arrays.read(y);
           }},
          {"adam, parameters", 1, false, adam(false)},
          {"adam, what products read", 1, true, adam(true)}};
}

// A whole gradient of a small model: that of all parameters, laid out as they are.
Values gradient_at(const Place &place, const Layout &layout, bool rounded) {
  constexpr std::int64_t kTokens = 600;
  const Comm comm = group_of_one();
  Context context(comm.get(), 1, place);
  Device &device = context.device();
  Values values(layout.size());
  layout.initialise(7, values.data(), 0.2f);
  for (float &value : values) value = rounded ? from_bfloat16(to_bfloat16(value)) : value;
  Parameters parameters(device, layout.size());
  parameters.set(values.data());
  DeviceArray<std::uint8_t> tokens = Arrays(device, false).bytes(kTokens + 1);
  DeviceArray<double> loss(device, 1);
  SequenceAttention attention(context, layout.shape(), kTokens, {});
  Model model(layout, parameters.weights(), kTokens, Model::Use::training, attention, device);
  model.forward(tokens.data());
  model.loss(tokens.data() + 1, 1.0f / kTokens, loss.data());
  float *gradient = model.backward(tokens.data(), attention);
  context.finish();
  device.copy(values.data(), gradient, values.size() * sizeof(float));
  return values;
}

bool show(const char *name, const char *dtype, double error, double bound) {
  const bool holds = error <= bound;
  std::printf("  %-44s %-9s %10.1e %10.1e  %s\n", name, dtype, error, bound, holds ? "ok" : "WRONG");
  return holds;
}

// The largest difference, over the largest value.
double difference(const Values &got, const Values &wanted) {
  double largest = 0.0, off = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double d = std::fabs(static_cast<double>(got[i]) - wanted[i]);
    if (!(d <= off)) off = d;
    largest = std::max(largest, std::fabs(static_cast<double>(wanted[i])));
  }
  return off / largest;
}

// The norm of the difference, over that of what is wanted.
double distance(const Values &got, const Values &wanted) {
  double squares = 0.0, off = 0.0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double d = static_cast<double>(got[i]) - wanted[i];
    off += d * d, squares += static_cast<double>(wanted[i]) * wanted[i];
  }
  return std::sqrt(off / squares);
}

bool check_functions(Device &cpu, Device &gpu, const char *dtype) {
  const bool narrow = gpu.dtype() == LASP_BFLOAT16;
  bool all = true;
  for (const auto &cases : {norm_cases(), product_cases(), pointwise_cases(), optimizer_cases()}) {
    for (const Case &each : cases) {
      Arrays wanted(cpu, narrow), got(gpu, narrow);
      const double bound = 16.0 * std::sqrt(each.terms) * 0x1p-24 + (narrow && each.narrowed ? 0x1p-8 : 0.0);
      all = show(each.name, dtype, difference(each.run(gpu, got), each.run(cpu, wanted)), bound) && all;
    }
  }
  return all;
}

}  // namespace

bool check_device(const Options &options) {
  std::printf("  %-44s %-9s %10s %10s\n", "function, GPU beside CPU", "dtype", "error", "bound");
  Shape shape;
  shape.layers = 2, shape.d_model = 128, shape.heads = 2, shape.d_ff = 96;
  const Layout layout(shape);
  const std::unique_ptr<Device> cpu = make_device(Place{}, 1);
  bool all = true;
  for (const int dtype : {LASP_FLOAT32, LASP_BFLOAT16}) {
    const bool narrow = dtype == LASP_BFLOAT16;
    const Place place = place_of({LASP_DEVICE_CUDA, dtype, 0, options.cublas}, 0);
    const std::unique_ptr<Device> gpu = make_device(place, 1);
    all = check_functions(*cpu, *gpu, narrow ? "bfloat16" : "float32") && all;
    // Twice 10 L + 4 operations (bound.cpp), each off by half a last place of what it leaves, and sums as above.
    const double operations = std::sqrt(2.0 * (10.0 * shape.layers + 4.0));
    const double bound = operations * ((narrow ? 0x1p-8 : 0.0) + 16.0 * std::sqrt(600.0) * 0x1p-24);
    all = show("a model's gradient", narrow ? "bfloat16" : "float32",
               distance(gradient_at(place, layout, narrow), gradient_at(Place{}, layout, narrow)), bound) &&
          all;
  }
  std::puts(all ? "The GPU's functions agree with the CPU's." : "SOME OF THE GPU'S FUNCTIONS ARE WRONG.");
  return all;
}

}  // namespace train_lm
