// The inputs of a case of delta_fast_test.cpp, on the host and on the device.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "../../../kernels/delta.h"
#include "delta_fast_cases.h"
#include "device_memory.h"

namespace lasp::gpu {

inline constexpr int32_t kDim = 128;  // K

inline double random_normal(std::mt19937 &random) { return std::normal_distribution<double>()(random); }

// What a token of a tensor has: so many heads, each a row of so many elements.
struct Rows {
  int32_t heads, dim;
};

// Tensors with their gaps and tokens of no run holding NaN.
struct Problem {
  DeltaFastCase c;
  std::vector<uint16_t> q, k, v, d_o;
  std::vector<float> g, beta, state, d_state;
  float scale = 0.09f;
  Rows rows_of(const std::vector<uint16_t> &x) const {
    if (&x == &q) return {c.heads_q, kDim};
    return &x == &k ? Rows{c.heads_k, kDim} : Rows{c.heads, c.columns};
  }
  int64_t token(Rows rows) const { return int64_t{rows.heads} * rows.dim + c.padding; }
  size_t elements(Rows rows) const { return size_t(c.batch * c.tokens * token(rows)); }
  Strides strides(Rows rows) const { return {c.tokens * token(rows), token(rows), rows.dim}; }
  int64_t at(Rows rows, int64_t row, int64_t t, int64_t h) const {
    return (row * c.tokens + t) * token(rows) + h * rows.heads / c.heads * rows.dim;
  }
  int64_t of_state() const { return int64_t{kDim} * c.columns; }  // elements
  int64_t beta_at(int64_t row, int64_t t, int64_t h) const { return (row * c.tokens + t) * c.heads + h; }
  int64_t channels() const { return c.decay == Decay::kChannel ? kDim : 1; }
  int64_t g_at(int64_t row, int64_t t, int64_t h) const { return beta_at(row, t, h) * channels(); }
};

inline Problem make_problem(DeltaFastCase c) {
  if (!c.heads_q) c.heads_q = c.heads;
  if (!c.heads_k) c.heads_k = c.heads;
  std::mt19937 random(1234);
  Problem p;
  p.c = c;
  for (auto *x : {&p.q, &p.k, &p.v, &p.d_o}) {
    const Rows rows = p.rows_of(*x);
    x->assign(p.elements(rows), kNan);
    std::vector<double> common(rows.dim);
    for (double &y : common) y = random_normal(random);
    for (const Run &run : c.runs)
      for (int64_t t = run.begin; t < run.begin + run.length; ++t)
        for (int64_t h = 0; h < rows.heads; ++h) {
          std::vector<double> y(rows.dim);
          double norm = 0;
          for (int i = 0; i < rows.dim; ++i) {
            y[i] = random_normal(random);
            if (x == &p.k) y[i] = std::sqrt(c.alike) * common[i] + std::sqrt(1 - c.alike) * y[i];
            norm += y[i] * y[i];
          }
          for (int i = 0; i < rows.dim; ++i)
            (*x)[(run.row * c.tokens + t) * p.token(rows) + h * rows.dim + i] =
                round_to(c.dtype, float(x == &p.q   ? y[i] / std::sqrt(norm)
                                        : x == &p.k ? c.length * y[i] / std::sqrt(norm)
                                                    : y[i]));
        }
  }
  std::uniform_real_distribution<float> uniform(0, 1);
  p.g.resize(c.decay == Decay::kHead ? c.heads : size_t(c.batch * c.tokens * c.heads * p.channels()));
  for (float &g : p.g) {
    g = c.strongest < 0 ? c.strongest : -c.strongest * uniform(random);
    const int64_t each = c.decay == Decay::kChannel ? kDim : c.heads;
    if (c.mixed) g *= std::pow(10.0f, -4 * float((&g - &p.g[0]) % each * 37 % each) / float(each));
    if (c.grows) {  // along its key a token multiplies by exp(g) (1 - |k|^2)
      const float log2 = (&g - &p.g[0]) / c.heads % 576 < 256 ? 40.0f / 256 : -42.0f / 320;
      g = float(M_LN2) * log2 - std::log(c.length * c.length - 1);
    }
    if (c.decay_dtype != DType::kFloat32) g = widen(c.dtype, round_to(c.dtype, g));
  }
  p.beta.resize(size_t(c.batch * c.tokens * c.heads));
  for (float &b : p.beta) b = c.beta < 0 ? -c.beta : random() % 16 == 0 ? 0 : c.beta * uniform(random);
  for (auto *s : {&p.state, &p.d_state}) {
    s->resize(c.runs.size() * size_t(c.heads * p.of_state()));
    for (float &x : *s) x = 0.3f * float(random_normal(random));
  }
  return p;
}

// Its inputs on the device.
struct Device {
  const Problem &p;
  DeviceCopy q, k, v, d_o, g32, g16, beta, runs, segments, state, d_state;
  static std::vector<float> decays(const Problem &p) {
    std::vector<float> to(p.c.odd_decays);
    to.insert(to.end(), p.g.begin(), p.g.end());
    return to;
  }
  static std::vector<uint16_t> rounded(const Problem &p) {
    std::vector<uint16_t> to;
    for (float x : decays(p)) to.push_back(round_to(p.c.dtype, x));
    return to;
  }
  static std::vector<Segment> make_segments(const Problem &p) {
    std::vector<Segment> to(p.c.runs.size());
    for (size_t r = 0; r < to.size(); ++r) {
      to[r].first_run = 3 * int64_t(r), to[r].num_runs = 3;  // of a finer cut: not what walks have
      to[r].produces[0] = to[r].produces[1] = 1;
    }
    return to;
  }
  explicit Device(const Problem &problem)
      : p(problem),
        q(p.q),
        k(p.k),
        v(p.v),
        d_o(p.d_o),
        g32(decays(p)),
        g16(rounded(p)),
        beta(p.beta),
        runs(p.c.runs),
        segments(make_segments(p)),
        state(p.state),
        d_state(p.d_state) {}
  Tensor tensor(const DeviceMemory &memory, Rows rows) const {
    return Tensor{memory.data, p.strides(rows), rows.heads, rows.dim};
  }
  void fill(DeltaInputs &x) const {
    const DeltaFastCase &c = p.c;
    x.q = tensor(q, p.rows_of(p.q)), x.k = tensor(k, p.rows_of(p.k)), x.v = tensor(v, p.rows_of(p.v));
    x.batch = c.batch, x.tokens = c.tokens, x.heads = c.heads, x.dtype = c.dtype;
    x.decay = c.decay, x.decay_dtype = c.decay_dtype;
    const bool wide = c.decay_dtype == DType::kFloat32;
    x.g = static_cast<const char *>(wide ? g32.data : g16.data) + (wide ? 4 : 2) * c.odd_decays;
    x.beta_strides = {c.tokens * c.heads, c.heads, 1};
    const int64_t each = p.channels();
    x.g_strides = {c.tokens * c.heads * each, c.heads * each, each};
    x.beta = beta.data;
    x.scale = p.scale, x.spacing = c.spacing;
    x.runs = static_cast<const Run *>(runs.data), x.num_runs = int64_t(c.runs.size());
    x.segments = static_cast<const Segment *>(segments.data);
  }
};

}  // namespace lasp::gpu
