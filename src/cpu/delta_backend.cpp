#include "delta_backend.h"

#include <algorithm>
#include <cstdio>

namespace lasp::cpu {

DeltaBackend::DeltaBackend(const Problem &problem, const TokenPartition &partition, ThreadPool &pool,
                           const Kernels &kernels)
    : RankWork(problem, partition, pool, kernels), delta_(problem, math_) {
  done_.resize(static_cast<size_t>(most_chunks() * problem.heads));
  may_pass_through_ = any_passes_through();
  char text[160];
  std::snprintf(text, sizeof text, "delta rule in chunks of %d tokens, %s, %s, %d threads; alone: %s",
                problem.chunk, name_of(products()), math_.kernels().name, pool.threads(),
                problem.packed    ? "as the packing of a pass allows"
                : walk_heads_ > 0 ? "walks along each sequence"
                                  : "inverses in parallel, then chains");
  describe(text);
}

bool DeltaBackend::any_passes_through() const {
  for (size_t i = 0; i < partition_.segments.size(); ++i)
    if (passes_through(static_cast<int64_t>(i))) return true;
  return false;
}

DeltaBackend::ForwardWorkspace DeltaBackend::forward_workspace(void *workspace, void *cache) const {
  Carver carver(workspace);
  ForwardWorkspace w{};
  w.states.solved = carver.take<float>(squares(most_chunks()));
  const bool in_cache = problem_.backward && problem_.cache_chunks;
  w.states.slots = in_cache ? static_cast<float *>(cache) : carver.take<float>(states(most_chunks()));
  w.bytes = carver.used();
  return w;
}

DeltaBackend::BackwardWorkspace DeltaBackend::backward_workspace(void *workspace, const void *cache) const {
  Carver carver(workspace);
  BackwardWorkspace w{};
  w.states.solved = carver.take<float>(squares(most_chunks()));
  w.scores = carver.take<float>(squares(most_chunks()));
  w.slots = carver.take<float>(states(most_chunks()));
  // The cache is only read here: its states are final.
  w.states.slots = problem_.cache_chunks ? const_cast<float *>(static_cast<const float *>(cache))
                                         : carver.take<float>(states(most_chunks()));
  w.head_dg = carver.take<double>(problem_.decay == Decay::kHead ? most_chunks() * problem_.heads : 0);
  w.bytes = carver.used();
  return w;
}

DeltaBackend::ForwardWorkspace DeltaBackend::forward_workspace(const ForwardBuffers &b) const {
  ForwardWorkspace w = forward_workspace(b.workspace, b.state_cache);
  if (b.carry != nullptr) w.states.solved = static_cast<float *>(b.carry);
  return w;
}

DeltaBackend::BackwardWorkspace DeltaBackend::backward_workspace(const BackwardBuffers &b) const {
  BackwardWorkspace w = backward_workspace(b.workspace, b.state_cache);
  if (b.carry == nullptr) return w;
  w.states.solved = static_cast<float *>(b.carry);
  w.scores = w.states.solved + squares(most_chunks());
  return w;
}

uint64_t DeltaBackend::forward_carry_bytes() const {
  return static_cast<uint64_t>(squares(most_chunks())) * sizeof(float);
}
uint64_t DeltaBackend::backward_carry_bytes() const { return 2 * forward_carry_bytes(); }

uint64_t DeltaBackend::forward_workspace_bytes() const { return forward_workspace(nullptr, nullptr).bytes; }
uint64_t DeltaBackend::backward_workspace_bytes() const { return backward_workspace(nullptr, nullptr).bytes; }

// The states, then the transitions [rows, H, K, K] where a state may pass through this rank.
uint64_t DeltaBackend::cache_bytes(bool chunks_kept) const {
  const int64_t floats = states(chunks_kept ? most_chunks() : partition_.rows()) +
                         (may_pass_through_ ? problem_.runs * map_.transition_floats() : 0);
  return static_cast<uint64_t>(floats) * sizeof(float);
}

const float *DeltaBackend::transitions_in(const void *cache) const {
  if (cache == nullptr || !may_pass_through_) return nullptr;
  return static_cast<const float *>(cache) + states(problem_.cache_chunks ? most_chunks() : partition_.rows());
}

// Whether the state that enters a chunk is known to be zero, so that its products can be left out.
bool DeltaBackend::enters_with_zero(bool reversed, int64_t chunk, const float *first_state,
                                    const float *incoming) const {
  const int64_t index = partition_.chunks[static_cast<size_t>(chunk)].segment;
  const Segment &segment = segment_at(index);
  if (chunk != segment.first_chunk + (reversed ? segment.num_chunks - 1 : 0)) return false;
  return (consumes(reversed, index) ? incoming : first_state) == nullptr;
}

// The arithmetic is AffineMap's own, a head at a time. A product may overwrite what multiplies, and not what it
// multiplies.
void DeltaBackend::compose(lasp_stream, AffineMapView to, std::span<const AffineMapView> later,
                           AffineMapView earlier, int64_t begin, int64_t end) {
  AffineMap head = map_;
  head.rows = head.heads = 1;
  const int64_t state = map_.slice_floats(), square = map_.head_transition_floats();
  const auto operand = [](const float *from, const float *result, int64_t floats, Scratch &s) {
    if (from == result) from = std::copy_n(from, floats, s.joined) - floats;
    return from;
  };
  parallel(end - begin, [&](int64_t item, Scratch &s) {
    const int64_t at = begin + item;
    float *const result = to.state + at * state;
    const float *const from = operand(earlier.state + at * state, result, state, s);
    if (later.empty()) return void(std::copy_n(from, state, result));
    head.apply(result, {later.front().state + at * state, later.front().transition + at * square}, from,
               head.all());
  });
  if (to.transition == nullptr) return;
  parallel(map_.slices(), [&](int64_t at, Scratch &s) {
    float *const result = to.transition + at * square;
    head.compose_transitions(result, later.front().transition + at * square,
                             operand(earlier.transition + at * square, result, square, s));
  });
}

}  // namespace lasp::cpu
