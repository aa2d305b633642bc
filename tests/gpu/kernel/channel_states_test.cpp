// The states pass with per-channel decay alone, against a float64 recurrence on the CPU; `--time` measures it
// beside a device copy. Exits 0 when all cases hold, 1 when one fails, 77 where there is no device of compute
// capability 8.0 or later.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "device_memory.h"
#include "device_time.h"
#include "kernel_cases.h"

namespace {

using namespace lasp::gpu;

struct Case {
  const char *name = "";
  DType dtype = DType::kBFloat16, decay_dtype = DType::kFloat32;
  int32_t heads = 2, b_dim = 128, c_dim = 128, c_heads = 2;
  std::vector<Run> runs;
  float strongest = 0.2f;
  bool resets = false, reversed = false, factors = true;
  int64_t padding = 0;  // elements between tokens
};

constexpr int64_t kBatch = 2, kTokens = 680;

// The tensors' gaps between tokens hold NaN, as do tokens of no run.
struct Problem {
  Case c;
  std::vector<uint16_t> b, values;
  std::vector<float> g, states, factors;
  int64_t at(int64_t row, int64_t t, int64_t h, int32_t heads, int32_t dim) const {
    return (row * kTokens + t) * (int64_t{heads} * dim + c.padding) + h * dim;
  }
  float decay(int64_t i) const {
    return c.decay_dtype == DType::kFloat32 ? g[i] : widen(c.dtype, round_to(c.dtype, g[i]));
  }
};

constexpr float kOutScale = 0.5f;

Problem make_problem(const Case &c) {
  std::mt19937 random(77);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0, 1);
  Problem p;
  p.c = c;
  p.b.assign(p.at(kBatch, 0, 0, c.heads, c.b_dim), kNan);
  p.values.assign(p.at(kBatch, 0, 0, c.c_heads, c.c_dim), kNan);
  p.g.assign(p.b.size(), NAN);
  for (const Run &run : c.runs)
    for (int64_t t = run.begin; t < run.begin + run.length; ++t) {
      for (int64_t i = 0; i < c.heads * c.b_dim; ++i) {
        const int64_t at = p.at(run.row, t, 0, c.heads, c.b_dim) + i;
        p.b[at] = round_to(c.dtype, normal(random));
        p.g[at] = -c.strongest * uniform(random);
        if (c.resets && uniform(random) < 0.05f) p.g[at] = uniform(random) < 0.3f ? -INFINITY : -9000;
      }
      for (int64_t i = 0; i < c.c_heads * c.c_dim; ++i)
        p.values[p.at(run.row, t, 0, c.c_heads, c.c_dim) + i] = round_to(c.dtype, normal(random));
    }
  p.states.assign(c.runs.size() * size_t(c.heads * c.b_dim * c.c_dim), NAN);
  p.factors.assign(c.runs.size() * size_t(c.heads * c.b_dim), NAN);
  return p;
}

// Runs the kernel twice. False where the two differ in a bit.
bool run_kernel(Problem &p) {
  const Case &c = p.c;
  std::vector<uint16_t> rounded;
  for (float x : p.g) rounded.push_back(round_to(c.dtype, x));
  DeviceCopy b(p.b), values(p.values), g32(p.g), g16(rounded), runs(c.runs), states(p.states), factors(p.factors);
  const auto tensor = [&](const DeviceMemory &memory, int32_t heads, int32_t dim) {
    const int64_t token = int64_t{heads} * dim + c.padding;
    return Tensor{memory.data, {kTokens * token, token, dim}, heads, dim};
  };
  LinearPass pass;
  pass.b = tensor(b, c.heads, c.b_dim), pass.c = tensor(values, c.c_heads, c.c_dim);
  pass.batch = kBatch, pass.tokens = kTokens, pass.heads = c.heads;
  pass.dtype = c.dtype, pass.decay = Decay::kChannel, pass.decay_dtype = c.decay_dtype;
  pass.g = c.decay_dtype == DType::kFloat32 ? g32.data : g16.data;
  pass.g_strides = pass.b.strides;
  pass.reversed = c.reversed, pass.out_scale = kOutScale;
  pass.runs = static_cast<const Run *>(runs.data), pass.num_runs = int64_t(c.runs.size());
  pass.state_out = static_cast<float *>(states.data);
  if (const char *const why = channel_states_refusal(pass)) {
    std::printf("%s: refused: %s\n", c.name, why);
    std::exit(1);
  }
  std::vector<float> first_states, first_factors;
  for (int i = 0; i < 2; ++i) {
    first_states = p.states, first_factors = p.factors;
    check(launch_channel_states(pass, c.factors ? static_cast<float *>(factors.data) : nullptr, nullptr), "launch");
    check(cudaDeviceSynchronize(), c.name);
    p.states = states.get<float>(), p.factors = factors.get<float>();
  }
  return first_states == p.states &&
         std::memcmp(first_factors.data(), p.factors.data(), p.factors.size() * sizeof(float)) == 0;
}

// As decay_code (kernels/device.cuh) has it: exp(g), or with its sign bit set exp(g) - 1.
double decoded(float code) { return std::signbit(code) ? 1.0 + double(code) : double(code); }

// Bounds. A weighted token is a high and a low part: 16 bits of bfloat16, 22 of float16 (but none below 2^-24), so
// at most 2^-17 of it; the state is float32. The decay's exponent is taken to the base 2 in float32, each token's
// to 2^-24: of up to 600 tokens with a sum of at most 100 before they are forgotten, 2^-24 * 100 / 10. Weak decays
// keep their digits by state_decay. So 1e-5 for both.
bool run_case(const Case &c) {
  Problem p = make_problem(c);
  const bool same = run_kernel(p);
  double difference = 0, norm = 0, worst_factor = 0;
  std::vector<double> state(size_t(c.b_dim) * c.c_dim), total(c.b_dim);
  for (const Run &run : c.runs)
    for (int64_t h = 0; h < c.heads; ++h) {
      std::fill(state.begin(), state.end(), 0.0), std::fill(total.begin(), total.end(), 0.0);
      for (int32_t n = 0; n < run.length; ++n) {
        const int64_t t = run.begin + (c.reversed ? run.length - 1 - n : n);
        const int64_t b_at = p.at(run.row, t, h, c.heads, c.b_dim);
        const int64_t c_at = p.at(run.row, t, h * c.c_heads / c.heads, c.c_heads, c.c_dim);
        for (int i = 0; i < c.b_dim; ++i) {
          const double g = p.decay(b_at + i), e = std::exp(g), key = widen(c.dtype, p.b[b_at + i]);
          total[i] += g;
          for (int j = 0; j < c.c_dim; ++j) {
            double &s = state[size_t(i) * c.c_dim + j];
            const double write = key * widen(c.dtype, p.values[c_at + j]);
            s = c.reversed ? e * (s + write) : e * s + write;
          }
        }
      }
      const int64_t at = run.state * c.heads + h;
      for (size_t i = 0; i < state.size(); ++i) {
        const double want = kOutScale * state[i], error = p.states[at * int64_t(state.size()) + int64_t(i)] - want;
        difference += error * error, norm += want * want;
      }
      for (int i = 0; i < c.b_dim && c.factors; ++i) {
        const double off = std::fabs(decoded(p.factors[at * c.b_dim + i]) - std::exp(total[i]));
        if (!(off <= worst_factor) && !std::isnan(worst_factor)) worst_factor = off;  // a NaN stays the worst
      }
    }
  int64_t stray = 0;
  for (float x : p.factors) stray += !c.factors && !std::isnan(x);
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  const bool good = same && stray == 0 && error <= 1e-5 && worst_factor <= 1e-5;
  std::printf("%-32s states %.2e  factors %.2e  %s\n", c.name, error, worst_factor,
              good   ? "ok"
              : same ? "FAILED"
                     : "FAILED: runs differ");
  return good;
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  for (const bool reversed : {false, true}) {
    const auto add = [&](const char *name, auto change) {
      Case c;
      c.name = name, c.reversed = reversed;
      c.runs = {make_run(0, 0, 64, 2), make_run(0, 64, 1, 3), make_run(0, 70, 593, 0), make_run(1, 3, 600, 1)};
      change(c);
      cases.push_back(c);
    };
    add(reversed ? "reversed" : "forward", [](Case &) {});
    add("one chunk", [](Case &c) { c.runs = {make_run(1, 5, 16)}; });
    add("one token", [](Case &c) { c.runs = {make_run(1, 5, 1)}; });
    add("no factors, padded", [](Case &c) { c.factors = false, c.padding = 24; });
    add("K 64, V 128", [](Case &c) { c.b_dim = 64; });
    add("K 128, V 64", [](Case &c) { c.c_dim = 64; });
    add("K 64, V 64", [](Case &c) { c.b_dim = c.c_dim = 64; });
    add("K 256, V 192", [](Case &c) { c.b_dim = 256, c.c_dim = 192; });
    add("K 192, V 256, decay in bfloat16", [](Case &c) { c.b_dim = 192, c.c_dim = 256, c.decay_dtype = c.dtype; });
    add("grouped", [](Case &c) { c.c_heads = 1; });
    add("float16", [](Case &c) { c.dtype = DType::kFloat16; });
    add("float16, strong", [](Case &c) { c.dtype = DType::kFloat16, c.strongest = 20; });
    add("decay in bfloat16", [](Case &c) { c.decay_dtype = c.dtype; });
    add("decay in float16", [](Case &c) { c.decay_dtype = c.dtype = DType::kFloat16; });
    add("weak decay", [](Case &c) { c.strongest = 1e-6f; });
    add("strong decay", [](Case &c) { c.strongest = 40; });
    add("very strong decay", [](Case &c) { c.strongest = 10000; });
    add("resets", [](Case &c) { c.resets = true; });
    add("many heads", [](Case &c) { c.heads = c.c_heads = 35, c.runs = {make_run(0, 30, 100)}; });
  }
  return cases;
}

// ---- Time: B1 H32 T16384 K=V=128 bfloat16, the row cut into runs.

void time_all() {
  constexpr int64_t kLength = 16384, kHeads = 32, kDim = 128, kCount = kLength * kHeads * kDim;
  DeviceMemory b(kCount * 2), c(kCount * 2), g(kCount * 4), to(kCount * 4), states(128 * kHeads * kDim * kDim * 4),
      factors(128 * kHeads * kDim * 4);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> half(kCount);
  std::vector<float> decays(kCount);
  for (uint16_t &x : half) x = round_to(DType::kBFloat16, normal(random));
  for (float &x : decays) x = -std::log1p(std::exp(normal(random))) / 16;
  b.put(half), c.put(half), g.put(decays);
  const double copy =
      median_ms([&] { check(cudaMemcpyAsync(to.data, g.data, g.bytes, cudaMemcpyDeviceToDevice), "copy"); });
  const double bytes_per_ms = 2.0 * double(g.bytes) / copy;
  std::printf("device copy %.2f TB/s\n", bytes_per_ms * 1e-9);
  for (const int pieces : {4, 7, 8, 16, 32}) {
    std::vector<Run> runs;
    for (int i = 0; i < pieces; ++i)
      runs.push_back(make_run(0, i * (kLength / pieces), int32_t(kLength / pieces), i));
    DeviceCopy table(runs);
    LinearPass pass;
    pass.b = {b.data, {kCount, kHeads * kDim, kDim}, kHeads, kDim}, pass.c = pass.b, pass.c.data = c.data;
    pass.batch = 1, pass.tokens = kLength, pass.heads = kHeads;
    pass.dtype = DType::kBFloat16, pass.decay = Decay::kChannel;
    pass.g = g.data, pass.g_strides = pass.b.strides;
    pass.runs = static_cast<const Run *>(table.data), pass.num_runs = pieces;
    pass.state_out = static_cast<float *>(states.data);
    std::printf("%3d runs a row:", pieces);
    for (const bool reversed : {false, true}) {
      pass.reversed = reversed;
      const double ms = median_ms(
          [&] { check(launch_channel_states(pass, static_cast<float *>(factors.data), nullptr), "launch"); });
      std::printf("  %s %.3f ms (%.0f%% of 4 units)", reversed ? "reversed" : "forward", ms,
                  100 * 8.0 * kCount / bytes_per_ms / ms);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char **argv) {
  return run_kernel_cases(
      argc, argv, Needs::kTensorCores, [] { check(load_channel_states_kernels(), "loading kernels"); }, time_all,
      make_cases, run_case);
}
