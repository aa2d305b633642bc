// A rank's part of a delta-rule problem for tests of the launches alone: two rows, in which sequences begin, end,
// go on and go through, with empty entries in the tables between them; the recurrence in float64; and the launches
// that a rank makes of it.
#pragma once

#include <array>
#include <cmath>
#include <random>

#include "../../../kernels/delta.h"
#include "device_memory.h"

namespace lasp::gpu {

struct DeltaCase {
  const char *name = "";
  KernelSet forward = KernelSet::kGeneric, reversed = KernelSet::kGeneric, gradients = KernelSet::kGeneric;
  DType dtype = DType::kFloat32, decay_dtype = DType::kFloat32;
  Decay decay = Decay::kScalar;
  int32_t heads = 2, heads_q = 2, heads_k = 2, heads_v = 2, dim_k = 64, dim_v = 48;
  double correlation = 0;                 // of keys with each other
  float strongest = 0.2f, most_beta = 1;  // log decays are drawn from [-strongest, 0]; negative: all are that
  int64_t padding = 5;                    // elements between tokens
};

struct DeltaResults {
  enum { kO, kFinal, kLeaving, kTransition, kDQ, kDK, kDV, kDG, kDBeta, kDInitial, kDLeaving, kCount };
  static constexpr const char *kNames[] = {"o",  "final state", "leaving state", "transition", "dq",       "dk",
                                           "dv", "dg",          "d_beta",        "d_initial",  "d_leaving"};
  static bool has_type_of_tensors(int i) { return i == kO || i == kDQ || i == kDK || i == kDV; }
  std::array<std::vector<double>, kCount> tensors;
  double head_shares = 0;  // decay per head: the squares of all tokens' shares in dg, which may cancel, added up
};

struct DeltaProblem {
  static constexpr int64_t kRows = 2, kTokens = 200, kSequences = 4;
  DeltaCase c;
  std::vector<Segment> segments;
  std::vector<Run> runs[2], stretches;
  int64_t checkpoints = 0;
  // As the kernels see them; q, k, v [rows, T, heads, dim].
  std::vector<float> q, k, v, d_o, g, beta, initial, incoming, d_final, d_incoming;
  int64_t state_size() const { return int64_t{c.dim_k} * c.dim_v; }
};

inline DeltaProblem make_delta_problem(const DeltaCase &c) {
  DeltaProblem p;
  p.c = c;
  struct Part {
    int64_t row, begin, end;
    bool begins, ends, first, last;  // of the row: the first and the last
  };
  // The third has no tokens and no runs, as tables made on a device may.
  const Part parts[] = {{0, 0, 70, true, true, true, false},
                        {0, 70, 71, true, true, false, false},
                        {0, 71, 71, true, true, false, false},
                        {0, 71, 200, true, false, false, true},
                        {1, 0, 200, false, false, true, true}};
  constexpr int64_t kSpacing = delta_checkpoint_tokens(KernelSet::kGeneric);
  for (const Part &part : parts) {
    const bool empty = part.begin == part.end;
    Segment segment;
    segment.path = part.row, segment.sequence = empty             ? 0
                                                : part.row == 1   ? 3
                                                : part.begin == 0 ? 0
                                                                  : part.begin - 69;
    segment.num_runs = empty ? 0 : 1;
    segment.begins[0] = part.begins, segment.begins[1] = part.ends;
    segment.produces[0] = part.last && !empty, segment.produces[1] = part.first && !empty;
    segment.consumes[0] = part.first && !part.begins, segment.consumes[1] = part.last && !part.ends;
    Run run = make_run(part.row, part.begin, int32_t(part.end - part.begin));
    run.segment = int64_t(p.segments.size());
    run.starts = part.begins ? segment.sequence : -1, run.ends = part.ends ? segment.sequence : -1;
    run.checkpoint = int32_t(p.checkpoints);
    for (int direction = 0; direction < 2; ++direction) {
      run.entered = segment.consumes[direction];
      run.state = run.entered ? part.row : segment.sequence;
      p.runs[direction].push_back(run);
    }
    for (int64_t at = part.begin; at < part.end; at += kSpacing) {
      Run stretch = run;  // with Run::entered as backward has it
      stretch.begin = at, stretch.length = int32_t(std::min(kSpacing, part.end - at));
      stretch.state = stretch.checkpoint = int32_t(p.checkpoints++);
      p.stretches.push_back(stretch);
    }
    if (empty) p.stretches.push_back(run);
    p.segments.push_back(segment);
  }
  std::mt19937 random(uint32_t(c.dim_k * 31 + c.dim_v + int(c.decay)));
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0, 1);
  const auto element = [&](float x) {
    return c.dtype == DType::kFloat32 ? x : widen(c.dtype, round_to(c.dtype, x));
  };
  const auto draw = [&](std::vector<float> &to, int64_t count, bool rounds) {
    to.resize(size_t(count));
    for (float &x : to) x = rounds ? element(normal(random)) : normal(random);
  };
  // Vectors of length 1, k of them about one direction.
  const auto draw_units = [&](std::vector<float> &to, int64_t vectors, double correlation) {
    std::vector<float> common(size_t(c.dim_k)), own(size_t(c.dim_k));
    const auto unit = [&](std::vector<float> &x) {
      double norm = 0;
      for (float &y : x) y = normal(random), norm += double(y) * y;
      for (float &y : x) y = float(y / std::sqrt(norm));
    };
    unit(common);
    for (int64_t n = 0; n < vectors; ++n) {
      unit(own);
      double norm = 0;
      for (size_t i = 0; i < own.size(); ++i) {
        own[i] = float(std::sqrt(correlation) * common[i] + std::sqrt(1 - correlation) * own[i]);
        norm += double(own[i]) * own[i];
      }
      for (float x : own) to.push_back(element(float(x / std::sqrt(norm))));
    }
  };
  const int64_t tokens = p.kRows * p.kTokens;
  draw_units(p.q, tokens * c.heads_q, 0);
  draw_units(p.k, tokens * c.heads_k, c.correlation);
  draw(p.v, tokens * c.heads_v * c.dim_v, true), draw(p.d_o, tokens * c.heads * c.dim_v, true);
  p.g.resize(size_t(tokens * c.heads * c.dim_k));
  for (float &x : p.g) {
    x = c.strongest < 0 ? c.strongest : -c.strongest * uniform(random);
    if (c.strongest > 1 && uniform(random) < 0.02f) x = -INFINITY;
    if (c.decay_dtype != DType::kFloat32) x = widen(c.decay_dtype, round_to(c.decay_dtype, x));
  }
  p.beta.resize(size_t(tokens * c.heads));
  for (float &x : p.beta) x = uniform(random) < 0.1f ? 0.0f : c.most_beta * uniform(random);
  const int64_t states = c.heads * p.state_size();
  draw(p.initial, p.kSequences * states, false), draw(p.incoming, p.kRows * states, false);
  draw(p.d_final, p.kSequences * states, false), draw(p.d_incoming, p.kRows * states, false);
  return p;
}

// One segment and head: states and their gradients token by token.
class DeltaRecurrence {
 public:
  DeltaRecurrence(const DeltaProblem &p, const Run &run, int64_t head, float scale)
      : p_(p),
        run_(run),
        head_(head),
        scale_(scale),
        states_(size_t(run.length + 1) * size_t(p.state_size())),
        missing_(size_t(run.length) * size_t(p.c.dim_v)) {}

  const double *q(int64_t t) { return widened(0, p_.q, p_.c.heads_q, p_.c.dim_k, t); }
  const double *k(int64_t t) { return widened(1, p_.k, p_.c.heads_k, p_.c.dim_k, t); }
  const double *v(int64_t t) { return widened(2, p_.v, p_.c.heads_v, p_.c.dim_v, t); }
  const double *d_o(int64_t t) { return widened(3, p_.d_o, p_.c.heads, p_.c.dim_v, t); }
  double beta(int64_t t) const { return p_.beta[size_t(token(t) * p_.c.heads + head_)]; }
  double decay(int64_t t, int64_t i) const {
    const size_t heads = size_t(p_.c.heads), keys = size_t(p_.c.dim_k),
                 at = size_t(token(t)) * heads + size_t(head_);
    switch (p_.c.decay) {
      case Decay::kNone: return 1;
      case Decay::kHead: return std::exp(double(p_.g[size_t(head_)]));
      case Decay::kScalar: return std::exp(double(p_.g[at]));
      default: return std::exp(double(p_.g[at * keys + size_t(i)]));
    }
  }
  // The states after t tokens, from `first` (null: zero), with values or without. `o` may be null.
  void forward(const float *first, bool values, double *o) {
    const int64_t keys = p_.c.dim_k, columns = p_.c.dim_v;
    for (int64_t i = 0; i < p_.state_size(); ++i) states_[size_t(i)] = first == nullptr ? 0.0 : double(first[i]);
    for (int64_t t = 0; t < run_.length; ++t) {
      const double *before = state(t), *key = k(t), *query = q(t), *value = v(t);
      double *after = state(t + 1);
      for (int64_t c = 0; c < columns; ++c) {
        double e = values ? value[c] : 0.0, sum = 0;
        for (int64_t i = 0; i < keys; ++i) e -= decay(t, i) * before[i * columns + c] * key[i];
        missing_[size_t(t * columns + c)] = e;
        for (int64_t i = 0; i < keys; ++i) {
          after[i * columns + c] = decay(t, i) * before[i * columns + c] + key[i] * beta(t) * e;
          sum += query[i] * after[i * columns + c];
        }
        if (o != nullptr) o[t * p_.c.heads * columns + c] = scale_ * sum;
      }
    }
  }
  double *state(int64_t t) { return states_.data() + t * p_.state_size(); }
  const double *missing(int64_t t) const { return missing_.data() + t * p_.c.dim_v; }

 private:
  int64_t token(int64_t t) const { return run_.row * p_.kTokens + run_.begin + t; }
  const double *widened(int which, const std::vector<float> &x, int64_t heads, int64_t dim, int64_t t) {
    const int64_t at = (token(t) * heads + head_ * heads / p_.c.heads) * dim;
    std::vector<double> &to = rows_[which];
    to.assign(x.begin() + at, x.begin() + at + dim);
    return to.data();
  }
  const DeltaProblem &p_;
  const Run &run_;
  int64_t head_;
  double scale_;
  std::vector<double> states_, missing_, rows_[4];
};

inline constexpr float kDeltaScale = 0.7f;

// The gradients of one segment and head from that of its last state; returns the gradient of its first. `to` null:
// that alone.
inline std::vector<double> delta_gradients(const DeltaProblem &p, DeltaRecurrence &walk, const Run &run,
                                           int64_t head, const float *last, DeltaResults *to) {
  const int64_t keys = p.c.dim_k, columns = p.c.dim_v;
  std::vector<double> d(size_t(p.state_size()), 0.0);
  if (last != nullptr) d.assign(last, last + p.state_size());
  for (int64_t t = run.length - 1; t >= 0; --t) {
    const double *before = walk.state(t), *after = walk.state(t + 1), *key = walk.k(t), *query = walk.q(t),
                 *gradient = walk.d_o(t), *e = walk.missing(t), beta = walk.beta(t);
    const int64_t token = run.row * p.kTokens + run.begin + t, row = token * p.c.heads + head;
    for (int64_t i = 0; i < keys; ++i)
      for (int64_t c = 0; c < columns; ++c) d[size_t(i * columns + c)] += kDeltaScale * query[i] * gradient[c];
    std::vector<double> z(size_t(columns), 0.0);
    for (int64_t i = 0; i < keys; ++i)
      for (int64_t c = 0; c < columns; ++c) z[size_t(c)] += key[i] * d[size_t(i * columns + c)];
    double d_beta = 0, d_head = 0;
    for (int64_t c = 0; c < columns; ++c) d_beta += z[size_t(c)] * e[c];
    for (int64_t i = 0; i < keys; ++i) {
      double d_q = 0, d_k = 0, d_g = 0;
      for (int64_t c = 0; c < columns; ++c) {
        double &x = d[size_t(i * columns + c)];
        const double decayed = walk.decay(t, i) * before[i * columns + c], d_v = beta * z[size_t(c)];
        d_q += kDeltaScale * after[i * columns + c] * gradient[c];
        d_k += x * beta * e[c] - decayed * d_v;
        x -= key[i] * d_v;
        d_g += decayed * x;
        x *= walk.decay(t, i);
      }
      if (to == nullptr) continue;
      to->tensors[DeltaResults::kDQ][size_t(row * keys + i)] = d_q;
      to->tensors[DeltaResults::kDK][size_t(row * keys + i)] = d_k;
      d_head += d_g;
      if (p.c.decay == Decay::kChannel) to->tensors[DeltaResults::kDG][size_t(row * keys + i)] = d_g;
    }
    if (to == nullptr) continue;
    for (int64_t c = 0; c < columns; ++c)
      to->tensors[DeltaResults::kDV][size_t(row * columns + c)] = beta * z[size_t(c)];
    to->tensors[DeltaResults::kDBeta][size_t(row)] = d_beta;
    if (p.c.decay == Decay::kScalar) to->tensors[DeltaResults::kDG][size_t(row)] = d_head;
    if (p.c.decay != Decay::kHead) continue;
    to->tensors[DeltaResults::kDG][size_t(head)] += d_head;
    to->head_shares += d_head * d_head;
  }
  return d;
}

// NaN where nobody writes.
inline DeltaResults empty_results(const DeltaProblem &p, double nothing) {
  const DeltaCase &c = p.c;
  DeltaResults r;
  const int64_t tokens = p.kRows * p.kTokens * c.heads, states = c.heads * p.state_size();
  const int64_t of_g = c.decay == Decay::kHead ? c.heads : tokens * (c.decay == Decay::kChannel ? c.dim_k : 1);
  const int64_t sizes[] = {
      tokens * c.dim_v, p.kSequences * states, p.kRows * states, p.kRows * c.heads * c.dim_k * c.dim_k,
      tokens * c.dim_k, tokens * c.dim_k,      tokens * c.dim_v, c.decay == Decay::kNone ? 0 : of_g,
      tokens,           p.kSequences * states, p.kRows * states};
  for (int i = 0; i < r.kCount; ++i) r.tensors[i].assign(size_t(sizes[i]), nothing);
  return r;
}

inline DeltaResults delta_recurrence(const DeltaProblem &p) {
  const DeltaCase &c = p.c;
  DeltaResults r = empty_results(p, NAN);
  if (c.decay == Decay::kHead) std::fill(r.tensors[r.kDG].begin(), r.tensors[r.kDG].end(), 0.0);
  const int64_t size = p.state_size(), square = int64_t{c.dim_k} * c.dim_k;
  for (size_t n = 0; n < p.segments.size(); ++n) {
    const Segment &segment = p.segments[n];
    const Run &run = p.runs[0][n], &back = p.runs[1][n];
    for (int64_t head = 0; run.length > 0 && head < c.heads; ++head) {
      DeltaRecurrence walk(p, run, head, kDeltaScale);
      const auto put = [&](int tensor, int64_t index, const double *from) {
        std::copy_n(from, size, r.tensors[tensor].begin() + (index * c.heads + head) * size);
      };
      const auto state = [&](const std::vector<float> &states, int64_t index) {
        return states.data() + (index * c.heads + head) * size;
      };
      const auto ahead = [&](const Run &of) { return of.entered != 0; };
      if (ahead(run) && segment.produces[0]) {  // before what enters is known: from zero, and M
        walk.forward(nullptr, true, nullptr);
        put(r.kLeaving, run.row, walk.state(run.length));
        for (int64_t first = 0; first < c.dim_k; first += c.dim_v) {
          std::vector<float> identity(size_t(size), 0.0f);
          for (int64_t j = 0; j < c.dim_v && first + j < c.dim_k; ++j)
            identity[size_t((first + j) * c.dim_v + j)] = 1;
          walk.forward(identity.data(), false, nullptr);
          for (int64_t i = 0; i < c.dim_k; ++i)
            for (int64_t j = 0; j < c.dim_v && first + j < c.dim_k; ++j)
              r.tensors[r.kTransition][size_t((run.row * c.heads + head) * square + i * c.dim_k + first + j)] =
                  walk.state(run.length)[i * c.dim_v + j];
        }
      }
      const float *first = ahead(run) ? state(p.incoming, run.row) : state(p.initial, segment.sequence);
      const int64_t at = ((run.row * p.kTokens + run.begin) * c.heads + head) * c.dim_v;
      walk.forward(first, true, r.tensors[r.kO].data() + at);
      if (run.ends >= 0) put(r.kFinal, run.ends, walk.state(run.length));
      if (segment.produces[0] && !ahead(run)) put(r.kLeaving, run.row, walk.state(run.length));
      if (ahead(back) && segment.produces[1])
        put(r.kDLeaving, run.row, delta_gradients(p, walk, run, head, nullptr, nullptr).data());
      const float *last = ahead(back) ? state(p.d_incoming, run.row) : state(p.d_final, segment.sequence);
      const std::vector<double> d = delta_gradients(p, walk, run, head, last, &r);
      if (run.starts >= 0) put(r.kDInitial, run.starts, d.data());
      if (segment.produces[1] && !ahead(back)) put(r.kDLeaving, run.row, d.data());
    }
  }
  return r;
}

}  // namespace lasp::gpu
