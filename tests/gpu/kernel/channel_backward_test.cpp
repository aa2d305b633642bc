// The backward walks with per-channel decay alone, against a float64 recurrence on the CPU; `--time` measures them
// beside a device copy. Exits 0 when all cases hold, 1 when one fails, 77 where there is no device of compute
// capability 8.0 or later.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "../../../kernels/channel_backward.h"
#include "device_memory.h"
#include "device_time.h"
#include "kernel_cases.h"
#include "relative_error.h"

namespace {

using namespace lasp::gpu;

// How log decays are drawn: from [-strongest, 0]; or mostly so, with one token in twenty that forgets everything.
enum class Draw { kUniform, kResets };

struct Case {
  const char *name = "";
  DType dtype = DType::kBFloat16;
  DType decay_dtype = DType::kFloat32;
  int32_t heads = 2, k_dim = 128, v_dim = 128, v_heads = 2;
  int64_t batch = 1, tokens = 256;
  std::vector<Run> runs;
  float strongest = 0.2f;
  Draw draw = Draw::kUniform;
  bool decay_gradient = true, states = true, rounds_d_g = false;  // to the decay's type
  int64_t padding = 0;                                            // elements between tokens
};

// The tensors' gaps of `padding` elements between tokens hold NaN, as do tokens of no run.
struct Problem {
  Case c;
  std::vector<uint16_t> q, k, v, d_o, d_q, d_k;
  std::vector<float> g, state, d_state, d_g;
  float scale = 0.09f;
  int64_t token(int32_t heads, int32_t dim) const { return heads * dim + c.padding; }
  int64_t at(int64_t row, int64_t t, int64_t h, int32_t heads, int32_t dim) const {
    return (row * c.tokens + t) * token(heads, dim) + h * dim;
  }
  int64_t key_at(int64_t row, int64_t t, int64_t h) const { return at(row, t, h, c.heads, c.k_dim); }
  int64_t state_size() const { return int64_t{c.k_dim} * c.v_dim; }
};

struct Answer {
  std::vector<double> d_q, d_k, d_g;
};

// The recurrences themselves, in float64 but for the states kept in between, which only dq and d_g read.
Answer reference(const Problem &p, size_t r, int32_t h) {
  const Case &c = p.c;
  const Run &run = c.runs[r];
  const int32_t n = run.length, dim_k = c.k_dim, dim_v = c.v_dim;
  Answer a;
  for (auto *x : {&a.d_q, &a.d_k, &a.d_g}) x->assign(size_t(n) * dim_k, 0);
  const auto row = [&](const std::vector<uint16_t> &x, int32_t t, int32_t heads, int32_t dim) {
    std::vector<double> y(dim);
    for (int i = 0; i < dim; ++i)
      y[i] = widen(c.dtype, x[p.at(run.row, run.begin + t, int64_t{h} * heads / c.heads, heads, dim) + i]);
    return y;
  };
  const auto log_decay = [&](int32_t t) { return &p.g[p.at(run.row, run.begin + t, h, c.heads, dim_k)]; };
  const int64_t size = p.state_size(), at = (run.state * c.heads + h) * size;
  std::vector<double> s(size, 0), d(size, 0);
  if (c.states)
    for (int64_t i = 0; i < size; ++i) s[i] = p.state[at + i], d[i] = p.d_state[at + i];
  std::vector<std::vector<float>> before(n);
  for (int32_t t = 0; t < n; ++t) {
    before[t].assign(s.begin(), s.end());
    const auto k = row(p.k, t, c.heads, dim_k), v = row(p.v, t, c.v_heads, dim_v),
               d_o = row(p.d_o, t, c.heads, dim_v);
    for (int i = 0; i < dim_k; ++i) {
      const double e = std::exp(double(log_decay(t)[i]));
      double sum = 0;
      for (int j = 0; j < dim_v; ++j) {
        double &x = s[i * dim_v + j];
        x = e * x + k[i] * v[j];
        sum += x * d_o[j];
      }
      a.d_q[t * dim_k + i] = p.scale * sum;
    }
  }
  for (int32_t t = n - 1; t >= 0; --t) {
    const auto q = row(p.q, t, c.heads, dim_k), v = row(p.v, t, c.v_heads, dim_v),
               d_o = row(p.d_o, t, c.heads, dim_v);
    for (int i = 0; i < dim_k; ++i) {
      const double e = std::exp(double(log_decay(t)[i]));
      double d_k = 0, d_g = 0;
      for (int j = 0; j < dim_v; ++j) {
        double &x = d[i * dim_v + j];
        x += p.scale * q[i] * d_o[j];
        d_k += x * v[j];
        d_g += before[t][i * dim_v + j] * x;
        x *= e;
      }
      a.d_k[t * dim_k + i] = d_k;
      a.d_g[t * dim_k + i] = e * d_g;
    }
  }
  return a;
}

Problem make_problem(const Case &c) {
  std::mt19937 random(1234);
  std::normal_distribution<float> normal;
  Problem p;
  p.c = c;
  const auto draw = [&](std::vector<uint16_t> &x, int32_t heads, int32_t dim) {
    x.assign(size_t(c.batch * c.tokens * p.token(heads, dim)), kNan);
    for (const Run &run : c.runs)
      for (int64_t t = run.begin; t < run.begin + run.length; ++t)
        for (int64_t i = 0; i < int64_t{heads} * dim; ++i)
          x[p.at(run.row, t, 0, heads, dim) + i] = round_to(c.dtype, normal(random));
  };
  draw(p.q, c.heads, c.k_dim), draw(p.k, c.heads, c.k_dim);
  draw(p.v, c.v_heads, c.v_dim), draw(p.d_o, c.heads, c.v_dim);
  p.d_q.assign(p.q.size(), kNan), p.d_k.assign(p.q.size(), kNan);
  std::uniform_real_distribution<float> uniform(0, 1);
  p.g.assign(p.q.size(), NAN);
  for (const Run &run : c.runs)
    for (int64_t t = run.begin; t < run.begin + run.length; ++t)
      for (int64_t i = 0; i < int64_t{c.heads} * c.k_dim; ++i) {
        float g = -c.strongest * uniform(random);
        if (c.draw == Draw::kResets && uniform(random) < 0.05f) g = uniform(random) < 0.3f ? -INFINITY : -9000;
        p.g[p.key_at(run.row, t, 0) + i] =
            c.decay_dtype == DType::kFloat32 ? g : widen(c.dtype, round_to(c.dtype, g));
      }
  p.state.resize(c.runs.size() * size_t(c.heads) * p.state_size());
  p.d_state.resize(p.state.size());
  for (float &s : p.state) s = 2 * normal(random);
  for (float &s : p.d_state) s = 0.2f * normal(random);
  return p;
}

std::vector<std::vector<Answer>> solve(const Problem &p) {
  std::vector<std::vector<Answer>> answers(p.c.runs.size(), std::vector<Answer>(p.c.heads));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < p.c.runs.size(); ++r)
    for (int32_t h = 0; h < p.c.heads; ++h) threads.emplace_back([&, r, h] { answers[r][h] = reference(p, r, h); });
  for (auto &thread : threads) thread.join();
  return answers;
}

// Of this device, which the Hopper kernels are for.
bool is_hopper() {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "capability");
  return major == 9 && minor == 0;
}
const char *name_of(KernelSet set) { return set == KernelSet::kHopper ? "hopper" : "mma"; }

enum class Outcome { kSame, kDiffers, kRefused };

// Runs the kernels twice; outputs are filled with NaN before. kDiffers: in a bit.
Outcome run_kernel(Problem &p, KernelSet set) {
  const Case &c = p.c;
  DeviceCopy q(p.q), k(p.k), v(p.v), d_o(p.d_o), d_q(p.d_q), d_k(p.d_k), runs(c.runs), state(p.state),
      d_state(p.d_state), ends(std::vector<float>(c.runs.size() * size_t(c.heads * c.k_dim), NAN)),
      d_g(std::vector<float>(p.g.size(), NAN)), d_g16(std::vector<uint16_t>(p.g.size(), kNan)), g32(p.g);
  std::vector<uint16_t> rounded;
  for (float x : p.g) rounded.push_back(round_to(c.dtype, x));
  DeviceCopy g16(rounded);
  ChannelBackward pass;
  const auto tensor = [&](const DeviceMemory &memory, int32_t heads, int32_t dim) {
    return Tensor{memory.data, {c.tokens * p.token(heads, dim), p.token(heads, dim), dim}, heads, dim};
  };
  pass.q = tensor(q, c.heads, c.k_dim), pass.k = tensor(k, c.heads, c.k_dim);
  pass.d_q = tensor(d_q, c.heads, c.k_dim), pass.d_k = tensor(d_k, c.heads, c.k_dim);
  pass.v = tensor(v, c.v_heads, c.v_dim), pass.d_o = tensor(d_o, c.heads, c.v_dim);
  pass.batch = c.batch, pass.tokens = c.tokens, pass.heads = c.heads;
  pass.dtype = c.dtype, pass.decay = Decay::kChannel, pass.decay_dtype = c.decay_dtype;
  pass.g = c.decay_dtype == DType::kFloat32 ? g32.data : g16.data;
  pass.g_strides = pass.d_g_strides = pass.q.strides;
  pass.scale = p.scale;
  pass.runs = pass.reversed_runs = static_cast<const Run *>(runs.data), pass.num_runs = int64_t(c.runs.size());
  if (c.states) {
    pass.state = static_cast<const float *>(state.data);
    pass.d_state = static_cast<const float *>(d_state.data);
  }
  pass.d_g = !c.decay_gradient ? nullptr : c.rounds_d_g ? d_g16.data : d_g.data;
  pass.d_g_float32 = !c.rounds_d_g;
  pass.ends = static_cast<float *>(ends.data);
  if (const char *const why = channel_backward_refusal(set, pass)) {
    std::printf("%-28s %-6s refused: %s\n", c.name, name_of(set), why);
    return Outcome::kRefused;
  }
  std::vector<uint16_t> first_q, first_k;
  std::vector<float> first_g;
  for (int i = 0; i < 2; ++i) {
    first_q = p.d_q, first_k = p.d_k, first_g = p.d_g;
    check(launch_channel_backward(set, pass, nullptr), "launch");
    check(cudaDeviceSynchronize(), c.name);
    p.d_q = d_q.get<uint16_t>(), p.d_k = d_k.get<uint16_t>(), p.d_g = d_g.get<float>();
    if (c.rounds_d_g) {
      const std::vector<uint16_t> halves = d_g16.get<uint16_t>();
      for (size_t j = 0; j < halves.size(); ++j) p.d_g[j] = widen(c.dtype, halves[j]);
    }
  }
  const bool same = first_q == p.d_q && first_k == p.d_k &&
                    std::memcmp(first_g.data(), p.d_g.data(), p.d_g.size() * sizeof(float)) == 0;
  return same ? Outcome::kSame : Outcome::kDiffers;
}

// Bounds: dq and dk are rounded to 8 (11) bits once: at most 2^-9 (2^-12) of the norm. d_g is a sum over at most
// 2,048 tokens of pairs of terms to 16 bits, 2^-17 / sqrt(3) each: 2.8e-4 of one term; beside a d_g that is no
// larger than one term that is the error, so 5e-4, and one rounding more where it has 16 bits. A sum over several
// tiles of 128 columns of the state is rounded once more for each: rounded_sums in all, of no larger numbers.
double rounded_sums(const Case &c) {
  const int32_t tiles = c.v_dim % 128 == 0 ? c.v_dim / 128 : c.v_dim / 64;
  return std::sqrt(double(2 * tiles - 1));
}

bool run_set(Problem &p, const std::vector<std::vector<Answer>> &answers, KernelSet set) {
  const Case &c = p.c;
  const Outcome outcome = run_kernel(p, set);
  if (outcome == Outcome::kRefused) return set == KernelSet::kHopper && c.k_dim == 64 && c.v_dim != 64;
  const bool same = outcome == Outcome::kSame;
  RelativeError d_q, d_k, d_g;
  int64_t stray = 0;
  std::vector<char> ours(p.d_q.size());
  for (size_t r = 0; r < c.runs.size(); ++r)
    for (int32_t h = 0; h < c.heads; ++h) {
      const Answer &a = answers[r][h];
      const Run &run = c.runs[r];
      for (int32_t t = 0; t < run.length; ++t)
        for (int64_t i = 0; i < c.k_dim; ++i) {
          const int64_t at = p.key_at(run.row, run.begin + t, h) + i, from = int64_t{t} * c.k_dim + i;
          ours[at] = 1;
          d_q.add(widen(c.dtype, p.d_q[at]), a.d_q[from]);
          d_k.add(widen(c.dtype, p.d_k[at]), a.d_k[from]);
          d_g.add(p.d_g[at], a.d_g[from]);
        }
    }
  for (size_t i = 0; i < ours.size(); ++i) {
    stray += !ours[i] && (p.d_q[i] != kNan || p.d_k[i] != kNan);
    stray += (!c.decay_gradient || !ours[i]) && !std::isnan(p.d_g[i]);
  }
  const double bound = (c.dtype == DType::kBFloat16 ? 2e-3 : 2.5e-4) * rounded_sums(c);
  const double bound_g = 5e-4 + (c.rounds_d_g ? bound : 0);
  const bool good = stray == 0 && same && d_q.relative() <= bound && d_k.relative() <= bound &&
                    (!c.decay_gradient || d_g.relative() <= bound_g);
  std::printf("%-28s %-6s dq %.2e  dk %.2e  dg %.2e  stray %lld  %s\n", c.name, name_of(set), d_q.relative(),
              d_k.relative(), c.decay_gradient ? d_g.relative() : 0.0, static_cast<long long>(stray),
              good   ? "ok"
              : same ? "FAILED"
                     : "FAILED: runs differ");
  return good;
}

bool run_case(const Case &c) {
  Problem p = make_problem(c);
  const auto answers = solve(p);
  const bool good = run_set(p, answers, KernelSet::kMma);
  return is_hopper() ? run_set(p, answers, KernelSet::kHopper) && good : good;
}

std::vector<Case> make_cases() {
  const std::vector<Run> odd = {make_run(0, 0, 64, 2), make_run(0, 64, 1, 3), make_run(0, 70, 593, 0),
                                make_run(1, 3, 600, 1)};
  std::vector<Case> cases;
  const auto add = [&](const char *name, auto change) {
    Case c;
    c.name = name;
    c.runs = {make_run(0, 0, 256)};
    change(c);
    cases.push_back(c);
  };
  const auto ragged = [&](Case &c) { c.batch = 2, c.tokens = 680, c.runs = odd; };
  const auto long_run = [&](Case &c, float strongest) {
    c.tokens = 2048, c.runs = {make_run(0, 0, 2048)}, c.heads = c.v_heads = 1, c.strongest = strongest;
  };
  add("one chunk", [](Case &c) { c.runs[0].length = 16; });
  add("one chunk, no states", [](Case &c) { c.runs[0].length = 16, c.states = false; });
  add("plain", [](Case &) {});
  add("plain, no states", [](Case &c) { c.states = false; });
  add("ragged, padded", [&](Case &c) { ragged(c), c.padding = 24; });
  add("no decay gradient", [&](Case &c) { ragged(c), c.decay_gradient = false; });
  add("K 64, V 128", [&](Case &c) { ragged(c), c.k_dim = 64; });
  add("K 128, V 64", [&](Case &c) { ragged(c), c.v_dim = 64; });
  add("K 64, V 64", [&](Case &c) { ragged(c), c.k_dim = c.v_dim = 64; });
  add("K 64, V 64, odd heads", [&](Case &c) { ragged(c), c.k_dim = c.v_dim = 64, c.heads = c.v_heads = 3; });
  add("around a chunk", [&](Case &c) {
    c.runs = {make_run(0, 0, 31, 0), make_run(0, 31, 33, 1), make_run(0, 64, 0, 2), make_run(0, 64, 32, 3),
              make_run(0, 96, 17, 2)};
  });
  add("K 384, V 128", [&](Case &c) { ragged(c), c.k_dim = 384; });
  add("grouped v", [&](Case &c) { ragged(c), c.v_heads = 1; });
  add("float16", [&](Case &c) { ragged(c), c.dtype = DType::kFloat16; });
  add("float16, quite strong", [&](Case &c) { ragged(c), c.dtype = DType::kFloat16, c.strongest = 1.5f; });
  add("float16, strong", [&](Case &c) { ragged(c), c.dtype = DType::kFloat16, c.strongest = 20; });
  add("decay in bfloat16", [&](Case &c) { ragged(c), c.decay_dtype = c.dtype, c.decay_gradient = false; });
  add("decay in bfloat16, wide d_g", [&](Case &c) { ragged(c), c.decay_dtype = c.dtype; });
  const auto rounds = [&](Case &c) { ragged(c), c.decay_dtype = c.dtype, c.rounds_d_g = true; };
  add("decay in bfloat16, too", [&](Case &c) { rounds(c), c.padding = 24; });
  add("the same, K 64, V 64", [&](Case &c) { rounds(c), c.k_dim = c.v_dim = 64; });
  add("the same, K 64, V 64, odd", [&](Case &c) { rounds(c), c.k_dim = c.v_dim = 64, c.heads = c.v_heads = 3; });
  add("the same, K 256, V 128", [&](Case &c) { rounds(c), c.k_dim = 256; });
  add("the same, strong", [&](Case &c) { rounds(c), c.strongest = 40; });
  add("the same, float16", [&](Case &c) { c.dtype = DType::kFloat16, rounds(c); });
  add("the same, long, 0.01", [&](Case &c) { long_run(c, 0.01f), c.decay_dtype = c.dtype, c.rounds_d_g = true; });
  add("K 256, V 256", [&](Case &c) { ragged(c), c.k_dim = c.v_dim = 256, c.padding = 24; });
  add("K 128, V 256, strong", [&](Case &c) { ragged(c), c.v_dim = 256, c.strongest = 40; });
  add("K 128, V 192, resets", [&](Case &c) { ragged(c), c.v_dim = 192, c.draw = Draw::kResets; });
  add("K 64, V 512, float16", [&](Case &c) { ragged(c), c.k_dim = 64, c.v_dim = 512, c.dtype = DType::kFloat16; });
  add("K 128, V 256, long, 0.2", [&](Case &c) { long_run(c, 0.2f), c.v_dim = 256; });
  add("quite strong decay", [&](Case &c) { ragged(c), c.strongest = 5; });
  add("at the limit of factors", [&](Case &c) { ragged(c), c.strongest = 13.5f; });
  add("strong decay", [&](Case &c) { ragged(c), c.strongest = 40; });
  add("very strong decay", [&](Case &c) { ragged(c), c.strongest = 10000; });
  add("resets", [&](Case &c) { ragged(c), c.draw = Draw::kResets; });
  add("resets, hardly any decay", [&](Case &c) { ragged(c), c.draw = Draw::kResets, c.strongest = 1e-6f; });
  add("long, 1e-6", [&](Case &c) { long_run(c, 1e-6f); });
  add("long, 0.01", [&](Case &c) { long_run(c, 0.01f); });
  add("long, 0.2", [&](Case &c) { long_run(c, 0.2f); });
  add("long, 1", [&](Case &c) { long_run(c, 1); });
  add("long, 8", [&](Case &c) { long_run(c, 8); });
  add("long, 8, no states", [&](Case &c) { long_run(c, 8), c.states = false; });
  add("many heads", [&](Case &c) { ragged(c), c.heads = c.v_heads = 35, c.runs = {make_run(0, 30, 100)}; });
  return cases;
}

// ---- Time

template <typename T>
void fill(const DeviceMemory &memory, const std::vector<T> &block) {
  for (size_t at = 0; at < memory.bytes; at += block.size() * sizeof(T))
    check(cudaMemcpy(static_cast<char *>(memory.data) + at, block.data(),
                     std::min(block.size() * sizeof(T), memory.bytes - at), cudaMemcpyHostToDevice),
          "fill");
}

// B1 H32 T16384 K=V=128 bfloat16, rows cut into runs; log decays are -0.05 `times` on average.
void time_runs(KernelSet set, int pieces, float times, double bytes_per_ms) {
  constexpr int64_t kTokens = 16384, kHeads = 32, kDim = 128, kCount = kTokens * kHeads * kDim;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> half(1 << 20);
  for (uint16_t &x : half) x = round_to(DType::kBFloat16, normal(random));
  std::vector<float> decays(1 << 20), numbers(1 << 20);
  for (float &x : decays) x = -std::log1p(std::exp(normal(random))) / 16 * times;
  for (float &x : numbers) x = normal(random);
  DeviceMemory q(kCount * 2), k(kCount * 2), v(kCount * 2), d_o(kCount * 2), d_q(kCount * 2), d_k(kCount * 2),
      g(kCount * 4), d_g(kCount * 4), state(pieces * kHeads * kDim * kDim * 4), d_state(state.bytes),
      ends(pieces * kHeads * kDim * 4);
  for (const auto *x : {&q, &k, &v, &d_o}) fill(*x, half);
  fill(g, decays), fill(state, numbers), fill(d_state, numbers);
  std::vector<Run> runs;
  for (int i = 0; i < pieces; ++i) runs.push_back(make_run(0, i * kTokens / pieces, int32_t(kTokens / pieces), i));
  DeviceCopy table(runs);
  ChannelBackward pass;
  const auto tensor = [&](const DeviceMemory &m) {
    return Tensor{m.data, {kCount, kHeads * kDim, kDim}, kHeads, int32_t(kDim)};
  };
  pass.q = tensor(q), pass.k = tensor(k), pass.v = tensor(v), pass.d_o = tensor(d_o), pass.d_q = tensor(d_q),
  pass.d_k = tensor(d_k);
  pass.batch = 1, pass.tokens = kTokens, pass.heads = kHeads;
  pass.dtype = DType::kBFloat16, pass.decay = Decay::kChannel;
  pass.g = g.data, pass.g_strides = pass.d_g_strides = pass.q.strides;
  pass.scale = 0.09f;
  pass.runs = pass.reversed_runs = static_cast<const Run *>(table.data), pass.num_runs = pieces;
  pass.state = static_cast<const float *>(state.data), pass.d_state = static_cast<const float *>(d_state.data);
  pass.ends = static_cast<float *>(ends.data);
  const auto measure = [&](const char *name, bool reversed, double units) {
    const double ms = median_ms([&] { check(launch_channel_walk(set, pass, reversed, nullptr), "launch"); });
    std::printf("  %s %.3f ms (%.0f%% of %.0f units)", name, ms, 100 * units * 2 * kCount / bytes_per_ms / ms,
                units);
  };
  std::printf("%-6s %d runs a row, decays times %g:", name_of(set), pieces, times);
  measure("dq", false, 6), measure("dk", true, 6);
  pass.d_g = static_cast<float *>(d_g.data);
  measure("dq and x", false, 8), measure("dk and d_g", true, 11);
  std::printf("\n");
}

void time_all() {
  DeviceMemory from(size_t{1} << 29), to(size_t{1} << 29);
  fill(from, std::vector<uint32_t>(1 << 20, 0x3f9d3e21));
  const double ms =
      median_ms([&] { check(cudaMemcpyAsync(to.data, from.data, from.bytes, cudaMemcpyDeviceToDevice), "copy"); });
  const double bytes_per_ms = 2.0 * double(from.bytes) / ms;
  std::printf("device copy %.2f TB/s\n", bytes_per_ms * 1e-9);
  for (const KernelSet set : {KernelSet::kMma, KernelSet::kHopper})
    if (set != KernelSet::kHopper || is_hopper())
      for (const auto &[pieces, times] :
           {std::pair{4, 1.0f}, {8, 1.0f}, {16, 1.0f}, {8, 30.0f}, {8, 100.0f}, {8, 1000.0f}})
        time_runs(set, pieces, times, bytes_per_ms);
}

}  // namespace

int main(int argc, char **argv) {
  return run_kernel_cases(
      argc, argv, Needs::kTensorCores, [] { check(load_channel_backward_kernels(), "loading kernels"); }, time_all,
      make_cases, run_case);
}
