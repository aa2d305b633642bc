// The oracle's two recurrences. One HeadRun is one sequence of one output head.
#include "support/oracle.h"

#include <algorithm>
#include <cmath>

namespace lasp_test {

int64_t OracleProblem::heads() const { return std::max({heads_q, heads_k, heads_v}); }

int64_t OracleProblem::num_sequences() const {
  return cu_seqlens.empty() ? batch : static_cast<int64_t>(cu_seqlens.size()) - 1;
}

namespace {

using State = std::vector<double>;  // [K, V]

class HeadRun {
 public:
  HeadRun(const OracleProblem &p, const OracleInputs &in, OracleOutputs &out, int64_t n, int64_t h)
      : p_(p), in_(in), out_(out), n_(n), h_(h), heads_(p.heads()), dk_(p.head_dim_k), dv_(p.head_dim_v) {
    row_ = p.cu_seqlens.empty() ? n : 0;
    begin_ = p.cu_seqlens.empty() ? 0 : p.cu_seqlens[n];
    end_ = p.cu_seqlens.empty() ? p.tokens : p.cu_seqlens[n + 1];
  }

  void causal() {
    forward();
    backward();
  }

  // o_t = scale * (S_0 + sum k v^T)^T q_t: every token reads, and writes into, one and the same state.
  void bidirectional() {
    State s = load_state(in_.initial_state), ds = load_state(in_.d_final_state);
    for (int64_t t = begin_; t < end_; ++t) {
      add_outer(s, k(t), v(t), 1.0);
      add_outer(ds, q(t), &in_.d_o[at_o(t)], p_.scale);
    }
    for (int64_t t = begin_; t < end_; ++t) {
      read(s, t);
      add_state_times(&out_.dq[at_q(t)], s, &in_.d_o[at_o(t)], p_.scale);
      add_state_times(&out_.dk[at_k(t)], ds, v(t), 1.0);
      add_transposed_times(&out_.dv[at_v(t)], ds, k(t), 1.0);
    }
    store_state(out_.final_state, s);
    store_state(out_.d_initial_state, ds);
  }

 private:
  int64_t at(int64_t t, int64_t heads, int64_t dim) const {
    return ((row_ * p_.tokens + t) * heads + h_ * heads / heads_) * dim;
  }
  int64_t at_q(int64_t t) const { return at(t, p_.heads_q, dk_); }
  int64_t at_k(int64_t t) const { return at(t, p_.heads_k, dk_); }
  int64_t at_v(int64_t t) const { return at(t, p_.heads_v, dv_); }
  int64_t at_o(int64_t t) const { return at(t, heads_, dv_); }
  int64_t at_beta(int64_t t) const { return at(t, heads_, 1); }
  const double *q(int64_t t) const { return &in_.q[at_q(t)]; }
  const double *k(int64_t t) const { return &in_.k[at_k(t)]; }
  const double *v(int64_t t) const { return &in_.v[at_v(t)]; }
  double beta(int64_t t) const { return in_.beta[at_beta(t)]; }

  int64_t at_decay(int64_t t, int64_t i) const {
    if (p_.decay == OracleDecay::head) return h_;
    return p_.decay == OracleDecay::scalar ? at(t, heads_, 1) : at(t, heads_, dk_) + i;
  }
  double factor(int64_t t, int64_t i) const {
    return p_.decay == OracleDecay::none ? 1.0 : std::exp(in_.g[at_decay(t, i)]);
  }

  State load_state(const std::vector<double> &states) const {
    if (states.empty()) return State(dk_ * dv_, 0.0);
    const auto first = states.begin() + (n_ * heads_ + h_) * dk_ * dv_;
    return State(first, first + dk_ * dv_);
  }
  void store_state(std::vector<double> &states, const State &s) const {
    std::copy(s.begin(), s.end(), states.begin() + (n_ * heads_ + h_) * dk_ * dv_);
  }

  void add_outer(State &s, const double *a, const double *b, double scale) const {
    for (int64_t i = 0; i < dk_; ++i) {
      for (int64_t j = 0; j < dv_; ++j) s[i * dv_ + j] += scale * a[i] * b[j];
    }
  }
  // to += scale * S x, over K
  void add_state_times(double *to, const State &s, const double *x, double scale) const {
    for (int64_t i = 0; i < dk_; ++i) {
      double sum = 0.0;
      for (int64_t j = 0; j < dv_; ++j) sum += s[i * dv_ + j] * x[j];
      to[i] += scale * sum;
    }
  }
  // to += scale * S^T x, over V
  void add_transposed_times(double *to, const State &s, const double *x, double scale) const {
    for (int64_t i = 0; i < dk_; ++i) {
      for (int64_t j = 0; j < dv_; ++j) to[j] += scale * s[i * dv_ + j] * x[i];
    }
  }
  void decay_state(State &s, int64_t t) const {
    for (int64_t i = 0; i < dk_; ++i) {
      const double a = factor(t, i);
      for (int64_t j = 0; j < dv_; ++j) s[i * dv_ + j] *= a;
    }
  }
  void read(const State &s, int64_t t) { add_transposed_times(&out_.o[at_o(t)], s, q(t), p_.scale); }

  // What token t writes along k_t: v_t, or for the delta rule what the decayed state does not yet predict of it.
  std::vector<double> error(const State &decayed, int64_t t) const {
    std::vector<double> e(v(t), v(t) + dv_);
    if (p_.delta) add_transposed_times(e.data(), decayed, k(t), -1.0);
    return e;
  }

  void forward() {
    State s = load_state(in_.initial_state);
    for (int64_t t = begin_; t < end_; ++t) {
      before_.push_back(s);
      decay_state(s, t);
      const std::vector<double> e = error(s, t);
      add_outer(s, k(t), e.data(), p_.delta ? beta(t) : 1.0);
      read(s, t);
    }
    store_state(out_.final_state, s);
    before_.push_back(std::move(s));
  }

  void backward() {
    State ds = load_state(in_.d_final_state);
    for (int64_t t = end_ - 1; t >= begin_; --t) {
      const State &before = before_[t - begin_];
      const State &after = before_[t - begin_ + 1];
      add_state_times(&out_.dq[at_q(t)], after, &in_.d_o[at_o(t)], p_.scale);
      add_outer(ds, q(t), &in_.d_o[at_o(t)], p_.scale);
      if (p_.delta) {
        delta_write_gradients(ds, before, t);
      } else {
        add_state_times(&out_.dk[at_k(t)], ds, v(t), 1.0);
        add_transposed_times(&out_.dv[at_v(t)], ds, k(t), 1.0);
      }
      decay_gradients(ds, before, t);
      decay_state(ds, t);
    }
    store_state(out_.d_initial_state, ds);
  }

  // On entry ds is the gradient of the state after the write, on exit that of the decayed state before it.
  void delta_write_gradients(State &ds, const State &before, int64_t t) {
    State decayed = before;
    decay_state(decayed, t);
    const std::vector<double> e = error(decayed, t);
    std::vector<double> de(dv_, 0.0), along(dk_, 0.0);
    add_transposed_times(de.data(), ds, k(t), beta(t));
    add_state_times(along.data(), ds, e.data(), 1.0);
    for (int64_t i = 0; i < dk_; ++i) {
      out_.d_beta[at_beta(t)] += k(t)[i] * along[i];
      out_.dk[at_k(t) + i] += beta(t) * along[i];
    }
    add_state_times(&out_.dk[at_k(t)], decayed, de.data(), -1.0);
    for (int64_t j = 0; j < dv_; ++j) out_.dv[at_v(t) + j] += de[j];
    add_outer(ds, k(t), de.data(), -1.0);
  }

  void decay_gradients(const State &dr, const State &before, int64_t t) {
    if (p_.decay == OracleDecay::none) return;
    double term = 0.0, squares = 0.0;
    for (int64_t i = 0; i < dk_; ++i) {
      double sum = 0.0, row = 0.0;
      for (int64_t j = 0; j < dv_; ++j) {
        const double product = dr[i * dv_ + j] * before[i * dv_ + j];
        sum += product, row += product * product;
      }
      const double a = factor(t, i);
      out_.dg[at_decay(t, i)] += sum * a;
      term += sum * a, squares += row * a * a;
      if (p_.decay == OracleDecay::channel || i == dk_ - 1) {
        out_.dg_sizes[at_decay(t, i)] += std::fabs(term);
        out_.dg_norms[at_decay(t, i)] += std::sqrt(squares);
        term = squares = 0.0;
      }
    }
  }

  const OracleProblem &p_;
  const OracleInputs &in_;
  OracleOutputs &out_;
  int64_t n_, h_, heads_, dk_, dv_;
  int64_t row_ = 0, begin_ = 0, end_ = 0;
  std::vector<State> before_;
};

}  // namespace

OracleOutputs run_oracle(const OracleProblem &p, const OracleInputs &in) {
  OracleOutputs out;
  const int64_t states = p.num_sequences() * p.heads() * p.head_dim_k * p.head_dim_v;
  out.o.assign(p.batch * p.tokens * p.heads() * p.head_dim_v, 0.0);
  out.final_state.assign(states, 0.0);
  out.dq.assign(in.q.size(), 0.0);
  out.dk.assign(in.k.size(), 0.0);
  out.dv.assign(in.v.size(), 0.0);
  out.dg.assign(in.g.size(), 0.0);
  out.dg_sizes.assign(in.g.size(), 0.0);
  out.dg_norms.assign(in.g.size(), 0.0);
  out.d_beta.assign(in.beta.size(), 0.0);
  out.d_initial_state.assign(states, 0.0);
  for (int64_t n = 0; n < p.num_sequences(); ++n) {
    for (int64_t h = 0; h < p.heads(); ++h) {
      HeadRun run(p, in, out, n, h);
      p.bidirectional ? run.bidirectional() : run.causal();
    }
  }
  return out;
}

}  // namespace lasp_test
