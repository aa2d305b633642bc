// The recurrence of cpu_backend_oracle.h, and the inputs.
#include "cpu_backend_oracle.h"

#include <cmath>
#include <random>

namespace lasp::cpu_test {
namespace {

// What the type keeps of each number.
Values rounded(std::vector<float> x, DType type) {
  const size_t count = x.size();
  x.resize((count + 7) / 8 * 8);
  std::vector<char> raw(x.size() * 4);
  encode(raw.data(), x.data(), static_cast<int64_t>(x.size()), type);
  decode(x.data(), raw.data(), static_cast<int64_t>(x.size()), type);
  return Values(x.begin(), x.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace

double Oracle::g(int64_t b, int64_t t, int32_t h, int32_t key) const {
  const int64_t H = c.heads();
  switch (c.decay) {
    case Decay::kNone: return 0;
    case Decay::kHead: return in.decay[h];
    case Decay::kScalar: return in.decay[(b * c.tokens + t) * H + h];
    case Decay::kChannel: return in.decay[((b * c.tokens + t) * H + h) * c.keys + key];
  }
  return 0;
}

void Oracle::add_dg(int64_t b, int64_t t, int32_t h, int32_t key, double x) {
  const int64_t H = c.heads();
  if (c.decay == Decay::kHead) out.d_decay[h] += x, out.head_terms[h] += std::abs(x);
  if (c.decay == Decay::kScalar) out.d_decay[(b * c.tokens + t) * H + h] += x;
  if (c.decay == Decay::kChannel) out.d_decay[((b * c.tokens + t) * H + h) * c.keys + key] += x;
}

void Oracle::shape() {
  const int64_t H = c.heads(), KV = int64_t{c.keys} * c.values, rows = c.batch * c.tokens;
  out.o.assign(rows * H * c.values, 0);
  out.dq.assign(in.q.size(), 0), out.dk.assign(in.k.size(), 0), out.dv.assign(in.v.size(), 0);
  out.d_decay.assign(in.decay.size(), 0);
  out.head_terms.assign(c.decay == Decay::kHead ? c.heads() : 0, 0);
  out.final_state.assign(c.sequences() * H * KV, 0), out.d_initial_state = out.final_state;
}

void Oracle::run() { sequences(true); }

void Oracle::run_forward() { sequences(false); }

void Oracle::sequences(bool backward) {
  shape();
  const int64_t H = c.heads(), KV = int64_t{c.keys} * c.values;
  for (int64_t n = 0; n < c.sequences(); ++n) {
    const int64_t b = c.cu_seqlens.empty() ? n : 0;
    const int64_t begin = c.cu_seqlens.empty() ? 0 : c.cu_seqlens[n];
    const int64_t end = c.cu_seqlens.empty() ? c.tokens : c.cu_seqlens[n + 1];
    for (int32_t h = 0; h < H; ++h) sequence(b, begin, end, h, (n * H + h) * KV, backward);
  }
}

void Oracle::sequence(int64_t b, int64_t begin, int64_t end, int32_t h, int64_t at, bool backward) {
  const int64_t H = c.heads();
  const int32_t K = c.keys, V = c.values;
  const double scale = 1 / std::sqrt(static_cast<double>(static_cast<float>(K)));
  const auto q = [&](int64_t t) { return ((b * c.tokens + t) * c.heads_q + h * c.heads_q / H) * K; };
  const auto k = [&](int64_t t) { return ((b * c.tokens + t) * c.heads_k + h * c.heads_k / H) * K; };
  const auto v = [&](int64_t t) { return ((b * c.tokens + t) * c.heads_v + h * c.heads_v / H) * V; };
  const auto o = [&](int64_t t) { return ((b * c.tokens + t) * H + h) * V; };
  std::vector<Values> before;
  Values S(K * V, 0.0), dS(K * V, 0.0);
  if (c.states) {
    std::copy_n(in.initial_state.begin() + at, K * V, S.begin());
    std::copy_n(in.d_final_state.begin() + at, K * V, dS.begin());
  }
  const auto write = [&](int64_t t) {
    for (int i = 0; i < K; ++i) {
      const double a = std::exp(g(b, t, h, i));
      for (int j = 0; j < V; ++j) S[i * V + j] = a * S[i * V + j] + in.k[k(t) + i] * in.v[v(t) + j];
    }
  };
  const auto read = [&](int64_t t) {
    for (int i = 0; i < K; ++i) {
      for (int j = 0; j < V; ++j) {
        out.o[o(t) + j] += scale * S[i * V + j] * in.q[q(t) + i];
        if (backward) out.dq[q(t) + i] += scale * S[i * V + j] * in.d_o[o(t) + j];
      }
    }
  };
  for (int64_t t = begin; t < end; ++t) {
    if (backward) before.push_back(S);
    write(t);
    if (!c.bidirectional) read(t);
  }
  if (c.bidirectional) {
    for (int64_t t = begin; t < end; ++t) read(t);
  }
  std::copy_n(S.begin(), K * V, out.final_state.begin() + at);
  if (!backward) return;
  const auto pull = [&](int64_t t) {
    for (int i = 0; i < K; ++i) {
      for (int j = 0; j < V; ++j) dS[i * V + j] += scale * in.q[q(t) + i] * in.d_o[o(t) + j];
    }
  };
  const auto push = [&](int64_t t) {
    for (int i = 0; i < K; ++i) {
      for (int j = 0; j < V; ++j) {
        out.dk[k(t) + i] += dS[i * V + j] * in.v[v(t) + j];
        out.dv[v(t) + j] += dS[i * V + j] * in.k[k(t) + i];
      }
    }
  };
  if (c.bidirectional) {
    for (int64_t t = begin; t < end; ++t) pull(t);
    for (int64_t t = begin; t < end; ++t) push(t);
  } else {
    for (int64_t t = end - 1; t >= begin; --t) {
      pull(t);
      push(t);
      for (int i = 0; i < K; ++i) {
        const double a = std::exp(g(b, t, h, i));
        double da = 0;
        for (int j = 0; j < V; ++j) {
          da += dS[i * V + j] * before[t - begin][i * V + j] * a;
          dS[i * V + j] *= a;
        }
        add_dg(b, t, h, i, da);
      }
    }
  }
  std::copy_n(dS.begin(), K * V, out.d_initial_state.begin() + at);
}

Inputs make_inputs(const Case &c) {
  std::mt19937 random(20240402);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(c.decay_low, c.decay_high);
  const auto fill = [&](int64_t count, DType type) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float &e : x) e = static_cast<float>(normal(random));
    return rounded(x, type);
  };
  const int64_t rows = c.batch * c.tokens, KV = int64_t{c.keys} * c.values;
  Inputs in;
  in.q = fill(rows * c.heads_q * c.keys, c.dtype);
  in.k = fill(rows * c.heads_k * c.keys, c.dtype);
  in.v = fill(rows * c.heads_v * c.values, c.dtype);
  in.d_o = fill(rows * c.heads() * c.values, c.dtype);
  in.initial_state = fill(c.sequences() * c.heads() * KV, DType::kFloat32);
  in.d_final_state = fill(c.sequences() * c.heads() * KV, DType::kFloat32);
  const int64_t decays = c.decay == Decay::kNone   ? 0
                         : c.decay == Decay::kHead ? c.heads()
                                                   : rows * c.heads() * (c.decay == Decay::kChannel ? c.keys : 1);
  std::vector<float> decay(static_cast<size_t>(decays));
  for (float &g : decay) g = static_cast<float>(uniform(random));
  in.decay = rounded(decay, c.decay_dtype);
  for (size_t i = 1; c.some_forget && i < in.decay.size(); i += 5) in.decay[i] = -INFINITY;
  return in;
}

}  // namespace lasp::cpu_test
