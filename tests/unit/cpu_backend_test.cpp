// The CPU backend against the recurrence in float64, without an engine: this test carves up the work, moves the
// states between simulated ranks itself, and stops the work done ahead at will.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend.h"
#include "cpu/kernels.h"
#include "thread_pool.h"

namespace lasp {
namespace {

enum class Order { kTokensFirst, kHeadsFirst, kPadded };

struct Case {
  std::string name = {};
  int64_t batch = 1, tokens = 0;
  int32_t heads_q = 2, heads_k = 2, heads_v = 2, keys = 16, values = 24;
  Decay decay = Decay::kNone;
  float decay_low = -0.2f, decay_high = -0.001f;
  bool states = true;  // with initial_state and d_final_state
  bool cache_chunks = true;
  bool bidirectional = false;
  int32_t chunk = 32;
  DType dtype = DType::kFloat32, decay_dtype = DType::kFloat32;
  Order order = Order::kTokensFirst;
  std::vector<int64_t> cu_seqlens = {};
  std::vector<int64_t> split = {};  // tokens of each rank; empty: one rank
  int32_t threads = 2;

  int32_t heads() const { return std::max({heads_q, heads_k, heads_v}); }
  int64_t sequences() const { return cu_seqlens.empty() ? batch : static_cast<int64_t>(cu_seqlens.size()) - 1; }
};

void PrintTo(const Case &c, std::ostream *out) { *out << c.name; }

using Values = std::vector<double>;  // dense [B, T, heads, dim] over all ranks

// ---- Element types ----------------------------------------------------------------------------------------------

void encode(void *to, const float *from, int64_t count8, DType type) {
  cpu::kernels().store_rows(to, 0, from, 0, 1, count8, type, false);
}
void decode(float *to, const void *from, int64_t count8, DType type) {
  cpu::kernels().load_rows(to, 0, from, 0, 1, count8, type);
}
double rounded(double x, DType type) {
  float in[8] = {static_cast<float>(x)}, out[8];
  char raw[32];
  encode(raw, in, 8, type);
  decode(out, raw, 8, type);
  return out[0];
}
double unit_roundoff(DType type) {
  return type == DType::kFloat32 ? 0x1p-24 : type == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

// ---- The oracle -------------------------------------------------------------------------------------------------

struct Results {
  Values o, final_state, dq, dk, dv, d_decay, d_initial_state;
  Values head_terms;  // per-head decay: the sizes of each token's terms of d_decay, summed
};

struct Inputs {
  Values q, k, v, decay, d_o, initial_state, d_final_state;
};

struct Oracle {
  const Case &c;
  const Inputs &in;
  Results out;

  double g(int64_t b, int64_t t, int32_t h, int32_t key) const {
    const int64_t H = c.heads();
    switch (c.decay) {
      case Decay::kNone: return 0;
      case Decay::kHead: return in.decay[h];
      case Decay::kScalar: return in.decay[(b * c.tokens + t) * H + h];
      case Decay::kChannel: return in.decay[((b * c.tokens + t) * H + h) * c.keys + key];
    }
    return 0;
  }
  void add_dg(int64_t b, int64_t t, int32_t h, int32_t key, double x) {
    const int64_t H = c.heads();
    if (c.decay == Decay::kHead) out.d_decay[h] += x, out.head_terms[h] += std::abs(x);
    if (c.decay == Decay::kScalar) out.d_decay[(b * c.tokens + t) * H + h] += x;
    if (c.decay == Decay::kChannel) out.d_decay[((b * c.tokens + t) * H + h) * c.keys + key] += x;
  }

  void run() {
    const int64_t H = c.heads(), KV = int64_t{c.keys} * c.values, rows = c.batch * c.tokens;
    out.o.assign(rows * H * c.values, 0);
    out.dq.assign(in.q.size(), 0), out.dk.assign(in.k.size(), 0), out.dv.assign(in.v.size(), 0);
    out.d_decay.assign(in.decay.size(), 0);
    out.head_terms.assign(c.decay == Decay::kHead ? c.heads() : 0, 0);
    out.final_state.assign(c.sequences() * H * KV, 0), out.d_initial_state = out.final_state;
    for (int64_t n = 0; n < c.sequences(); ++n) {
      const int64_t b = c.cu_seqlens.empty() ? n : 0;
      const int64_t begin = c.cu_seqlens.empty() ? 0 : c.cu_seqlens[n];
      const int64_t end = c.cu_seqlens.empty() ? c.tokens : c.cu_seqlens[n + 1];
      for (int32_t h = 0; h < H; ++h) sequence(b, begin, end, h, (n * H + h) * KV);
    }
  }

  void sequence(int64_t b, int64_t begin, int64_t end, int32_t h, int64_t at) {
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
          out.dq[q(t) + i] += scale * S[i * V + j] * in.d_o[o(t) + j];
        }
      }
    };
    for (int64_t t = begin; t < end; ++t) {
      before.push_back(S);
      write(t);
      if (!c.bidirectional) read(t);
    }
    if (c.bidirectional) {
      for (int64_t t = begin; t < end; ++t) read(t);
    }
    std::copy_n(S.begin(), K * V, out.final_state.begin() + at);
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
};

// ---- One rank's tensors
// ------------------------------------------------------------------------------------------

// A tensor in the case's layout and element type, with canaries in the gaps.
struct Tensor {
  Layout layout;
  DType type = DType::kFloat32;
  int64_t batch, tokens, heads, dim;
  std::vector<char> bytes;

  Tensor(const Case &c, DType element, int64_t tokens_, int64_t heads_, int64_t dim_)
      : type(element), batch(c.batch), tokens(tokens_), heads(heads_), dim(dim_) {
    const int64_t pad = c.order == Order::kPadded ? 8 : 0;
    if (c.order == Order::kHeadsFirst) {
      layout = {heads * tokens * dim, dim, tokens * dim};
    } else {
      layout = {tokens * (heads * dim + pad) + pad, heads * dim + pad, dim};
    }
    bytes.assign(static_cast<size_t>(layout.extent(batch, tokens, heads, dim) * size_of(type)) + 64, 0x5a);
  }
  template <class F>
  void each(F &&body) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t d = 0; d < dim; ++d)
            body(b, t, h, d, bytes.data() + (layout.offset(b, t, h) + d) * size_of(type));
  }
  void set(const Values &all, int64_t total, int64_t first) {
    each([&](int64_t b, int64_t t, int64_t h, int64_t d, char *at) {
      float x[8] = {static_cast<float>(all[((b * total + first + t) * heads + h) * dim + d])};
      char raw[32];
      encode(raw, x, 8, type);
      std::memcpy(at, raw, static_cast<size_t>(size_of(type)));
    });
  }
  void get(Values &all, int64_t total, int64_t first) {
    each([&](int64_t b, int64_t t, int64_t h, int64_t d, char *at) {
      float x[8];
      char raw[32] = {};
      std::memcpy(raw, at, static_cast<size_t>(size_of(type)));
      decode(x, raw, 8, type);
      all[((b * total + first + t) * heads + h) * dim + d] = x[0];
    });
  }
};

struct Aligned {
  explicit Aligned(uint64_t bytes) : room(bytes + 64, 0x7f) {}  // NaN-like garbage: nothing may rely on zeros
  void *data() { return reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64); }
  float *floats() { return static_cast<float *>(data()); }
  std::vector<char> room;
};

struct Rank {
  Problem problem;
  Work work;
  int64_t first;
  ThreadPool pool;
  std::unique_ptr<Backend> backend;
  Tensor q, k, v, d_o, o, dq, dk, dv;
  std::unique_ptr<Tensor> decay, d_decay;
  std::vector<float> head_decay, d_head_decay;
  Aligned cache, forward_workspace, backward_workspace, left_state, left_factor, right_state, right_factor, left_in,
      right_in;

  Rank(const Case &c, const Inputs &in, const TokenRanges &ranges, int32_t rank)
      : problem(make_problem(c, ranges.tokens(rank))),
        work((set_layouts(c), make_work(problem, ranges, rank))),
        first(ranges.begin[rank]),
        pool(c.threads),
        backend(make_cpu_backend(problem, work, pool)),
        q(c, c.dtype, problem.tokens, c.heads_q, c.keys),
        k(c, c.dtype, problem.tokens, c.heads_k, c.keys),
        v(c, c.dtype, problem.tokens, c.heads_v, c.values),
        d_o(c, c.dtype, problem.tokens, c.heads(), c.values),
        o(d_o),
        dq(q),
        dk(k),
        dv(v),
        cache(backend->cache_bytes(problem.cache_chunks)),
        forward_workspace(backend->forward_workspace_bytes()),
        backward_workspace(backend->backward_workspace_bytes()),
        left_state(carry_bytes(c)),
        left_factor(carry_bytes(c)),
        right_state(carry_bytes(c)),
        right_factor(carry_bytes(c)),
        left_in(carry_bytes(c)),
        right_in(carry_bytes(c)) {
    q.set(in.q, c.tokens, first), k.set(in.k, c.tokens, first), v.set(in.v, c.tokens, first);
    d_o.set(in.d_o, c.tokens, first);
    if (c.decay == Decay::kHead) {
      head_decay.assign(in.decay.begin(), in.decay.end());
      d_head_decay.resize(head_decay.size());
    } else if (c.decay != Decay::kNone) {
      decay = std::make_unique<Tensor>(c, c.decay_dtype, problem.tokens, c.heads(), decay_dim(c));
      decay->set(in.decay, c.tokens, first);
      d_decay = std::make_unique<Tensor>(*decay);
    }
  }
  static int64_t decay_dim(const Case &c) { return c.decay == Decay::kChannel ? c.keys : 1; }
  static uint64_t carry_bytes(const Case &c) {
    return static_cast<uint64_t>(c.batch * c.heads() * c.keys) * c.values * sizeof(float);
  }
  static Problem make_problem(const Case &c, int64_t tokens) {
    Problem p;
    p.batch = c.batch, p.tokens = tokens;
    p.heads_q = c.heads_q, p.heads_k = c.heads_k, p.heads_v = c.heads_v, p.heads = c.heads();
    p.head_dim_k = c.keys, p.head_dim_v = c.values;
    p.dtype = c.dtype, p.decay_dtype = c.decay_dtype, p.decay = c.decay;
    p.bidirectional = c.bidirectional;
    p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.keys)));
    p.packed = !c.cu_seqlens.empty(), p.cu_seqlens = c.cu_seqlens, p.num_sequences = c.sequences();
    p.cache_chunks = c.cache_chunks, p.backward = true, p.chunk = c.chunk;
    return p;
  }
  void set_layouts(const Case &c) {
    const auto layout = [&](int64_t heads, int64_t dim) {
      return Tensor(c, c.dtype, problem.tokens, heads, dim).layout;
    };
    problem.q = problem.dq = layout(c.heads_q, c.keys);
    problem.k = problem.dk = layout(c.heads_k, c.keys);
    problem.v = problem.dv = layout(c.heads_v, c.values);
    problem.o = problem.d_o = layout(c.heads(), c.values);
    problem.decay_layout = problem.d_decay_layout = layout(c.heads(), decay_dim(c));
  }
  const void *decay_data() {
    return !head_decay.empty() ? static_cast<void *>(head_decay.data()) : decay ? decay->bytes.data() : nullptr;
  }
  void *d_decay_data() {
    return !head_decay.empty() ? static_cast<void *>(d_head_decay.data())
           : d_decay           ? d_decay->bytes.data()
                               : nullptr;
  }
};

// ---- All ranks together
// --------------------------------------------------------------------------------------------

enum class Ahead { kNone, kHalf, kAll };

struct Group {
  const Case &c;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<float> initial, d_final, final, d_initial;

  Group(const Case &c_, const Inputs &in)
      : c(c_),
        initial(in.initial_state.begin(), in.initial_state.end()),
        d_final(in.d_final_state.begin(), in.d_final_state.end()),
        final(initial.size(), NAN),
        d_initial(final) {
    TokenRanges ranges;
    ranges.begin = {0};
    for (const int64_t tokens : split()) ranges.begin.push_back(ranges.begin.back() + tokens);
    for (int32_t r = 0; r < ranges.nranks(); ++r) ranks.push_back(std::make_unique<Rank>(c, in, ranges, r));
  }
  std::vector<int64_t> split() const { return c.split.empty() ? std::vector<int64_t>{c.tokens} : c.split; }

  ForwardBuffers forward_buffers(Rank &r) {
    return {r.q.bytes.data(),
            r.k.bytes.data(),
            r.v.bytes.data(),
            r.decay_data(),
            c.states ? initial.data() : nullptr,
            r.o.bytes.data(),
            final.data(),
            r.cache.data(),
            r.forward_workspace.data()};
  }
  BackwardBuffers backward_buffers(Rank &r) {
    return {r.q.bytes.data(),
            r.k.bytes.data(),
            r.v.bytes.data(),
            r.decay_data(),
            c.states ? initial.data() : nullptr,
            r.d_o.bytes.data(),
            c.states ? d_final.data() : nullptr,
            r.cache.data(),
            r.dq.bytes.data(),
            r.dk.bytes.data(),
            r.dv.bytes.data(),
            r.d_decay_data(),
            d_initial.data(),
            r.backward_workspace.data()};
  }
  // Passes states along the ranks in their order (or against it) with the backends' own composition.
  void exchange(bool rightward) {
    const int64_t rows = c.batch * c.heads() * c.keys;
    const auto at = [&](size_t i) -> Rank & { return *ranks[rightward ? i : ranks.size() - 1 - i]; };
    for (size_t i = 0; i < ranks.size(); ++i) {
      Aligned &in = rightward ? at(i).left_in : at(i).right_in;
      std::memset(in.data(), 0, Rank::carry_bytes(c));
      if (i == 0) continue;
      Rank &by = at(i - 1);
      by.backend->compose(in.floats(), (rightward ? by.left_state : by.right_state).floats(),
                          (rightward ? by.left_factor : by.right_factor).floats(),
                          (rightward ? by.left_in : by.right_in).floats(), 0, rows);
    }
  }
  std::function<bool()> progress(const Rank &r, Ahead ahead) const {
    const auto items = static_cast<int64_t>(r.work.chunks.size()) * c.heads();
    return [=, calls = int64_t{0}]() mutable -> bool {
      return ahead == Ahead::kNone || (ahead == Ahead::kHalf && ++calls > items / 4);
    };
  }
  Incoming incoming(Rank &r, bool left, bool right) const {
    const bool first = &r == ranks.front().get(), last = &r == ranks.back().get();
    return {left && !first ? r.left_in.floats() : nullptr, right && !last ? r.right_in.floats() : nullptr};
  }

  void run(Ahead ahead, bool exchanging) {
    if (!exchanging) {
      ranks[0]->backend->forward_alone(forward_buffers(*ranks[0]));
      ranks[0]->backend->backward_alone(backward_buffers(*ranks[0]));
      return;
    }
    for (auto &r : ranks) {
      r->backend->forward_states(forward_buffers(*r), {r->left_state.floats(), r->left_factor.floats()},
                                 {r->right_state.floats(), r->right_factor.floats()});
      r->backend->forward_ahead(forward_buffers(*r), progress(*r, ahead));
    }
    exchange(true);
    if (c.bidirectional) exchange(false);
    for (auto &r : ranks) r->backend->forward_finish(forward_buffers(*r), incoming(*r, true, c.bidirectional));
    for (auto &r : ranks) {
      r->backend->backward_states(backward_buffers(*r), {r->left_state.floats(), r->left_factor.floats()},
                                  {r->right_state.floats(), r->right_factor.floats()});
      r->backend->backward_ahead(backward_buffers(*r), progress(*r, ahead));
    }
    exchange(false);
    if (c.bidirectional) exchange(true);
    for (auto &r : ranks) r->backend->backward_finish(backward_buffers(*r), incoming(*r, c.bidirectional, true));
  }

  Results results(const Results &shape) {
    Results out = shape;
    std::fill(out.d_decay.begin(), out.d_decay.end(), 0);
    for (auto &r : ranks) {
      r->o.get(out.o, c.tokens, r->first);
      r->dq.get(out.dq, c.tokens, r->first);
      r->dk.get(out.dk, c.tokens, r->first);
      r->dv.get(out.dv, c.tokens, r->first);
      if (r->d_decay) r->d_decay->get(out.d_decay, c.tokens, r->first);
      for (size_t h = 0; h < r->d_head_decay.size(); ++h) out.d_decay[h] += r->d_head_decay[h];
    }
    out.final_state.assign(final.begin(), final.end());
    out.d_initial_state.assign(d_initial.begin(), d_initial.end());
    // Sequences without tokens are the engine's business.
    const auto size = static_cast<size_t>(int64_t{c.heads()} * c.keys * c.values);
    for (size_t n = 0; n + 1 < c.cu_seqlens.size(); ++n) {
      if (c.cu_seqlens[n] != c.cu_seqlens[n + 1]) continue;
      EXPECT_TRUE(std::isnan(out.final_state[n * size]) && std::isnan(out.d_initial_state[n * size]));
      std::copy_n(shape.final_state.begin() + n * size, size, out.final_state.begin() + n * size);
      std::copy_n(shape.d_initial_state.begin() + n * size, size, out.d_initial_state.begin() + n * size);
    }
    return out;
  }
};

Inputs make_inputs(const Case &c) {
  std::mt19937 random(20240402);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(c.decay_low, c.decay_high);
  const auto fill = [&](int64_t count, DType type) {
    Values x(count);
    for (double &e : x) e = rounded(normal(random), type);
    return x;
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
  in.decay.resize(decays);
  for (double &g : in.decay) g = rounded(uniform(random), c.decay_dtype);
  return in;
}

double difference(const Values &a, const Values &b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) error += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return size == 0 ? std::sqrt(error) : std::sqrt(error / size);
}

// Float32 arithmetic leaves a relative error of a few units in the last place in each output, measured as a whole;
// rounding to the tensor's type adds its own.
constexpr double kBound = 2e-6;

void expect_close(const Case &c, const Results &got, const Results &want) {
  const double tensor = kBound + (c.dtype == DType::kFloat32 ? 0 : unit_roundoff(c.dtype));
  const double decay = kBound + (c.decay_dtype == DType::kFloat32 ? 0 : unit_roundoff(c.decay_dtype));
  EXPECT_LE(difference(got.o, want.o), tensor);
  EXPECT_LE(difference(got.dq, want.dq), tensor);
  EXPECT_LE(difference(got.dk, want.dk), tensor);
  EXPECT_LE(difference(got.dv, want.dv), tensor);
  if (want.head_terms.empty()) {
    EXPECT_LE(difference(got.d_decay, want.d_decay), decay);
  }
  // One number that sums terms of both signs over a whole sequence: its error goes with the terms.
  for (size_t h = 0; h < want.head_terms.size(); ++h) {
    EXPECT_LE(std::abs(got.d_decay[h] - want.d_decay[h]), 1e-6 * want.head_terms[h]);
  }
  EXPECT_LE(difference(got.final_state, want.final_state), kBound);
  EXPECT_LE(difference(got.d_initial_state, want.d_initial_state), kBound);
}

void expect_same(const Results &a, const Results &b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.final_state, b.final_state);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
  EXPECT_EQ(a.d_decay, b.d_decay);
  EXPECT_EQ(a.d_initial_state, b.d_initial_state);
}

class CpuBackend : public testing::TestWithParam<Case> {};

TEST_P(CpuBackend, AgreesWithTheRecurrence) {
  const Case &c = GetParam();
  const Inputs in = make_inputs(c);
  Oracle oracle{c, in, {}};
  oracle.run();
  if (c.split.size() <= 1) {
    Group alone(c, in);
    alone.run(Ahead::kNone, false);
    expect_close(c, alone.results(oracle.out), oracle.out);
  }
  Group late(c, in), half(c, in), early(c, in);
  late.run(Ahead::kNone, true);
  const Results first = late.results(oracle.out);
  expect_close(c, first, oracle.out);
  half.run(Ahead::kHalf, true);
  expect_same(half.results(oracle.out), first);
  early.run(Ahead::kAll, true);
  expect_same(early.results(oracle.out), first);

  // Outputs once more from the cache, with nothing exchanged.
  for (auto &r : early.ranks) std::fill(r->o.bytes.begin(), r->o.bytes.end(), 0x11);
  std::fill(early.final.begin(), early.final.end(), NAN);
  for (auto &r : early.ranks) r->backend->forward_from_cache(early.forward_buffers(*r));
  const Results again = early.results(oracle.out);
  EXPECT_EQ(again.o, first.o);
  EXPECT_LE(difference(again.final_state, first.final_state), kBound);
}

TEST_P(CpuBackend, DoesNotDependOnTheNumberOfThreads) {
  Case c = GetParam();
  if (c.split.size() > 1) GTEST_SKIP() << "about a group of one";
  const Inputs in = make_inputs(c);
  Oracle shape{c, in, {}};
  shape.run();
  c.threads = 1;
  Group one(c, in);
  one.run(Ahead::kNone, false);
  c.threads = 3;
  Group three(c, in);
  three.run(Ahead::kNone, false);
  expect_same(three.results(shape.out), one.results(shape.out));
}

TEST_P(CpuBackend, StepsLikeTheRecurrence) {
  const Case &c = GetParam();
  if (c.bidirectional || c.split.size() > 1) GTEST_SKIP() << "step is causal and for a group of one";
  const Inputs in = make_inputs(c);
  Oracle oracle{c, in, {}};
  oracle.run();
  Group group(c, in);
  Rank &r = *group.ranks[0];
  std::vector<float> state(group.initial.size(), 0.0f);
  if (c.states) state = group.initial;
  r.backend->step(
      {r.q.bytes.data(), r.k.bytes.data(), r.v.bytes.data(), r.decay_data(), state.data(), r.o.bytes.data()});
  std::copy(state.begin(), state.end(), group.final.begin());
  group.d_initial.assign(group.d_initial.size(), NAN);
  for (size_t n = 0; n + 1 < c.cu_seqlens.size(); ++n) {
    const auto size = static_cast<size_t>(int64_t{c.heads()} * c.keys * c.values);
    if (c.cu_seqlens[n] == c.cu_seqlens[n + 1]) std::fill_n(group.final.begin() + n * size, size, NAN);
  }
  const Results got = group.results(oracle.out);
  // One token after another: each may round the state once more in the same direction.
  const double bound = kBound + static_cast<double>(c.tokens) * 0x1p-24;
  EXPECT_LE(difference(got.o, oracle.out.o), bound + (c.dtype == DType::kFloat32 ? 0 : unit_roundoff(c.dtype)));
  EXPECT_LE(difference(got.final_state, oracle.out.final_state), bound);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const std::pair<const char *, Decay> kinds[] = {
      {"none", Decay::kNone}, {"head", Decay::kHead}, {"scalar", Decay::kScalar}, {"channel", Decay::kChannel}};
  for (const auto &[kind, decay] : kinds) {
    const auto add = [&, k = std::string(kind), d = decay](const std::string &name, Case c) {
      c.name = k + "_" + name;
      c.decay = d;
      cases.push_back(c);
    };
    add("plain", {.batch = 2, .tokens = 96});
    add("no_states", {.tokens = 70, .states = false});
    add("short", {.tokens = 5, .states = false});
    add("one_token", {.tokens = 1});
    add("tail", {.tokens = 131, .keys = 32, .values = 16});
    add("chunk16", {.tokens = 77, .chunk = 16});
    add("chunk128", {.tokens = 300, .keys = 64, .values = 40, .chunk = 128});
    add("chunk256",
        {.tokens = 530, .heads_q = 1, .heads_k = 1, .heads_v = 1, .keys = 24, .values = 64, .chunk = 256});
    add("incoming_cache", {.tokens = 131, .cache_chunks = false});
    add("grouped_queries", {.tokens = 80, .heads_q = 6, .heads_k = 2, .heads_v = 3});
    add("grouped_values", {.tokens = 80, .heads_q = 1, .heads_k = 2, .heads_v = 6, .cache_chunks = false});
    add("heads_first", {.batch = 2, .tokens = 67, .order = Order::kHeadsFirst});
    add("padded", {.batch = 2, .tokens = 67, .order = Order::kPadded});
    add("bfloat16", {.batch = 2,
                     .tokens = 75,
                     .heads_q = 2,
                     .heads_k = 1,
                     .heads_v = 2,
                     .dtype = DType::kBFloat16,
                     .order = Order::kPadded});
    add("float16", {.tokens = 75,
                    .dtype = DType::kFloat16,
                    .decay_dtype = decay == Decay::kHead ? DType::kFloat32 : DType::kFloat16});
    add("packed", {.tokens = 150, .cu_seqlens = {0, 17, 17, 50, 51, 150}});
    add("two_ranks", {.batch = 2, .tokens = 150, .split = {80, 70}});
    add("three_ranks", {.batch = 3, .tokens = 161, .heads_q = 4, .heads_k = 2, .heads_v = 1, .split = {64, 0, 97}});
    add("tiny_ranks", {.tokens = 20, .split = {1, 17, 0, 2}});
    add("ranks_no_states", {.tokens = 140, .states = false, .split = {70, 70}});
    add("ranks_incoming_cache", {.tokens = 161, .cache_chunks = false, .split = {60, 37, 64}});
    add("ranks_packed", {.tokens = 170,
                         .cache_chunks = false,
                         .cu_seqlens = {0, 40, 80, 80, 130, 150, 170},
                         .split = {80, 40, 50}});
    add("ranks_bfloat16", {.batch = 2,
                           .tokens = 150,
                           .heads_q = 2,
                           .heads_k = 1,
                           .heads_v = 2,
                           .cache_chunks = false,
                           .dtype = DType::kBFloat16,
                           .split = {80, 70}});
    add("ranks_float16", {.tokens = 150,
                          .dtype = DType::kFloat16,
                          .decay_dtype = decay == Decay::kHead ? DType::kFloat32 : DType::kFloat16,
                          .split = {80, 70}});
    if (decay != Decay::kNone) {
      add("strong", {.tokens = 150, .decay_low = -60, .decay_high = -60, .states = false, .chunk = 128});
      add("mixed", {.tokens = 400, .decay_low = -9, .decay_high = 0, .chunk = 128, .split = {150, 250}});
      add("weak", {.tokens = 1500, .decay_low = -1e-6f, .decay_high = -1e-6f, .chunk = 128});
      add("weak_ranks",
          {.tokens = 1500, .decay_low = -1e-6f, .decay_high = -1e-6f, .chunk = 128, .split = {700, 800}});
    }
  }
  for (Case c : std::vector<Case>{
           {.name = "plain", .batch = 2, .tokens = 96},
           {.name = "no_states", .tokens = 70, .states = false},
           {.name = "grouped", .tokens = 80, .heads_q = 6, .heads_k = 2, .heads_v = 3},
           {.name = "packed", .tokens = 150, .cu_seqlens = {0, 17, 17, 50, 51, 150}},
           {.name = "ranks", .batch = 2, .tokens = 161, .split = {64, 0, 97}},
           {.name = "ranks_packed",
           .tokens = 170,
           .cu_seqlens = {0, 40, 80, 80, 130, 150, 170},
           .split = {80, 40, 50}},
           {.name = "ranks_across", .tokens = 170, .cu_seqlens = {0, 20, 160, 170}, .split = {60, 60, 50}},
           {.name = "bfloat16", .tokens = 150, .heads_q = 1, .dtype = DType::kBFloat16, .split = {80, 70}}}) {
    c.name = "bidirectional_" + c.name;
    c.bidirectional = true;
    cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, CpuBackend, testing::ValuesIn(all_cases()),
                         [](const auto &info) { return info.param.name; });

}  // namespace
}  // namespace lasp
