// The backward pass under the delta rule.
#include <algorithm>
#include <atomic>

#include "delta_backend.h"
#include "gemm.h"

namespace lasp::cpu {

// Each chunk's T' and scores, which the chains of both directions read.
void DeltaBackend::prepare_chunks(const BackwardBuffers &b, const BackwardWorkspace &w) {
  const Problem &p = problem_;
  solve_chunks(b.k, w.states);
  parallel(chunks() * p.heads, [&](int64_t item, Scratch &s) {
    const auto head = static_cast<int32_t>(item % p.heads);
    const TokenSpan span = tokens_of(item / p.heads);
    math_.find_decay(s, span, head, kDecayScores);
    const Tile q = math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q);
    const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
    delta_.find_scores(s, span, q, k, square(w.scores, item));
  });
}

// The state before each chunk, where the forward pass kept only the one that came from other ranks.
void DeltaBackend::find_states(const BackwardBuffers &b, const BackwardWorkspace &w, FunctionRef<void()> between) {
  if (problem_.cache_chunks) return;
  const auto *incoming = static_cast<const float *>(b.state_cache);
  state_chains({b.k, b.v}, w.states, b.initial_state, nullptr, {false, nullptr}, {}, nullptr, between);
  state_chains({b.k, b.v}, w.states, b.initial_state, nullptr, {true, incoming}, {}, nullptr, between);
}

// All gradients of a chunk and head. `solved` and `scores` null: they are found here.
void DeltaBackend::gradient_head(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t chunk, int32_t head,
                                 const float *solved, const float *scores, const float *d_state, Scratch &s) const {
  const Problem &p = problem_;
  const TokenSpan span = tokens_of(chunk);
  const HeadInputs tiles = load_inputs(b, span, head, s);
  const DeltaInputs in{tiles.q, tiles.k, tiles.v, tiles.d_o};
  const bool zero = enters_with_zero(false, chunk, b.initial_state, static_cast<const float *>(b.state_cache));
  const float *state = zero ? nullptr : state_at(w.states.slots, chunk * p.heads + head);
  delta_.find_key_scores(s, span, in.k);
  if (solved == nullptr) {
    delta_.solve(s, span, s.solved);
    delta_.find_scores(s, span, in.q, in.k, s.score);
    solved = s.solved;
    scores = s.score;
  }
  delta_.find_written(s, span, solved, math_.decayed_query(s, span, in.k, s.k_in), in.v, state, p.head_dim_v);
  delta_.find_d_written(s, span, solved, scores, math_.decayed_key(s, span, in.k, s.k_out), in.d_o, d_state,
                        p.head_dim_v);
  const GradientTiles to = output_tiles(b, span, head, s, true);
  delta_.gradients(s, span, in, scores, state, d_state, to);
  delta_.store_d_beta(s, span, head, b.d_beta, b.adds(LASP_ADD_D_BETA));
  flush_tiles(b, to, span, chunk, head, true, true, w.head_dg, s);
}

void DeltaBackend::gradient_item(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t item,
                                 const float *incoming, Scratch &s) const {
  const int64_t chunk = item * group_ / problem_.heads;
  const auto first = static_cast<int32_t>(item * group_ % problem_.heads);
  const bool zero = enters_with_zero(true, chunk, b.d_final_state, incoming);
  for (int32_t head = first; head < first + group_; ++head) {
    const int64_t at = chunk * problem_.heads + head;
    math_.find_decay(s, tokens_of(chunk), head, kDecayAll);
    delta_.load_beta(s, tokens_of(chunk), head);
    gradient_head(b, w, chunk, head, square(w.states.solved, at), square(w.scores, at),
                  zero ? nullptr : state_at(w.slots, at), s);
  }
}

// A segment from its last chunk to its first, for a few neighbouring heads in turn; no other head shares their
// inputs.
void DeltaBackend::walk_backward(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t index, int32_t first,
                                 Scratch &s) const {
  const Problem &p = problem_;
  const Segment &segment = segment_at(index);
  const int64_t size = p.state_size(), at = states(segment.sequence) + first * size;
  if (b.d_final_state != nullptr) {
    std::copy_n(b.d_final_state + at, walk_heads_ * size, s.run);
  } else {
    std::fill_n(s.run, walk_heads_ * size, 0.0);
  }
  for (int64_t n = segment.first_chunk + segment.num_chunks - 1; n >= segment.first_chunk; --n) {
    const TokenSpan span = tokens_of(n);
    const bool zero = enters_with_zero(true, n, b.d_final_state, nullptr);
    const bool moves_on = n != segment.first_chunk || b.d_initial_state != nullptr;
    for (int32_t head = first; head < first + walk_heads_; ++head) {
      double *run = s.run + (head - first) * size;
      math_.find_decay(s, span, head, kDecayAll);
      delta_.load_beta(s, span, head);
      std::copy_n(run, size, s.joined);
      gradient_head(b, w, n, head, nullptr, nullptr, zero ? nullptr : s.joined, s);
      if (!moves_on) continue;
      const HeadInputs in = load_inputs(b, span, head, s);
      delta_.gradient_part(s, span, math_.decayed_query(s, span, in.q, s.q_in),
                           math_.decayed_query(s, span, in.k, s.k_in), in.d_o, p.head_dim_v, s.part);
      math_.kernels().scan_step(s.part, run, math_.total(s), p.head_dim_k, p.head_dim_v, false);
    }
  }
  if (b.d_initial_state == nullptr) return;
  for (int64_t i = 0; i < walk_heads_ * size; ++i)
    b.d_initial_state[at + i] =
        static_cast<float>(b.adds(LASP_ADD_D_INITIAL_STATE) ? b.d_initial_state[at + i] + s.run[i] : s.run[i]);
}

void DeltaBackend::backward_alone(const BackwardBuffers &b) {
  if (walk_heads_ == 0 || group_ != 1) {
    backward_states(b, {}, {});
    return backward_finish(b, {});
  }
  SerialBlas serial;
  math_.begin_pass(b.decay);
  delta_.begin_pass(b.beta);
  const BackwardWorkspace w = backward_workspace(b);
  if (!problem_.cache_chunks) solve_chunks(b.k, w.states);
  find_states(b, w, {});
  const int64_t walks = problem_.heads / walk_heads_;
  parallel(static_cast<int64_t>(partition_.segments.size()) * walks, [&](int64_t item, Scratch &s) {
    const auto first = static_cast<int32_t>(item % walks) * walk_heads_;
    walk_backward(b, w, walk_order_[static_cast<size_t>(item / walks)], first, s);
  });
  sum_head_decay(b, w.head_dg);
}

void DeltaBackend::backward_states(const BackwardBuffers &b, const AffineMapView &, const AffineMapView &right) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  delta_.begin_pass(b.beta);
  const BackwardWorkspace w = backward_workspace(b);
  prepare_chunks(b, w);
  gradient_chains(b, w, {false, nullptr}, right);
  complete_map(right, true, transitions_in(b.state_cache));
  std::fill(done_.begin(), done_.end(), 0);
  states_found_ = false;
}

void DeltaBackend::backward_resume(const BackwardBuffers &b) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  delta_.begin_pass(b.beta);
  gradient_chains(b, backward_workspace(b), {false, nullptr}, {});
  std::fill(done_.begin(), done_.end(), 0);
  states_found_ = false;
}

void DeltaBackend::backward_ahead(const BackwardBuffers &b, const Progress &progress) {
  SerialBlas serial;
  const BackwardWorkspace w = backward_workspace(b);
  std::atomic<bool> arrived{false};
  const auto look = [&] {
    if (!arrived.load(std::memory_order_relaxed) && progress()) arrived.store(true, std::memory_order_relaxed);
  };
  const FunctionRef<void()> between = look;
  find_states(b, w, between);
  states_found_ = true;
  parallel(
      chunks() * problem_.heads / group_,
      [&](int64_t item, Scratch &s) {
        if (arrived.load(std::memory_order_relaxed)) return;
        const int64_t chunk = item * group_ / problem_.heads;
        if (consumes(true, partition_.chunks[static_cast<size_t>(chunk)].segment)) return;
        gradient_item(b, w, item, nullptr, s);
        done_[static_cast<size_t>(item)] = 1;
      },
      between);
}

void DeltaBackend::backward_finish(const BackwardBuffers &b, const Incoming &incoming) {
  SerialBlas serial;
  const BackwardWorkspace w = backward_workspace(b);
  if (!states_found_) find_states(b, w, {});
  gradient_chains(b, w, {true, incoming.right}, {});
  parallel(chunks() * problem_.heads / group_, [&](int64_t item, Scratch &s) {
    if (done_[static_cast<size_t>(item)] == 0) gradient_item(b, w, item, incoming.right, s);
  });
  sum_head_decay(b, w.head_dg);
}

}  // namespace lasp::cpu
