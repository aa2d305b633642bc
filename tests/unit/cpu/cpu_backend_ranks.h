// For cpu_backend_test.cpp: ranks with a CPU backend each, their tensors in the case's layout, and the exchange
// between them done by hand.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/cpu_backend.h"
#include "cpu_backend_oracle.h"
#include "engine/backend.h"

namespace lasp::cpu_test {

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
  // body(elements before it, where it is) for each row of `dim` elements, whose `total` tokens begin before
  // `first`.
  template <class F>
  void each_row(int64_t total, int64_t first, F &&body) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t h = 0; h < heads; ++h)
          body(((b * total + first + t) * heads + h) * dim, bytes.data() + layout.offset(b, t, h) * size_of(type));
  }
  // The kernels take eight elements at a time.
  int64_t padded_dim() const { return (dim + 7) / 8 * 8; }
  size_t row_bytes() const { return static_cast<size_t>(dim * size_of(type)); }
  void set(const Values &all, int64_t total, int64_t first) {
    std::vector<float> x(static_cast<size_t>(padded_dim()));
    std::vector<char> raw(x.size() * 4);
    each_row(total, first, [&](int64_t before, char *at) {
      for (int64_t d = 0; d < dim; ++d) x[d] = static_cast<float>(all[before + d]);
      encode(raw.data(), x.data(), padded_dim(), type);
      std::memcpy(at, raw.data(), row_bytes());
    });
  }
  void get(Values &all, int64_t total, int64_t first) {
    std::vector<float> x(static_cast<size_t>(padded_dim()));
    std::vector<char> raw(x.size() * 4);
    each_row(total, first, [&](int64_t before, char *at) {
      std::memcpy(raw.data(), at, row_bytes());
      decode(x.data(), raw.data(), padded_dim(), type);
      std::copy_n(x.begin(), dim, all.begin() + before);
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
  TokenPartition partition;
  int64_t first;
  ThreadPool pool;
  std::unique_ptr<cpu::RankWork> backend;
  Tensor q, k, v, d_o, o, dq, dk, dv;
  std::unique_ptr<Tensor> decay, d_decay;
  std::vector<float> head_decay, d_head_decay;
  Aligned cache, forward_workspace, backward_workspace, left_state, left_transition, right_state, right_transition,
      left_in, right_in;

  Rank(const Case &c, const Inputs &in, const TokenRanges &ranges, int32_t rank)
      : problem(make_problem(c, ranges.tokens(rank))),
        partition((set_layouts(c), make_token_partition(problem, ranges, rank))),
        first(ranges.begin[rank]),
        pool(c.threads),
        backend(std::make_unique<cpu::CpuBackend>(problem, partition, pool, *c.kernels)),
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
        left_state(state_bytes(c)),
        left_transition(state_bytes(c)),
        right_state(state_bytes(c)),
        right_transition(state_bytes(c)),
        left_in(state_bytes(c)),
        right_in(state_bytes(c)) {
    if (problem.packed) backend->repack(ranges, rank, c.cu_seqlens);
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
  AffineMapView left() { return {left_state.floats(), left_transition.floats()}; }
  AffineMapView right() { return {right_state.floats(), right_transition.floats()}; }
  static int64_t decay_dim(const Case &c) { return c.decay == Decay::kChannel ? c.keys : 1; }
  static uint64_t state_bytes(const Case &c) {
    return static_cast<uint64_t>(c.batch * c.heads() * c.keys) * c.values * sizeof(float);
  }
  static Problem make_problem(const Case &c, int64_t tokens) {
    Problem p;
    p.batch = c.batch, p.tokens = tokens;
    p.heads_q = c.heads_q, p.heads_k = c.heads_k, p.heads_v = c.heads_v, p.heads = c.heads();
    p.head_dim_k = c.keys, p.head_dim_v = c.values;
    p.dtype = p.dq_dtype = p.dk_dtype = p.dv_dtype = c.dtype, p.decay = c.decay;
    p.decay_dtype = p.d_decay_dtype = c.decay_dtype;
    p.bidirectional = c.bidirectional;
    p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.keys)));
    p.packed = !c.cu_seqlens.empty(), p.num_sequences = c.sequences();
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
    return {r.q.bytes.data(), r.k.bytes.data(),
            r.v.bytes.data(), r.decay_data(),
            nullptr,          c.states ? initial.data() : nullptr,
            r.o.bytes.data(), final.data(),
            r.cache.data(),   r.forward_workspace.data()};
  }
  BackwardBuffers backward_buffers(Rank &r) {
    return {r.q.bytes.data(),
            r.k.bytes.data(),
            r.v.bytes.data(),
            r.decay_data(),
            nullptr,
            c.states ? initial.data() : nullptr,
            r.d_o.bytes.data(),
            c.states ? d_final.data() : nullptr,
            r.cache.data(),
            r.dq.bytes.data(),
            r.dk.bytes.data(),
            r.dv.bytes.data(),
            r.d_decay_data(),
            nullptr,
            d_initial.data(),
            r.backward_workspace.data(),
            0};
  }
  // Passes states along the ranks in their order (or against it) with the backends' own composition.
  void exchange(bool rightward) {
    const int64_t rows = c.batch * c.heads() * c.keys;
    const auto at = [&](size_t i) -> Rank & { return *ranks[rightward ? i : ranks.size() - 1 - i]; };
    for (size_t i = 0; i < ranks.size(); ++i) {
      Aligned &in = rightward ? at(i).left_in : at(i).right_in;
      std::memset(in.data(), 0, Rank::state_bytes(c));
      if (i == 0) continue;
      Rank &by = at(i - 1);
      const AffineMapView map = rightward ? by.left() : by.right();
      const AffineMapView earlier{(rightward ? by.left_in : by.right_in).floats(), nullptr};
      by.backend->compose(nullptr, {in.floats(), nullptr}, {&map, 1}, earlier, 0, rows);
    }
  }
  std::function<bool()> progress(const Rank &r, Ahead ahead) const {
    const auto items = static_cast<int64_t>(r.partition.chunks.size()) * c.heads();
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
      r->backend->forward_states(forward_buffers(*r), r->left(), r->right());
      r->backend->forward_ahead(forward_buffers(*r), progress(*r, ahead));
    }
    exchange(true);
    if (c.bidirectional) exchange(false);
    for (auto &r : ranks) r->backend->forward_finish(forward_buffers(*r), incoming(*r, true, c.bidirectional));
    for (auto &r : ranks) {
      r->backend->backward_states(backward_buffers(*r), r->left(), r->right());
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

}  // namespace lasp::cpu_test
