// The forward pass under the delta rule, and decoding.
#include <algorithm>
#include <atomic>

#include "delta_backend.h"
#include "gemm.h"

namespace lasp::cpu {

// A segment from its first chunk to its last, for a few neighbouring heads in turn; only where the whole sequence
// is here.
void DeltaBackend::walk_forward(const ForwardBuffers &b, int64_t index, int32_t first, Scratch &s) const {
  const Problem &p = problem_;
  const Segment &segment = segment_at(index);
  const int64_t size = p.state_size(), at = states(segment.sequence) + first * size;
  if (b.initial_state != nullptr) {
    std::copy_n(b.initial_state + at, walk_heads_ * size, s.run);
  } else {
    std::fill_n(s.run, walk_heads_ * size, 0.0);
  }
  for (int64_t n = segment.first_chunk; n < segment.first_chunk + segment.num_chunks; ++n) {
    const TokenSpan span = tokens_of(n);
    for (int32_t head = first; head < first + walk_heads_; ++head) {
      double *run = s.run + (head - first) * size;
      math_.find_decay(s, span, head, kDecayAll);
      delta_.load_beta(s, span, head);
      const Tile q = math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q);
      const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
      const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
      const bool zero = enters_with_zero(false, n, b.initial_state, nullptr);
      delta_.find_key_scores(s, span, k);
      delta_.solve(s, span, s.solved);
      std::copy_n(run, size, s.joined);
      const float *state = zero ? nullptr : s.joined;
      delta_.find_written(s, span, s.solved, math_.decayed_query(s, span, k, s.k_in), v, state, p.head_dim_v);
      delta_.find_scores(s, span, q, k, s.score);
      const OutTile o = math_.sink(b.o, p.o, head, span, p.head_dim_v, s.o, p.dtype, true);
      delta_.output(s, span, q, state, o);
      math_.flush(o, b.o, p.o, head, span, p.head_dim_v, p.dtype);
      delta_.state_part(s, span, k, p.head_dim_v, s.part);
      math_.kernels().scan_step(s.part, run, math_.total(s), p.head_dim_k, p.head_dim_v, ends_sequence(n));
      if (!p.backward || !p.cache_chunks) continue;
      float *before = state_at(static_cast<float *>(b.state_cache), n * p.heads + head);
      math_.kernels().store_rows(before, 0, s.part, 0, 1, size, DType::kFloat32, math_.streams());
    }
  }
  if (b.final_state != nullptr) std::copy_n(s.run, walk_heads_ * size, b.final_state + at);
}

// The output of one chunk and head, from the state that enters it. `solved` null: T' is found here.
void DeltaBackend::output_item(const ForwardBuffers &b, const float *slots, const float *solved, int64_t item,
                               bool zero, Scratch &s) const {
  const Problem &p = problem_;
  const auto head = static_cast<int32_t>(item % p.heads);
  const TokenSpan span = tokens_of(item / p.heads);
  math_.find_decay(s, span, head, kDecayIn | kDecayScores);
  delta_.load_beta(s, span, head);
  const Tile q = math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q);
  const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
  const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
  const float *state = zero ? nullptr : slots + item * p.state_size();
  if (solved == nullptr) {
    delta_.find_key_scores(s, span, k);
    delta_.solve(s, span, s.solved);
    solved = s.solved;
  }
  delta_.find_written(s, span, solved, math_.decayed_query(s, span, k, s.k_in), v, state, p.head_dim_v);
  delta_.find_scores(s, span, q, k, s.score);
  const OutTile o = math_.sink(b.o, p.o, head, span, p.head_dim_v, s.o, p.dtype, true);
  delta_.output(s, span, q, state, o);
  math_.flush(o, b.o, p.o, head, span, p.head_dim_v, p.dtype);
}

void DeltaBackend::forward_alone(const ForwardBuffers &b) {
  if (walk_heads_ == 0) {
    forward_states(b, {}, {});
    return forward_finish(b, {});
  }
  SerialBlas serial;
  math_.begin_pass(b.decay);
  delta_.begin_pass(b.beta);
  const int64_t walks = problem_.heads / walk_heads_;
  parallel(static_cast<int64_t>(partition_.segments.size()) * walks, [&](int64_t item, Scratch &s) {
    const auto first = static_cast<int32_t>(item % walks) * walk_heads_;
    walk_forward(b, walk_order_[static_cast<size_t>(item / walks)], first, s);
  });
  keep_incoming(b, nullptr);
}

void DeltaBackend::forward_states(const ForwardBuffers &b, const AffineMapView &left, const AffineMapView &) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  delta_.begin_pass(b.beta);
  const ForwardWorkspace w = forward_workspace(b);
  solve_chunks(b.k, w.states);
  // Kept for the backward pass, which has no other way to them.
  float *transitions = const_cast<float *>(transitions_in(b.state_cache));
  if (transitions == nullptr) transitions = left.transition;
  const bool wanted = (left.state != nullptr || b.keep_map) && any_passes_through();
  state_chains({b.k, b.v}, w.states, b.initial_state, b.final_state, {false, nullptr}, left,
               wanted ? transitions : nullptr);
  complete_map(left, false, transitions);
  std::fill(done_.begin(), done_.end(), 0);
}

// T' is in the carry and M in the state cache.
void DeltaBackend::forward_resume(const ForwardBuffers &b) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  delta_.begin_pass(b.beta);
  state_chains({b.k, b.v}, forward_workspace(b).states, b.initial_state, b.final_state, {false, nullptr}, {},
               nullptr);
  std::fill(done_.begin(), done_.end(), 0);
}

void DeltaBackend::forward_ahead(const ForwardBuffers &b, const Progress &progress) {
  SerialBlas serial;
  const ForwardWorkspace w = forward_workspace(b);
  std::atomic<bool> arrived{false};
  const auto look = [&] {
    if (!arrived.load(std::memory_order_relaxed) && progress()) arrived.store(true, std::memory_order_relaxed);
  };
  parallel(
      chunks() * problem_.heads,
      [&](int64_t item, Scratch &s) {
        const int64_t chunk = item / problem_.heads;
        if (arrived.load(std::memory_order_relaxed)) return;
        if (consumes(false, partition_.chunks[static_cast<size_t>(chunk)].segment)) return;
        const bool zero = enters_with_zero(false, chunk, b.initial_state, nullptr);
        output_item(b, w.states.slots, square(w.states.solved, item), item, zero, s);
        done_[static_cast<size_t>(item)] = 1;
      },
      look);
}

void DeltaBackend::forward_finish(const ForwardBuffers &b, const Incoming &incoming) {
  SerialBlas serial;
  const ForwardWorkspace w = forward_workspace(b);
  keep_incoming(b, incoming.left);
  state_chains({b.k, b.v}, w.states, b.initial_state, b.final_state, {true, incoming.left}, {}, nullptr);
  parallel(chunks() * problem_.heads, [&](int64_t item, Scratch &s) {
    if (done_[static_cast<size_t>(item)] != 0) return;
    const bool zero = enters_with_zero(false, item / problem_.heads, b.initial_state, incoming.left);
    output_item(b, w.states.slots, square(w.states.solved, item), item, zero, s);
  });
}

// With the incoming state cached: the forward pass again, up to the exchange and on from it. With chunk states
// cached: outputs at once; a final state takes what the last chunk writes.
void DeltaBackend::forward_from_cache(const ForwardBuffers &b) {
  if (!problem_.cache_chunks) {
    forward_states(b, {}, {});
    return forward_finish(b, {.left = static_cast<const float *>(b.state_cache)});
  }
  SerialBlas serial;
  math_.begin_pass(b.decay);
  delta_.begin_pass(b.beta);
  const auto *cache = static_cast<const float *>(b.state_cache);
  parallel(chunks() * problem_.heads, [&](int64_t item, Scratch &s) {
    // Only "not null" matters of the incoming state here: the slot already holds it.
    const bool zero = enters_with_zero(false, item / problem_.heads, b.initial_state, cache);
    output_item(b, cache, nullptr, item, zero, s);
    final_from_last_chunk(b, item, zero, s);
  });
}

// A sequence and head at a time. Where its tokens are one segment here, as without Problem::segment they are.
void DeltaBackend::step(const StepBuffers &b) {
  const Problem &p = problem_;
  math_.begin_pass(b.decay);
  delta_.begin_pass(b.beta);
  parallel(static_cast<int64_t>(partition_.segments.size()) * p.heads, [&](int64_t item, Scratch &s) {
    const Segment &segment = segment_at(item / p.heads);
    const auto head = static_cast<int32_t>(item % p.heads);
    float *state = b.state + states(segment.sequence) + head * p.state_size();
    for (int64_t t = segment.begin; t < std::min(segment.end, b.tokens); ++t) {
      const TokenSpan span = {segment.row, t, 1};
      const Tile q = math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q);
      const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
      const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
      delta_.load_beta(s, span, head);
      delta_.step(s, state, math_.token_factor(s, span, head), q, k, v, s.o);
      math_.flush({s.o, p.head_dim_v}, b.o, p.o, head, span, p.head_dim_v, p.dtype);
    }
  });
}

}  // namespace lasp::cpu
