// The backward pass around an exchange: what needs nothing from later ranks may be done while it runs, the rest
// after it. Partial sums wait in the outputs themselves where those are float32, else in the workspace; the
// arithmetic does not depend on how much was done ahead.
#include <algorithm>
#include <atomic>

#include "cpu_backend.h"
#include "gemm.h"

namespace lasp::cpu {

GradientTiles CpuBackend::staged_tiles(const BackwardBuffers &b, const BackwardWorkspace &w, const TokenSpan &span,
                                       int32_t head, Scratch &s) const {
  const Problem &p = problem_;
  GradientTiles to = output_tiles(b, span, head, s, false);
  const int64_t token = span.row * p.tokens + span.token;
  const auto stage = [&](OutTile &tile, const float *scratch, float *room_at, int64_t heads, int64_t h,
                         int64_t dim) {
    if (tile.data == scratch) tile = {room_at + (token * heads + h) * dim, static_cast<int>(heads * dim)};
  };
  stage(to.dk, s.dk, w.staged_dk, p.heads_k, p.k_head(head), p.head_dim_k);
  stage(to.dv, s.dv, w.staged_dv, p.heads_v, p.v_head(head), p.head_dim_v);
  if (to.dg_channel.data != nullptr) stage(to.dg_channel, s.dg, w.staged_dg_channel, p.heads, head, p.head_dim_k);
  return to;
}

void CpuBackend::backward_local(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t item,
                                Scratch &s) const {
  const Problem &p = problem_;
  const int64_t chunk = item * group_ / p.heads;
  const auto first = static_cast<int32_t>(item * group_ % p.heads);
  const TokenSpan span = tokens_of(chunk);
  for (int32_t head = first; head < first + group_; ++head) {
    math_.find_decay(s, span, head, kDecayIn | kDecayScores);
    const HeadInputs in = load_inputs(b, span, head, s);
    const GradientTiles to = staged_tiles(b, w, span, head, s);
    math_.local_gradients(s, span, in.q, in.k, in.v, in.d_o, state_before(b, w, chunk, head), to);
    flush_tiles(b, to, span, chunk, head, true, false, w.head_dg, s);
    if (to.dg == nullptr) continue;
    double *staged = w.staged_dg + ((span.row * p.tokens + span.token) * p.heads + head);
    for (int t = 0; t < span.length; ++t) staged[int64_t{t} * p.heads] = to.dg[t];
  }
}

void CpuBackend::backward_incoming(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t item,
                                   const float *incoming, Scratch &s) const {
  const Problem &p = problem_;
  const int64_t chunk = item * group_ / p.heads;
  const auto first = static_cast<int32_t>(item * group_ % p.heads);
  const TokenSpan span = tokens_of(chunk);
  for (int32_t head = first; head < first + group_; ++head) {
    const GradientTiles to = staged_tiles(b, w, span, head, s);
    if (to.dg != nullptr) {
      const double *staged = w.staged_dg + ((span.row * p.tokens + span.token) * p.heads + head);
      for (int t = 0; t < span.length; ++t) to.dg[t] = staged[int64_t{t} * p.heads];
    }
    join_incoming(w.gradients, true, incoming, chunk, head);
    const float *d_state = gradient_after(b, w, chunk, head, incoming);
    if (d_state != nullptr) {
      math_.find_decay(s, span, head, kDecayOut);
      const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
      const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
      math_.incoming_gradients(s, span, k, v, state_before(b, w, chunk, head), d_state, to);
    }
    flush_tiles(b, to, span, chunk, head, false, true, w.head_dg, s);
  }
}

void CpuBackend::backward_states(const BackwardBuffers &b, const AffineMapView &left, const AffineMapView &right) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  const BackwardWorkspace w = backward_workspace(b);
  gradient_parts(b, w);
  std::fill(done_.begin(), done_.end(), Done::kNothing);
  states_found_ = false;
  if (problem_.bidirectional)
    return bidirectional_sums(w.gradients.slots, w.sums, b.d_final_state, true, left, right);
  scan(w.gradients, backward_in_time(b), right);
  passed_ = w.gradients;
  passed_reversed_ = true;
}

void CpuBackend::backward_ahead(const BackwardBuffers &b, const Progress &progress) {
  SerialBlas serial;
  const BackwardWorkspace w = backward_workspace(b);
  std::atomic<bool> arrived{false};
  const auto look = [&] {
    if (!arrived.load(std::memory_order_relaxed) && progress()) arrived.store(true, std::memory_order_relaxed);
  };
  const FunctionRef<void()> between = look;
  if (problem_.bidirectional) return bidirectional_queries(b, arrived, between);
  find_states(b, w, between);
  states_found_ = true;
  parallel(
      chunks() * problem_.heads / group_,
      [&](int64_t item, Scratch &s) {
        if (arrived.load(std::memory_order_relaxed)) return;
        backward_local(b, w, item, s);
        const int64_t chunk = item * group_ / problem_.heads;
        const auto first = static_cast<int32_t>(item * group_ % problem_.heads);
        bool later = false;
        for (int32_t h = first; h < first + group_; ++h) later = later || depends(w.gradients, true, chunk, h);
        later = later && waits(true, partition_.chunks[static_cast<size_t>(chunk)].segment);
        if (!later) backward_incoming(b, w, item, nullptr, s);
        done_[static_cast<size_t>(item)] = later ? Done::kLocal : Done::kAll;
      },
      between);
}

void CpuBackend::backward_finish(const BackwardBuffers &b, const Incoming &incoming) {
  SerialBlas serial;
  const BackwardWorkspace w = backward_workspace(b);
  if (problem_.bidirectional) return bidirectional_gradients(b, w, incoming);
  if (!states_found_) find_states(b, w, {});
  finish_tails(w.gradients, backward_in_time(b), incoming.right);
  parallel(chunks() * problem_.heads / group_, [&](int64_t item, Scratch &s) {
    const Done done = done_[static_cast<size_t>(item)];
    if (done == Done::kAll) return;
    if (done == Done::kNothing) backward_local(b, w, item, s);
    backward_incoming(b, w, item, incoming.right, s);
  });
  sum_head_decay(b, w.head_dg);
}

}  // namespace lasp::cpu
