// The tensor-core linear pass alone, against a float64 recurrence on the CPU; `--time` measures it instead, any
// other argument chooses the cases whose name holds it. Exits 0 when all cases hold, 1 when one fails, 77 where
// there is no device of compute capability 9.0.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "../../../kernels/hopper/linear_pass.h"
#include "device_memory.h"
#include "linear_pass_time.h"

namespace {

using namespace lasp::gpu;
using hopper::PassShape;

struct Case {
  const char *name = "";
  DType dtype = DType::kBFloat16;
  int32_t a_dim = 128, y_dim = 128, heads = 2, a_heads = 2, b_heads = 2, c_heads = 2;
  int64_t batch = 1, tokens = 256;
  std::vector<Run> runs;
  Decay decay = Decay::kNone;
  DType decay_dtype = DType::kFloat32;
  float strongest = 0.2f;  // log decays are drawn from [-strongest, 0]
  float constant = 0;      // not 0: all of them are this
  bool reversed = false, transposed = false, output = true, state_in = true, state_out = true, in_place = false;
  bool keep = false;       // checkpoints
  int32_t nan_token = -1;  // of head 0: its log decay is NaN
  int64_t padding = 0;     // elements between tokens
  PassShape shape = {32, 1};
};

// One tensor [B, T, heads, dim] with gaps of `padding` elements between tokens, which hold NaN, as do tokens of no
// run.
struct HostTensor {
  int64_t batch, tokens, padding;
  int32_t heads, dim;
  std::vector<uint16_t> data;
  Strides strides() const { return {tokens * token(), token(), dim}; }
  int64_t token() const { return int64_t(heads) * dim + padding; }
  int64_t at(int64_t b, int64_t t, int64_t h) const { return (b * tokens + t) * token() + h * dim; }
};

HostTensor draw(const Case &c, int32_t heads, int32_t dim, std::mt19937 &random) {
  HostTensor x{c.batch, c.tokens, c.padding, heads, dim, {}};
  x.data.assign(size_t(c.batch * c.tokens * x.token()), kNan);
  std::normal_distribution<float> normal;
  for (const Run &run : c.runs)
    for (int64_t t = run.begin; t < run.begin + run.length; ++t)
      for (int32_t i = 0; i < heads * dim; ++i) x.data[x.at(run.row, t, 0) + i] = round_to(c.dtype, normal(random));
  return x;
}

struct Problem {
  Case c;
  HostTensor a, b, v, y;  // v is the pass's c
  std::vector<float> g, state_in;
  float scale = 0.09f, in_scale = 0.5f, out_scale = 1.5f;
  int64_t state_size() const { return int64_t(c.a_dim) * c.y_dim; }
  float decay(int64_t row, int64_t t, int32_t h) const {
    if (c.decay == Decay::kNone) return 0;
    return c.decay == Decay::kHead ? g[h] : g[(row * c.tokens + t) * c.heads + h];
  }
};

Problem make_problem(const Case &c) {
  std::mt19937 random(1234);
  Problem p{c,
            draw(c, c.a_heads, c.a_dim, random),
            draw(c, c.b_heads, c.a_dim, random),
            draw(c, c.c_heads, c.y_dim, random),
            {c.batch, c.tokens, c.padding, c.heads, c.y_dim, {}},
            {},
            {}};
  p.y.data.assign(size_t(c.batch * c.tokens * p.y.token()), kNan);
  std::uniform_real_distribution<float> uniform(-c.strongest, 0);
  std::normal_distribution<float> normal;
  p.g.resize(c.decay == Decay::kHead ? c.heads : size_t(c.batch * c.tokens * c.heads));
  for (float &g : p.g)
    g = c.decay_dtype == DType::kFloat32 ? uniform(random) : widen(c.dtype, round_to(c.dtype, uniform(random)));
  if (c.constant != 0) std::fill(p.g.begin(), p.g.end(), c.constant);
  if (c.nan_token >= 0) p.g[c.decay == Decay::kHead ? 0 : size_t(c.nan_token) * c.heads] = NAN;
  p.state_in.resize(size_t(c.runs.size()) * c.heads * p.state_size());
  for (float &s : p.state_in) s = 4 * normal(random);
  return p;
}

// The recurrence itself, for one run and head, in float64. Writes y [length, y_dim], the state out [a_dim, y_dim]
// and the checkpoints.
void reference(const Problem &p, size_t r, int32_t h, std::vector<double> &y, std::vector<double> &state,
               std::vector<double> &kept) {
  const Case &c = p.c;
  const Run &run = c.runs[r];
  const auto head_of = [&](int32_t heads) { return int64_t(h) * heads / c.heads; };
  const float *in = p.state_in.data() + (run.state * c.heads + h) * p.state_size();
  state.assign(size_t(p.state_size()), 0);
  for (int64_t k = 0; k < c.a_dim && c.state_in; ++k)
    for (int64_t n = 0; n < c.y_dim; ++n)
      state[k * c.y_dim + n] = double(p.in_scale) * in[c.transposed ? n * c.a_dim + k : k * c.y_dim + n];
  y.assign(size_t(run.length) * c.y_dim, 0);
  kept.clear();
  for (int32_t i = 0; i < run.length; ++i) {
    const int64_t t = c.reversed ? run.length - 1 - i : i, token = run.begin + t;
    if (c.keep && i % kFusedCheckpoint == 0) kept.insert(kept.end(), state.begin(), state.end());
    // Going backwards, a token's decay acts after its own write.
    const bool first = c.reversed && i == 0;
    const double decay = first ? 1 : std::exp(double(p.decay(run.row, c.reversed ? token + 1 : token, h)));
    const uint16_t *a = &p.a.data[p.a.at(run.row, token, head_of(c.a_heads))];
    const uint16_t *b = &p.b.data[p.b.at(run.row, token, head_of(c.b_heads))];
    const uint16_t *v = &p.v.data[p.v.at(run.row, token, head_of(c.c_heads))];
    std::vector<double> row(c.y_dim);
    for (int32_t n = 0; n < c.y_dim; ++n) row[n] = widen(c.dtype, v[n]);
    for (int32_t k = 0; k < c.a_dim; ++k) {
      const double bk = widen(c.dtype, b[k]), ak = widen(c.dtype, a[k]) * double(p.scale);
      double *s = &state[size_t(k) * c.y_dim], *out = &y[size_t(t) * c.y_dim];
      for (int32_t n = 0; n < c.y_dim; ++n) {
        s[n] = decay * s[n] + bk * row[n];
        out[n] += ak * s[n];
      }
    }
  }
  const double last = c.reversed ? std::exp(double(p.decay(run.row, run.begin, h))) : 1;
  for (double &s : state) s *= last * double(p.out_scale);
}

struct Error {
  double difference = 0, norm = 0;
  void add(double got, double want) {
    if (std::isnan(want) && std::isnan(got)) return;
    difference += (got - want) * (got - want);
    norm += want * want;
  }
  double relative() const { return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference); }
};

LinearPass describe(const Problem &p) {
  const Case &c = p.c;
  LinearPass pass;
  pass.a = {nullptr, p.a.strides(), c.a_heads, c.a_dim};
  pass.b = {nullptr, p.b.strides(), c.b_heads, c.a_dim};
  pass.c = {nullptr, p.v.strides(), c.c_heads, c.y_dim};
  pass.y = {nullptr, p.y.strides(), c.heads, c.y_dim};
  pass.batch = c.batch, pass.tokens = c.tokens, pass.heads = c.heads;
  pass.dtype = c.dtype, pass.decay = c.decay, pass.decay_dtype = c.decay_dtype;
  pass.g_strides = {c.tokens * c.heads, c.heads, 1};
  pass.reversed = c.reversed, pass.state_transposed = c.transposed;
  pass.scale = p.scale, pass.in_scale = p.in_scale, pass.out_scale = p.out_scale;
  pass.num_runs = int64_t(c.runs.size());
  return pass;
}

int32_t checkpoints(const Run &run) { return (run.length + kFusedCheckpoint - 1) / kFusedCheckpoint; }

// Runs the kernel; y, the state out and the checkpoints are filled with NaN before.
void run_kernel(Problem &p, std::vector<float> &state_out, std::vector<uint16_t> &kept) {
  const Case &c = p.c;
  DeviceMemory a(p.a.data.size() * 2), b(p.b.data.size() * 2), v(p.v.data.size() * 2), y(p.y.data.size() * 2);
  DeviceMemory g(std::max<size_t>(p.g.size(), 1) * 4), runs(c.runs.size() * sizeof(Run));
  DeviceMemory in(p.state_in.size() * 4), out(p.state_in.size() * 4);
  a.put(p.a.data), b.put(p.b.data), v.put(p.v.data), y.put(p.y.data), runs.put(c.runs), in.put(p.state_in);
  if (c.decay_dtype == DType::kFloat32) {
    g.put(p.g);
  } else {
    std::vector<uint16_t> rounded;
    for (float x : p.g) rounded.push_back(round_to(c.dtype, x));
    g.put(rounded);
  }
  check(cudaMemset(out.data, 0xff, out.bytes), "poison");
  DeviceMemory keep(size_t(c.runs.back().checkpoint + checkpoints(c.runs.back())) * c.heads * p.state_size() * 2);
  check(cudaMemset(keep.data, 0xff, keep.bytes), "poison");
  LinearPass pass = describe(p);
  pass.a.data = a.data, pass.b.data = b.data, pass.c.data = v.data, pass.g = g.data;
  pass.y.data = c.output ? y.data : nullptr;
  pass.runs = static_cast<const Run *>(runs.data);
  pass.state_in = c.state_in ? static_cast<const float *>(in.data) : nullptr;
  pass.state_out = c.state_out ? static_cast<float *>(c.in_place ? in.data : out.data) : nullptr;
  pass.checkpoints = c.keep ? keep.data : nullptr;
  if (const char *const why = hopper::refusal(pass)) {
    std::printf("%s: refused: %s\n", c.name, why);
    std::exit(1);
  }
  check(hopper::launch_linear_pass(pass, c.shape, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);
  p.y.data = y.get<uint16_t>();
  state_out = c.in_place ? in.get<float>() : out.get<float>();
  kept = keep.get<uint16_t>();
}

// Bounds: y carries four roundings to 8 (11) bits, each 2^-9 (2^-12) / sqrt(3) of its term: under 2.3e-3 (3e-4).
// The state is float32 but for products of the tensor cores, which cut off below the 24th bit, and factors of 16
// (22) bits.
bool run_case(Case c) {
  for (size_t r = 1; r < c.runs.size(); ++r)
    c.runs[r].checkpoint = c.runs[r - 1].checkpoint + checkpoints(c.runs[r - 1]);
  Problem p = make_problem(c);
  std::vector<float> got;
  std::vector<uint16_t> kept;
  run_kernel(p, got, kept);
  Error output, state, checkpoint;
  int64_t touched = 0;
  std::vector<char> ours(p.y.data.size());
  std::vector<double> y, s, want_kept;
  for (size_t r = 0; r < c.runs.size(); ++r) {
    for (int32_t h = 0; h < c.heads; ++h) {
      reference(p, r, h, y, s, want_kept);
      for (int32_t t = 0; t < c.runs[r].length; ++t) {
        const int64_t at = p.y.at(c.runs[r].row, c.runs[r].begin + t, h);
        for (int32_t n = 0; n < c.y_dim; ++n) {
          ours[at + n] = 1;
          output.add(widen(c.dtype, p.y.data[at + n]), y[size_t(t) * c.y_dim + n]);
        }
      }
      const float *out = got.data() + (c.runs[r].state * c.heads + h) * p.state_size();
      for (int64_t k = 0; k < c.a_dim; ++k)
        for (int64_t n = 0; n < c.y_dim; ++n)
          state.add(out[c.transposed ? n * c.a_dim + k : k * c.y_dim + n], s[k * c.y_dim + n]);
      for (size_t i = 0; i < want_kept.size(); ++i) {
        const int64_t index = (c.runs[r].checkpoint + int64_t(i) / p.state_size()) * c.heads + h;
        checkpoint.add(widen(c.dtype, kept[index * p.state_size() + int64_t(i) % p.state_size()]), want_kept[i]);
      }
    }
  }
  for (size_t i = 0; i < ours.size(); ++i) touched += (!c.output || !ours[i]) && p.y.data[i] != kNan;
  const double output_bound = c.dtype == DType::kBFloat16 ? 4e-3 : 5e-4,
               state_bound = c.decay == Decay::kNone ? 2e-6 : 1e-5,
               rounding = c.dtype == DType::kBFloat16 ? 2e-3 : 2.5e-4;  // half a unit in the last place
  const bool good = (!c.output || output.relative() <= output_bound) &&
                    (!c.state_out || state.relative() <= state_bound) && checkpoint.relative() <= rounding &&
                    touched == 0;
  std::printf("%-44s slice %2d cluster %d  y %.2e  state %.2e  stray %lld  %s\n", c.name, c.shape.slice,
              c.shape.cluster, c.output ? output.relative() : 0.0, c.state_out ? state.relative() : 0.0,
              static_cast<long long>(touched), good ? "ok" : "FAILED");
  return good;
}

std::vector<Case> make_cases() {
  const std::vector<Run> odd = {make_run(0, 0, 64, 2), make_run(0, 64, 1, 3), make_run(0, 70, 193, 0),
                                make_run(1, 3, 300, 1)};
  std::vector<Case> cases;
  const auto add = [&](const char *name, auto change) {
    Case c;
    c.name = name;
    c.runs = {make_run(0, 0, 256)};
    change(c);
    cases.push_back(c);
  };
  const auto ragged = [&](Case &c) { c.batch = 2, c.tokens = 320, c.runs = odd; };
  add("none", [](Case &) {});
  add("none, one chunk", [](Case &c) { c.runs[0].length = 64; });
  add("none, reversed", [](Case &c) { c.reversed = true; });
  add("per head", [](Case &c) { c.decay = Decay::kHead; });
  add("per head, reversed, transposed", [](Case &c) { c.decay = Decay::kHead, c.reversed = c.transposed = true; });
  add("per token", [](Case &c) { c.decay = Decay::kScalar; });
  add("per token, reversed", [](Case &c) { c.decay = Decay::kScalar, c.reversed = true; });
  for (const PassShape shape :
       {PassShape{32, 1}, PassShape{32, 2}, PassShape{32, 4}, PassShape{64, 1}, PassShape{64, 2}})
    for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
      for (const bool reversed : {false, true})
        add(reversed ? "ragged, grouped, padded, reversed" : "ragged, grouped, padded", [&](Case &c) {
          ragged(c);
          c.heads = 4, c.a_heads = 4, c.b_heads = 2, c.c_heads = 1, c.padding = 24;
          c.decay = decay, c.reversed = reversed, c.transposed = reversed, c.shape = shape;
        });
  add("float16, ragged", [&](Case &c) {
    ragged(c), c.dtype = DType::kFloat16, c.decay = Decay::kScalar, c.shape = {32, 4};
  });
  add("float16, wide, reversed", [&](Case &c) {
    ragged(c), c.dtype = DType::kFloat16, c.decay = Decay::kHead, c.reversed = true, c.shape = {64, 2};
  });
  add("decay in bfloat16", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.decay_dtype = c.dtype; });
  add("strong decay", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.strongest = 300; });
  add("strong decay per head, reversed",
      [&](Case &c) { ragged(c), c.decay = Decay::kHead, c.strongest = 20, c.reversed = true; });
  add("states only", [&](Case &c) { ragged(c), c.output = false, c.decay = Decay::kScalar, c.shape = {32, 4}; });
  add("states only, wide, reversed", [&](Case &c) {
    ragged(c), c.output = false, c.decay = Decay::kHead, c.reversed = true, c.shape = {64, 2};
  });
  for (const PassShape shape : {PassShape{32, 1}, PassShape{32, 4}, PassShape{64, 2}})
    for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
      for (const bool output : {true, false})
        add(output ? "checkpoints" : "checkpoints, states only", [&](Case &c) {
          c.tokens = 1000, c.runs = {make_run(0, 0, 769, 1), make_run(0, 769, 200, 0)};
          c.keep = true, c.output = output, c.decay = decay, c.shape = shape, c.strongest = 0.02f;
        });
  for (const Decay decay : {Decay::kHead, Decay::kScalar})
    for (const int32_t slice : {32, 64})
      add("a decay that is NaN", [&](Case &c) { c.nan_token = 100, c.decay = decay, c.shape.slice = slice; });
  add("no states", [&](Case &c) { ragged(c), c.state_in = c.state_out = false, c.decay = Decay::kHead; });
  add("state in place", [&](Case &c) {
    ragged(c), c.in_place = true, c.decay = Decay::kScalar, c.shape = {32, 4};
  });
  add("dims 64, 64", [&](Case &c) {
    ragged(c), c.a_dim = c.y_dim = 64, c.decay = Decay::kHead, c.shape = {32, 2};
  });
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar})
      for (const bool reversed : {false, true})
        add(reversed ? "dims 64, 64 in one slice, reversed" : "dims 64, 64 in one slice", [&](Case &c) {
          ragged(c), c.dtype = dtype, c.a_dim = c.y_dim = 64, c.decay = decay, c.shape = {64, 1};
          c.reversed = c.transposed = reversed, c.keep = !reversed;
        });
  add("dims 32, 128 in slices of 64, states only", [&](Case &c) {
    ragged(c), c.a_dim = 32, c.y_dim = 128, c.decay = Decay::kScalar, c.shape = {64, 2}, c.output = false;
  });
  for (const auto &[a_dim, y_dim] : {std::pair{96, 96}, {32, 32}, {160, 64}})  // the state has not all the rows
    for (const bool transposed : {false, true})
      add("rows that are not there", [&, a = a_dim, y = y_dim](Case &c) {
        ragged(c), c.a_dim = a, c.y_dim = y, c.padding = 24, c.decay = Decay::kScalar, c.keep = !transposed;
        c.transposed = c.reversed = transposed;
      });
  add("dims 64, 96", [&](Case &c) { ragged(c), c.a_dim = 64, c.y_dim = 96, c.decay = Decay::kScalar; });
  add("dims 128, 256", [&](Case &c) { ragged(c), c.y_dim = 256, c.decay = Decay::kScalar, c.shape = {64, 4}; });
  add("dims 128, 32", [&](Case &c) { ragged(c), c.y_dim = 32, c.decay = Decay::kScalar, c.reversed = true; });
  add("long", [&](Case &c) {
    c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.decay = Decay::kHead, c.strongest = 0.01f,
    c.shape = {32, 4};
  });
  for (const PassShape shape : {PassShape{32, 2}, PassShape{64, 2}})
    for (const bool output : {true, false})
      add(output ? "long, per token, reversed" : "long, states only", [&](Case &c) {
        c.tokens = 6000, c.runs = {make_run(0, 0, 6000)}, c.decay = Decay::kScalar, c.strongest = 0.01f;
        c.reversed = output, c.output = output, c.shape = shape;
      });
  // The decay of a chunk in the middle between two float32: 2^-25 of the state, lost or won 4,096 times, would be
  // 6e-5 on average. Of float32 sums 1.6e-6 are due.
  for (const Decay decay : {Decay::kHead, Decay::kScalar})
    add("long, weak decay", [&](Case &c) {
      c.heads = c.a_heads = c.b_heads = c.c_heads = 1, c.a_dim = c.y_dim = 64, c.tokens = 64 * 4096;
      c.runs = {make_run(0, 0, 64 * 4096)}, c.decay = decay, c.constant = -1.5f * 0x1p-24f / 64;
      c.output = false, c.reversed = decay == Decay::kScalar;
    });
  add("long, none, reversed", [&](Case &c) {
    c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.reversed = true, c.shape = {32, 4};
  });
  return cases;
}

}  // namespace

int main(int argc, char **argv) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9 || properties.minor != 0) {
    std::printf("skipped: no device of compute capability 9.0\n");
    return 77;
  }
  if (argc > 1 && std::string(argv[1]) == "--time") {
    time_linear_pass();
    return 0;
  }
  const std::string wanted = argc > 1 ? argv[1] : "";
  bool good = true;
  for (const Case &c : make_cases())
    if (std::string(c.name).find(wanted) != std::string::npos) good &= run_case(c);
  std::printf(good ? "all cases hold\n" : "some cases FAILED\n");
  return good ? 0 : 1;
}
