// The backward pass around an exchange: what needs nothing from later ranks may be done while it runs, the rest
// after it. Partial sums wait in the outputs themselves where those are float32, else in the workspace; the
// arithmetic does not depend on how much was done ahead.
#include <algorithm>
#include <atomic>

#include "cpu_backend.h"
#include "gemm.h"

namespace lasp::cpu {

GradientTiles CpuBackend::staged_tiles(const BackwardBuffers &b, const BackwardRoom &room, const Place &place,
                                       int32_t head, Scratch &s) const {
  const Problem &p = problem_;
  GradientTiles to = output_tiles(b, place, head, s, false);
  const int64_t token = place.row * p.tokens + place.token;
  const auto stage = [&](OutTile &tile, const float *scratch, float *room_at, int64_t heads, int64_t h,
                         int64_t dim) {
    if (tile.data == scratch) tile = {room_at + (token * heads + h) * dim, static_cast<int>(heads * dim)};
  };
  stage(to.dk, s.dk, room.staged_dk, p.heads_k, p.k_head(head), p.head_dim_k);
  stage(to.dv, s.dv, room.staged_dv, p.heads_v, p.v_head(head), p.head_dim_v);
  if (to.dg_channel.data != nullptr)
    stage(to.dg_channel, s.dg, room.staged_dg_channel, p.heads, head, p.head_dim_k);
  return to;
}

void CpuBackend::backward_local(const BackwardBuffers &b, const BackwardRoom &room, int64_t item,
                                Scratch &s) const {
  const Problem &p = problem_;
  const int64_t chunk = item * group_ / p.heads;
  const auto first = static_cast<int32_t>(item * group_ % p.heads);
  const Place place = place_of(chunk);
  for (int32_t head = first; head < first + group_; ++head) {
    math_.find_decay(s, place, head, kDecayIn | kDecayScores);
    const HeadInputs in = load_inputs(b, place, head, s);
    const GradientTiles to = staged_tiles(b, room, place, head, s);
    math_.local_gradients(s, place, in.q, in.k, in.v, in.d_o, state_before(b, room, chunk, head), to);
    flush_tiles(b, to, place, chunk, head, true, false, room, s);
    if (to.dg == nullptr) continue;
    double *staged = room.staged_dg + ((place.row * p.tokens + place.token) * p.heads + head);
    for (int t = 0; t < place.length; ++t) staged[int64_t{t} * p.heads] = to.dg[t];
  }
}

void CpuBackend::backward_incoming(const BackwardBuffers &b, const BackwardRoom &room, int64_t item,
                                   const float *incoming, Scratch &s) const {
  const Problem &p = problem_;
  const int64_t chunk = item * group_ / p.heads;
  const auto first = static_cast<int32_t>(item * group_ % p.heads);
  const Place place = place_of(chunk);
  for (int32_t head = first; head < first + group_; ++head) {
    const GradientTiles to = staged_tiles(b, room, place, head, s);
    if (to.dg != nullptr) {
      const double *staged = room.staged_dg + ((place.row * p.tokens + place.token) * p.heads + head);
      for (int t = 0; t < place.length; ++t) to.dg[t] = staged[int64_t{t} * p.heads];
    }
    join_incoming(room.gradients, true, incoming, chunk, head);
    const float *d_state = gradient_after(b, room, chunk, head, incoming);
    if (d_state != nullptr) {
      math_.find_decay(s, place, head, kDecayOut);
      const Tile k = math_.load(b.k, p.k, p.k_head(head), place, p.head_dim_k, s.k);
      const Tile v = math_.load(b.v, p.v, p.v_head(head), place, p.head_dim_v, s.v);
      math_.incoming_gradients(s, place, k, v, state_before(b, room, chunk, head), d_state, to);
    }
    flush_tiles(b, to, place, chunk, head, false, true, room, s);
  }
}

void CpuBackend::backward_states(const BackwardBuffers &b, const AffineMapView &left, const AffineMapView &right) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  const BackwardRoom room = backward_room(b.workspace, b.state_cache);
  gradient_parts(b, room);
  std::fill(done_.begin(), done_.end(), Done::kNothing);
  states_found_ = false;
  if (problem_.bidirectional)
    return bidirectional_sums(room.gradients.slots, room.sums, b.d_final_state, true, left, right);
  scan(room.gradients, {true, b.d_final_state, b.d_initial_state}, right);
  passed_ = room.gradients;
  passed_reversed_ = true;
}

void CpuBackend::backward_ahead(const BackwardBuffers &b, const Progress &progress) {
  SerialBlas serial;
  const BackwardRoom room = backward_room(b.workspace, b.state_cache);
  std::atomic<bool> arrived{false};
  const auto look = [&] {
    if (!arrived.load(std::memory_order_relaxed) && progress()) arrived.store(true, std::memory_order_relaxed);
  };
  const FunctionRef<void()> between = look;
  if (problem_.bidirectional) return bidirectional_queries(b, arrived, between);
  find_states(b, room, between);
  states_found_ = true;
  parallel(
      chunks() * problem_.heads / group_,
      [&](int64_t item, Scratch &s) {
        if (arrived.load(std::memory_order_relaxed)) return;
        backward_local(b, room, item, s);
        const int64_t chunk = item * group_ / problem_.heads;
        const auto first = static_cast<int32_t>(item * group_ % problem_.heads);
        bool later = false;
        for (int32_t h = first; h < first + group_; ++h) later = later || reached(room.gradients, true, chunk, h);
        later = later && waits(true, work_.chunks[static_cast<size_t>(chunk)].segment);
        if (!later) backward_incoming(b, room, item, nullptr, s);
        done_[static_cast<size_t>(item)] = later ? Done::kLocal : Done::kAll;
      },
      between);
}

void CpuBackend::backward_finish(const BackwardBuffers &b, const Incoming &incoming) {
  SerialBlas serial;
  const BackwardRoom room = backward_room(b.workspace, b.state_cache);
  if (problem_.bidirectional) return bidirectional_gradients(b, room, incoming);
  if (!states_found_) find_states(b, room, {});
  finish_tails(room.gradients, {true, b.d_final_state, b.d_initial_state}, incoming.right);
  parallel(chunks() * problem_.heads / group_, [&](int64_t item, Scratch &s) {
    const Done done = done_[static_cast<size_t>(item)];
    if (done == Done::kAll) return;
    if (done == Done::kNothing) backward_local(b, room, item, s);
    backward_incoming(b, room, item, incoming.right, s);
  });
  sum_head_decay(b, room);
}

}  // namespace lasp::cpu
