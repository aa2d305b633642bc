// The tensor-core linear pass alone, against a float64 recurrence on the CPU; `--time` measures it instead, any
// other argument chooses the cases whose name holds it. Exits 0 when all cases hold, 1 when one fails, 77 where
// there is no device of compute capability 9.0.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "../../../kernels/mma/linear_pass.h"
#include "device_memory.h"
#include "mma_pass_time.h"

namespace {

using namespace lasp::gpu;

struct Case {
  const char *name = "";
  DType dtype = DType::kBFloat16;
  int32_t a_dim = 128, y_dim = 128, heads = 2, a_heads = 2, b_heads = 2, c_heads = 2;
  int64_t batch = 1, tokens = 256;
  std::vector<Run> runs;
  Decay decay = Decay::kNone;
  DType decay_dtype = DType::kFloat32;
  float strongest = 0.2f;  // log decays are drawn from [-strongest, 0]
  float forgotten = 0;     // how many of them are -infinity or -10,000 instead
  bool reversed = false, transposed = false, output = true, state_in = true, state_out = true, in_place = false;
  int32_t nan_token = -1;  // of head 0: its log decay, the first channel's, is NaN
  int64_t padding = 0;     // elements between tokens
  int32_t stages = 4;
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
  // Channels that have a decay of their own: of a (the state's rows [a.dim, y.dim]) or of y.
  int32_t channels() const { return c.decay != Decay::kChannel ? 1 : c.transposed ? c.y_dim : c.a_dim; }
  int64_t decay_token() const { return int64_t(c.heads) * channels() + (channels() > 1 ? c.padding : 0); }
  float decay(int64_t row, int64_t t, int32_t h, int32_t channel) const {
    if (c.decay == Decay::kNone) return 0;
    if (c.decay == Decay::kHead) return g[h];
    return g[(row * c.tokens + t) * decay_token() + h * channels() + channel];
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
  p.g.resize(c.decay == Decay::kHead ? c.heads : size_t(c.batch * c.tokens * p.decay_token()));
  std::uniform_real_distribution<float> chance(0, 1);
  for (float &g : p.g) {
    g = uniform(random);
    if (chance(random) < c.forgotten) g = chance(random) < 0.5f ? -INFINITY : -1e4f;
    if (c.decay_dtype != DType::kFloat32) g = widen(c.decay_dtype, round_to(c.decay_dtype, g));
  }
  if (c.nan_token >= 0) p.g[c.decay == Decay::kHead ? 0 : size_t(c.nan_token * p.decay_token())] = NAN;
  p.state_in.resize(size_t(c.runs.size()) * c.heads * p.state_size());
  for (float &s : p.state_in) s = 4 * normal(random);
  return p;
}

// The recurrence itself, for one run and head, in float64. Writes y [length, y_dim] and the state out [a_dim,
// y_dim].
void reference(const Problem &p, size_t r, int32_t h, std::vector<double> &y, std::vector<double> &state) {
  const Case &c = p.c;
  const Run &run = c.runs[r];
  const auto head_of = [&](int32_t heads) { return int64_t(h) * heads / c.heads; };
  const float *in = p.state_in.data() + (run.state * c.heads + h) * p.state_size();
  state.assign(size_t(p.state_size()), 0);
  for (int64_t k = 0; k < c.a_dim && c.state_in; ++k)
    for (int64_t n = 0; n < c.y_dim; ++n)
      state[k * c.y_dim + n] = double(p.in_scale) * in[c.transposed ? n * c.a_dim + k : k * c.y_dim + n];
  y.assign(size_t(run.length) * c.y_dim, 0);
  for (int32_t i = 0; i < run.length; ++i) {
    const int64_t t = c.reversed ? run.length - 1 - i : i, token = run.begin + t;
    // Going backwards, a token's decay acts after its own write.
    const bool first = c.reversed && i == 0;
    const auto decay = [&](int32_t channel) {
      return first ? 1 : std::exp(double(p.decay(run.row, c.reversed ? token + 1 : token, h, channel)));
    };
    std::vector<double> decays(p.channels());
    for (int32_t d = 0; d < p.channels(); ++d) decays[d] = decay(d);
    const uint16_t *a = &p.a.data[p.a.at(run.row, token, head_of(c.a_heads))];
    const uint16_t *b = &p.b.data[p.b.at(run.row, token, head_of(c.b_heads))];
    const uint16_t *v = &p.v.data[p.v.at(run.row, token, head_of(c.c_heads))];
    std::vector<double> row(c.y_dim);
    for (int32_t n = 0; n < c.y_dim; ++n) row[n] = widen(c.dtype, v[n]);
    for (int32_t k = 0; k < c.a_dim; ++k) {
      const double bk = widen(c.dtype, b[k]), ak = widen(c.dtype, a[k]) * double(p.scale);
      double *s = &state[size_t(k) * c.y_dim], *out = &y[size_t(t) * c.y_dim];
      for (int32_t n = 0; n < c.y_dim; ++n) {
        s[n] = decays[p.channels() == 1 ? 0 : c.transposed ? n : k] * s[n] + bk * row[n];
        out[n] += ak * s[n];
      }
    }
  }
  for (int64_t k = 0; k < c.a_dim; ++k)
    for (int32_t n = 0; n < c.y_dim; ++n) {
      const int32_t channel = p.channels() == 1 ? 0 : c.transposed ? n : int32_t(k);
      const double last = c.reversed ? std::exp(double(p.decay(run.row, run.begin, h, channel))) : 1;
      state[k * c.y_dim + n] *= last * double(p.out_scale);
    }
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
  pass.g_strides = {c.tokens * p.decay_token(), p.decay_token(), p.channels()};
  pass.reversed = c.reversed, pass.state_transposed = c.transposed;
  pass.scale = p.scale, pass.in_scale = p.in_scale, pass.out_scale = p.out_scale;
  pass.num_runs = int64_t(c.runs.size());
  return pass;
}

int64_t most_shared_bytes = 0;  // of a block on this device

// Runs the kernel; y and the state out are filled with NaN before.
bool run_kernel(Problem &p, std::vector<float> &state_out) {
  const Case &c = p.c;
  DeviceMemory a(p.a.data.size() * 2), b(p.b.data.size() * 2), v(p.v.data.size() * 2), y(p.y.data.size() * 2);
  DeviceMemory g(std::max<size_t>(p.g.size(), 1) * 4), runs(c.runs.size() * sizeof(Run));
  DeviceMemory in(p.state_in.size() * 4), out(p.state_in.size() * 4);
  a.put(p.a.data), b.put(p.b.data), v.put(p.v.data), y.put(p.y.data), runs.put(c.runs), in.put(p.state_in);
  if (c.decay_dtype == DType::kFloat32) {
    g.put(p.g);
  } else {
    std::vector<uint16_t> rounded;
    for (float x : p.g) rounded.push_back(round_to(c.decay_dtype, x));
    g.put(rounded);
  }
  check(cudaMemset(out.data, 0xff, out.bytes), "poison");
  LinearPass pass = describe(p);
  pass.a.data = a.data, pass.b.data = b.data, pass.c.data = v.data, pass.g = g.data;
  pass.y.data = c.output ? y.data : nullptr;
  pass.runs = static_cast<const Run *>(runs.data);
  pass.state_in = c.state_in ? static_cast<const float *>(in.data) : nullptr;
  pass.state_out = c.state_out ? static_cast<float *>(c.in_place ? in.data : out.data) : nullptr;
  const char *why = mma::refusal(pass);
  if (mma::least_shared_bytes(pass) > most_shared_bytes) why = "the device has too little shared memory";
  if (why) {
    std::printf("%s: refused: %s\n", c.name, why);
    return false;
  }
  check(mma::launch_linear_pass(pass, c.stages, nullptr), "launch");
  check(cudaDeviceSynchronize(), c.name);
  p.y.data = y.get<uint16_t>();
  state_out = c.in_place ? in.get<float>() : out.get<float>();
  return true;
}

// Bounds: y carries up to four roundings to 8 (11) bits in each of its two terms, each 2^-9 (2^-12) / sqrt(3) /
// 0.72 of its size: under 3.4e-3 (4.2e-4). The state is float32 but for products of the tensor cores, which cut off
// below the 24th bit, and factors of 16 (22) bits: a relative 2^-17 each.
bool run_case(const Case &c) {
  Problem p = make_problem(c), again = p;
  std::vector<float> got, got_again;
  if (!run_kernel(p, got)) return false;
  run_kernel(again, got_again);
  const bool repeats = p.y.data == again.y.data && std::memcmp(got.data(), got_again.data(), got.size() * 4) == 0;
  Error output, state;
  int64_t touched = 0;
  std::vector<char> ours(p.y.data.size());
  std::vector<double> y, s;
  for (size_t r = 0; r < c.runs.size(); ++r) {
    for (int32_t h = 0; h < c.heads; ++h) {
      reference(p, r, h, y, s);
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
    }
  }
  for (size_t i = 0; i < ours.size(); ++i) touched += (!c.output || !ours[i]) && p.y.data[i] != kNan;
  const double output_bound = c.dtype == DType::kBFloat16 ? 4e-3 : 5e-4,
               state_bound = c.decay == Decay::kNone ? 2e-6 : 1e-5;
  const bool good = (!c.output || output.relative() <= output_bound) &&
                    (!c.state_out || state.relative() <= state_bound) && touched == 0 && repeats;
  std::printf("%-52s y %.2e  state %.2e  stray %lld  %s%s\n", c.name, c.output ? output.relative() : 0.0,
              c.state_out ? state.relative() : 0.0, static_cast<long long>(touched), good ? "ok" : "FAILED",
              repeats ? "" : " (another time: other bits)");
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
  const auto grouped = [&](Case &c) { c.heads = 4, c.a_heads = 4, c.b_heads = 2, c.c_heads = 1, c.padding = 24; };
  add("one chunk, none", [](Case &c) { c.runs[0].length = 16; });
  add("one token, per channel", [](Case &c) { c.runs[0].length = 1, c.decay = Decay::kChannel; });
  const struct {
    const char *names[2];
    Decay decay;
  } kinds[] = {{{"none", "none, reversed, transposed"}, Decay::kNone},
               {{"per head", "per head, reversed, transposed"}, Decay::kHead},
               {{"per token", "per token, reversed, transposed"}, Decay::kScalar}};
  for (const auto &kind : kinds)
    for (const bool reversed : {false, true})
      add(kind.names[reversed], [&](Case &c) {
        ragged(c), grouped(c);
        c.decay = kind.decay, c.reversed = c.transposed = reversed;
      });
  // The four passes: o, dq, dv, dk.
  const char *const passes[] = {"per channel: o", "per channel: dq", "per channel: dv", "per channel: dk"};
  for (int pass = 0; pass < 4; ++pass) {
    const auto channel = [=](Case &c) {
      c.decay = Decay::kChannel, c.transposed = pass % 2, c.reversed = pass > 1;
    };
    add(passes[pass], [&](Case &c) { channel(c); });
    add("  ragged, grouped, padded", [&](Case &c) { channel(c), ragged(c), grouped(c); });
    add("  very weak", [&](Case &c) {
      channel(c), c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.heads = 1,
                  c.a_heads = c.b_heads = c.c_heads = 1;
      c.strongest = 2e-6f;
    });
    add("  strong", [&](Case &c) { channel(c), ragged(c), c.strongest = 3; });
    add("  very strong", [&](Case &c) { channel(c), ragged(c), c.strongest = 300; });
    add("  forgotten now and then", [&](Case &c) { channel(c), ragged(c), c.forgotten = 1e-3f; });
    add("  forgotten often", [&](Case &c) { channel(c), ragged(c), c.forgotten = 0.1f, c.stages = 3; });
    add("  float16", [&](Case &c) { channel(c), ragged(c), c.dtype = DType::kFloat16; });
    add("  float16, strong", [&](Case &c) { channel(c), ragged(c), c.dtype = DType::kFloat16, c.strongest = 2; });
    add("  decay in bfloat16", [&](Case &c) { channel(c), ragged(c), c.decay_dtype = DType::kBFloat16; });
    add("  decay in float16, steep now and then",
        [&](Case &c) { channel(c), ragged(c), c.decay_dtype = DType::kFloat16, c.forgotten = 2e-3f; });
    add("  dims 64, 64", [&](Case &c) { channel(c), ragged(c), c.a_dim = c.y_dim = 64; });
    add("  dims 32, 96, five stages",
        [&](Case &c) { channel(c), ragged(c), c.a_dim = 32, c.y_dim = 96, c.stages = 5; });
    add("  dims 96, 32", [&](Case &c) { channel(c), ragged(c), c.a_dim = 96, c.y_dim = 32; });
    add("  dims 256, 256", [&](Case &c) { channel(c), ragged(c), c.a_dim = c.y_dim = 256, c.stages = 3; });
    add("  dims 256, 72, strong",
        [&](Case &c) { channel(c), ragged(c), c.a_dim = 256, c.y_dim = 72, c.strongest = 20, c.stages = 3; });
    add("  dims 264, 40", [&](Case &c) { channel(c), ragged(c), c.a_dim = 264, c.y_dim = 40, c.stages = 3; });
    add("  dims 512, 136, grouped", [&](Case &c) {
      channel(c), ragged(c), grouped(c), c.a_dim = 512, c.y_dim = 136, c.strongest = 3, c.stages = 3;
    });
    add("  dims 384, 72, states only",
        [&](Case &c) { channel(c), ragged(c), c.a_dim = 384, c.y_dim = 72, c.output = false, c.stages = 3; });
    add("  dims 40, 200", [&](Case &c) { channel(c), ragged(c), c.a_dim = 40, c.y_dim = 200; });
    add("  states only", [&](Case &c) { channel(c), ragged(c), c.output = false; });
    add("  states only, strong", [&](Case &c) { channel(c), ragged(c), c.output = false, c.strongest = 30; });
    add("  no states", [&](Case &c) { channel(c), ragged(c), c.state_in = c.state_out = false; });
    add("  state in place", [&](Case &c) { channel(c), ragged(c), c.in_place = true; });
  }
  for (const bool transposed : {false, true})
    add(transposed ? "NaN in a channel's decay, rows" : "NaN in a channel's decay, columns",
        [&](Case &c) { c.decay = Decay::kChannel, c.transposed = transposed, c.nan_token = 64; });
  add("float16, per token", [&](Case &c) { ragged(c), c.dtype = DType::kFloat16, c.decay = Decay::kScalar; });
  add("decay in bfloat16", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.decay_dtype = c.dtype; });
  add("strong decay", [&](Case &c) { ragged(c), c.decay = Decay::kScalar, c.strongest = 300, c.forgotten = 0.1f; });
  add("strong decay per head, reversed",
      [&](Case &c) { ragged(c), c.decay = Decay::kHead, c.strongest = 20, c.reversed = true; });
  add("states only, per token", [&](Case &c) { ragged(c), c.output = false, c.decay = Decay::kScalar; });
  add("none, dims 256, 512", [&](Case &c) {
    ragged(c), c.a_dim = 256, c.y_dim = 512, c.heads = 1, c.a_heads = 1, c.b_heads = 1, c.c_heads = 1;
  });
  add("per token, dims 512, 512, state in place", [&](Case &c) {
    ragged(c), c.a_dim = 512, c.y_dim = 512, c.decay = Decay::kScalar, c.in_place = true;
    c.heads = c.a_heads = c.b_heads = c.c_heads = 1;
  });
  add("per token, dims 16, 8", [&](Case &c) { ragged(c), c.a_dim = 16, c.y_dim = 8, c.decay = Decay::kScalar; });
  add("long, per head", [&](Case &c) {
    c.tokens = 4096, c.runs = {make_run(0, 0, 4096)}, c.decay = Decay::kHead, c.strongest = 0.01f;
  });
  return cases;
}

}  // namespace

int main(int argc, char **argv) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major < 8) {
    std::printf("skipped: no device of compute capability 8.0 or later\n");
    return 77;
  }
  most_shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  check(mma::load_linear_pass_kernels(), "loading kernels");
  if (argc > 1 && std::string(argv[1]) == "--time") {
    time_mma_pass();
    return 0;
  }
  const std::string wanted = argc > 1 ? argv[1] : "";
  bool good = true;
  for (const Case &c : make_cases())
    if (std::string(c.name).find(wanted) != std::string::npos) good &= run_case(c);
  std::printf(good ? "all cases hold\n" : "some cases FAILED\n");
  return good ? 0 : 1;
}
