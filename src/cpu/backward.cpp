// The backward pass over a rank's chunks and heads. Time runs backward: each chunk's part of the gradient of the
// state, a scan from the last chunk to the first, then the gradients of the inputs. A work item is a chunk and a
// group of heads that share input heads, so that sums over a group happen in one place and in one order.
#include <algorithm>
#include <atomic>

#include "cpu_backend.h"
#include "gemm.h"

namespace lasp::cpu {

void CpuBackend::gradient_parts(const BackwardBuffers &b, const BackwardWorkspace &w) {
  const Problem &p = problem_;
  const int64_t size = math_.factor_size();
  parallel(chunks() * p.heads, [&](int64_t item, Scratch &s) {
    const auto head = static_cast<int32_t>(item % p.heads);
    const TokenSpan span = tokens_of(item / p.heads);
    math_.find_decay(s, span, head, kDecayIn);
    if (math_.has_logs()) std::copy_n(s.decay.log_total, size, w.gradients.logs + item * size);
    const Tile query = math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q);
    const Tile d_o = math_.load(b.d_o, p.d_o, head, span, p.head_dim_v, s.d_o);
    math_.gradient_part(s, span, query, d_o, w.gradients.slots + item * p.state_size());
  });
}

// The state before each chunk, where the forward pass kept only the one that came from other ranks. The arithmetic
// is the forward pass's own.
void CpuBackend::find_states(const BackwardBuffers &b, const BackwardWorkspace &w, FunctionRef<void()> between) {
  if (problem_.cache_chunks) return;
  state_parts(b.k, b.v, w.states, between);
  const ScanDirection direction{false, b.initial_state, nullptr};
  scan(w.states, direction, {});
  const auto *incoming = static_cast<const float *>(b.state_cache);
  if (problem_.segment > 0) fold(w.states, direction, {}, incoming, true);
  parallel(chunks() * problem_.heads, [&](int64_t item, Scratch &) {
    join_incoming(w.states, false, incoming, item / problem_.heads, static_cast<int32_t>(item % problem_.heads));
  });
}

const float *CpuBackend::state_before(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t chunk,
                                      int32_t head) const {
  const auto *cache = static_cast<const float *>(b.state_cache);
  if (enters_with_zero({false, b.initial_state, nullptr}, chunk, cache)) return nullptr;
  return w.states.slots + (chunk * problem_.heads + head) * problem_.state_size();
}

// The gradient of the state after a chunk; null for zero.
const float *CpuBackend::gradient_after(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t chunk,
                                        int32_t head, const float *incoming) const {
  if (enters_with_zero({true, b.d_final_state, nullptr}, chunk, incoming)) return nullptr;
  return w.gradients.slots + (chunk * problem_.heads + head) * problem_.state_size();
}

// All gradients of one chunk and head at once.
void CpuBackend::backward_head(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t chunk, int32_t head,
                               const HeadInputs &in, const float *d_state, Scratch &s) const {
  const TokenSpan span = tokens_of(chunk);
  const GradientTiles to = output_tiles(b, span, head, s, true);
  const float *state = state_before(b, w, chunk, head);
  math_.local_gradients(s, span, in.q, in.k, in.v, in.d_o, state, to);
  if (d_state != nullptr) math_.incoming_gradients(s, span, in.k, in.v, state, d_state, to);
  flush_tiles(b, to, span, chunk, head, true, true, w.head_dg, s);
}

// A segment from its last chunk to its first, for a few neighbouring heads in turn; no other head shares their
// inputs.
void CpuBackend::walk_backward(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t index, int32_t first,
                               Scratch &s) const {
  const Problem &p = problem_;
  const Segment &segment = partition_.segments[static_cast<size_t>(index)];
  const int64_t count = walk_heads_ * p.state_size(), at = (segment.sequence * p.heads + first) * p.state_size();
  if (b.d_final_state != nullptr) {
    std::copy_n(b.d_final_state + at, count, s.run);
  } else {
    std::fill_n(s.run, count, 0.0);
  }
  const int64_t last = segment.first_chunk + segment.num_chunks - 1;
  for (int64_t n = last; n >= segment.first_chunk; --n) {
    const TokenSpan span = tokens_of(n);
    const bool zero = n == last && b.d_final_state == nullptr;
    const bool moves_on = n != segment.first_chunk || b.d_initial_state != nullptr;
    for (int32_t head = first; head < first + walk_heads_; ++head) {
      double *run = s.run + (head - first) * p.state_size();
      math_.find_decay(s, span, head, kDecayAll);
      const HeadInputs in = load_inputs(b, span, head, s);
      if (moves_on) {
        math_.gradient_part(s, span, in.q, in.d_o, s.part);
        math_.kernels().scan_step(s.part, run, math_.total(s), p.head_dim_k, p.head_dim_v, false);
      } else {
        std::copy_n(run, p.state_size(), s.part);
      }
      backward_head(b, w, n, head, in, zero ? nullptr : s.part, s);
    }
  }
  if (b.d_initial_state != nullptr) backward_in_time(b).put_last(s.run, count, at);
}

void CpuBackend::backward_alone(const BackwardBuffers &b) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  const BackwardWorkspace w = backward_workspace(b);
  if (problem_.bidirectional || problem_.segment > 0) {
    backward_states(b, {}, {});
    return backward_finish(b, {});
  }
  find_states(b, w, {});
  const int64_t heads = problem_.heads;
  if (walk_heads_ != 0 && group_ == 1) {
    const int64_t walks = heads / walk_heads_;
    parallel(static_cast<int64_t>(partition_.segments.size()) * walks, [&](int64_t item, Scratch &s) {
      const auto first = static_cast<int32_t>(item % walks) * walk_heads_;
      walk_backward(b, w, walk_order_[static_cast<size_t>(item / walks)], first, s);
    });
  } else {
    gradient_parts(b, w);
    scan(w.gradients, backward_in_time(b), {});
    parallel(chunks() * heads / group_, [&](int64_t item, Scratch &s) {
      const int64_t chunk = item * group_ / heads;
      const auto first = static_cast<int32_t>(item * group_ % heads);
      for (int32_t head = first; head < first + group_; ++head) {
        math_.find_decay(s, tokens_of(chunk), head, kDecayAll);
        const HeadInputs in = load_inputs(b, tokens_of(chunk), head, s);
        backward_head(b, w, chunk, head, in, gradient_after(b, w, chunk, head, nullptr), s);
      }
    });
  }
  sum_head_decay(b, w.head_dg);
}

}  // namespace lasp::cpu
