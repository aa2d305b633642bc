// The delta rule's recurrence in float64 for one run and head, forward and backward.
#pragma once

#include <cmath>
#include <vector>

namespace lasp::gpu {

struct DeltaTokens {
  int32_t n = 0;
  static constexpr int kDim = 128;
  int32_t columns = kDim;       // of V, and so of states: [128, columns]
  std::vector<double> q, k;     // [n, 128]
  std::vector<double> v, d_o;   // [n, columns]
  std::vector<double> beta, g;  // [n]; g of decay per channel [n, 128]
  bool channel = false;
  double decay(int t, int i) const { return std::exp(channel ? g[t * kDim + i] : g[t]); }
  double scale = 1;
};
struct DeltaAnswer {
  std::vector<double> o, end, transition, checkpoints;                     // forward
  std::vector<double> d_q, d_k, d_v, d_g, d_beta, d_start, d_checkpoints;  // backward
};

// State S enters, gradient dS after the last token; every: tokens between checkpoints.
inline DeltaAnswer solve_delta(const DeltaTokens &x, std::vector<double> s, std::vector<double> ds, int every,
                               bool transition, bool backward) {
  constexpr int D = DeltaTokens::kDim;
  const int V = x.columns;
  DeltaAnswer a;
  // Takes a state of so many columns through all tokens. M is walked without outputs, and no v enters it.
  const auto walk = [&](std::vector<double> &state, int columns, bool outputs,
                        std::vector<std::vector<double>> *before, std::vector<std::vector<double>> *es) {
    std::vector<double> e(columns);
    for (int t = 0; t < x.n; ++t) {
      if (outputs && t % every == 0) a.checkpoints.insert(a.checkpoints.end(), state.begin(), state.end());
      if (before) (*before)[t] = state;
      const double *k = &x.k[t * D], *q = &x.q[t * D];
      for (int j = 0; j < columns; ++j) e[j] = outputs ? x.v[t * columns + j] : 0;
      for (int i = 0; i < D; ++i) {
        const double f = x.decay(t, i);
        for (int j = 0; j < columns; ++j) {
          state[i * columns + j] *= f;
          e[j] -= k[i] * state[i * columns + j];
        }
      }
      double *o = outputs ? &a.o[t * columns] : nullptr;
      for (int i = 0; i < D; ++i)
        for (int j = 0; j < columns; ++j) {
          state[i * columns + j] += k[i] * x.beta[t] * e[j];
          if (o) o[j] += x.scale * q[i] * state[i * columns + j];
        }
      if (es) (*es)[t] = e;
    }
  };
  a.o.assign(size_t(x.n) * V, 0);
  std::vector<std::vector<double>> before(backward ? x.n : 0), es(backward ? x.n : 0);
  a.end = s;
  walk(a.end, V, true, backward ? &before : nullptr, backward ? &es : nullptr);
  if (transition) {
    a.transition.assign(D * D, 0);
    for (int i = 0; i < D; ++i) a.transition[i * D + i] = 1;
    walk(a.transition, D, false, nullptr, nullptr);
  }
  if (!backward) return a;
  for (auto *y : {&a.d_q, &a.d_k}) y->assign(size_t(x.n) * D, 0);
  a.d_v.assign(size_t(x.n) * V, 0), a.d_g.assign(x.g.size(), 0), a.d_beta.assign(x.n, 0);
  std::vector<std::vector<double>> after;  // dS after stretches, from the last
  for (int t = x.n - 1; t >= 0; --t) {
    if (t == x.n - 1 || (t + 1) % every == 0) after.push_back(ds);
    const double b = x.beta[t];
    std::vector<double> decay(D);
    for (int i = 0; i < D; ++i) decay[i] = x.decay(t, i);
    const double *k = &x.k[t * D], *q = &x.q[t * D], *d_o = &x.d_o[t * V], *e = es[t].data();
    std::vector<double> z(V, 0);
    for (int i = 0; i < D; ++i)
      for (int j = 0; j < V; ++j) {
        const double now = decay[i] * before[t][i * V + j] + k[i] * b * e[j];
        a.d_q[t * D + i] += x.scale * now * d_o[j];
        ds[i * V + j] += x.scale * q[i] * d_o[j];
        z[j] += k[i] * ds[i * V + j];
      }
    for (int j = 0; j < V; ++j) a.d_v[t * V + j] = b * z[j], a.d_beta[t] += z[j] * e[j];
    for (int i = 0; i < D; ++i)
      for (int j = 0; j < V; ++j) {
        a.d_k[t * D + i] += ds[i * V + j] * b * e[j] - decay[i] * before[t][i * V + j] * b * z[j];
        ds[i * V + j] = decay[i] * (ds[i * V + j] - k[i] * b * z[j]);
        a.d_g[x.channel ? t * D + i : t] += before[t][i * V + j] * ds[i * V + j];
      }
  }
  a.d_start = ds;
  for (size_t i = after.size(); i-- > 0;)
    a.d_checkpoints.insert(a.d_checkpoints.end(), after[i].begin(), after[i].end());
  return a;
}

}  // namespace lasp::gpu
