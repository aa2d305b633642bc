// What a plan decides about its kernels: tensor cores or not, and how long the runs are that its tokens are cut
// into.
#include <algorithm>
#include <numeric>

#include "cuda/backend/stream_backend.h"

namespace lasp::cuda {
namespace {

// A run of a pass in so many to find its state by: where runs are several, all but the last ones' states are asked
// for, and in smaller pieces these spread over all multiprocessors again.
constexpr int64_t kStateRuns = 4;
// Of all tensors' bytes the workspace is to take one part in so many. The states for the gradient of the decay take
// what is left of that, since fewer and larger slabs are faster; less where they are spare: for unaligned pointers
// alone.
constexpr int64_t kWorkspaceShare = 10, kSpareSlabShare = 100;
// Of what the passes' own states take, they may take one part in so many whatever is left: of many short sequences
// these take more than the tensors, and slabs of a few runs would be launches without end.
constexpr int64_t kStatesShare = 16;

// Parts of a run that leave a rank are found by, of at least so many tokens: with decay few of them count, and
// those by blocks of their own.
constexpr int64_t kTailParts = 16, kLeastTailPart = 1024;

int64_t longest_segment(const Work &work) {
  int64_t longest = 1;
  for (const Segment &segment : work.segments) longest = std::max(longest, segment.end - segment.begin);
  return longest;
}

// Whether a state from another rank enters any segment.
bool waits(const Work &work) {
  const auto enters = [](const RowCarry &row) { return row.consumer >= 0; };
  return std::any_of(work.forward.begin(), work.forward.end(), enters) ||
         std::any_of(work.backward.begin(), work.backward.end(), enters);
}

}  // namespace

// All passes of a plan cut the tokens alike, so either all are for the tensor cores or none.
bool StreamBackend::choose_kernels() {
  if (problem_.bidirectional) {
    why_not_ = "the tensor-core kernel is causal";
    return false;
  }
  void *const aligned = reinterpret_cast<void *>(kAlignment);  // pointers are looked at again in each call
  const Problem &p = problem_;
  gpu::GenericPass pass = base_pass({}, aligned);
  const auto serves = [&](const gpu::Tensor &a, const gpu::Tensor &b, const gpu::Tensor &c, const gpu::Tensor &y) {
    pass.a = a, pass.b = b, pass.c = c, pass.y = y;
    return tensor_cores(pass, &why_not_);
  };
  const gpu::Tensor q = q_of(aligned), k = k_of(aligned), v = v_of(aligned), d_o = do_of(aligned);
  bool all = serves(q, k, v, o_of(aligned));
  if (!p.backward) return all;
  const auto gradient = [&](const Layout &layout, int32_t heads, int32_t dim) {
    return heads == p.heads ? tensor(aligned, layout, heads, dim) : staged_tensor(aligned, p.heads, dim);
  };
  all = all && serves(d_o, v, k, gradient(p.dq, p.heads_q, p.head_dim_k));
  all = all && serves(k, q, d_o, gradient(p.dv, p.heads_v, p.head_dim_v));
  return all && serves(v, d_o, q, gradient(p.dk, p.heads_k, p.head_dim_k));
}

// Of the recurrent kernels: some turns of the warps that a multiprocessor holds, so that the last turn weighs
// little. More runs than that are more states, in memory and to be moved.
int64_t StreamBackend::choose_recurrent_run_tokens() const {
  constexpr int64_t kWarps = 16, kTurns = 6, kTile = 32;
  const Problem &p = problem_;
  const int64_t warps = std::max<int64_t>(1, static_cast<int64_t>(work_.segments.size())) * p.heads *
                        ((p.head_dim_k + kTile - 1) / kTile) * ((p.head_dim_v + kTile - 1) / kTile);
  const int64_t runs = std::max<int64_t>(1, multiprocessors_ * kWarps * kTurns / warps);
  const int64_t tokens = (longest_segment(work_) + runs - 1) / runs, step = p.chunk;
  return std::min((tokens + step - 1) / step * step, int64_t{1} << 28);
}

// As long as the blocks still fill the device: each further run costs a pass over k and v to find its state.
int64_t StreamBackend::choose_run_tokens() const {
  if (!tensor_cores_) return choose_recurrent_run_tokens();
  // The walks of per-channel decay fit a multiprocessor twice, and have no checkpoints.
  const bool channel = problem_.decay == Decay::kChannel;
  constexpr int64_t kTile = 64 * kStateRuns, kFusedTile = std::lcm(kTile, int64_t{gpu::kFusedCheckpoint});
  const int64_t step = channel ? kTile : kFusedTile, longest = step << 20;
  gpu::GenericPass pass = base_pass({}, nullptr);
  pass.a = q_of(nullptr);
  pass.y = o_of(nullptr);
  int64_t of_head = gpu::linear_pass_blocks(pass);
  if (problem_.backward) {  // dq and dk see the state transposed
    pass.a = do_of(nullptr);
    pass.y = q_of(nullptr);
    of_head = std::min<int64_t>(of_head, gpu::linear_pass_blocks(pass));
  }
  const auto segments = static_cast<int64_t>(work_.segments.size());
  const int64_t blocks = std::max<int64_t>(1, segments) * problem_.heads * of_head;
  const int64_t runs = std::max<int64_t>(1, multiprocessors_ * (channel ? 2 : 1) / blocks);
  return std::min(longest, ((longest_segment(work_) + runs - 1) / runs + step - 1) / step * step);
}

// The states pass of per-channel decay is bound by memory with a block to a run as it is.
bool StreamBackend::states_fill_device() const {
  void *const aligned = reinterpret_cast<void *>(kAlignment);
  gpu::GenericPass pass = base_pass({}, aligned);
  pass.b = k_of(aligned), pass.c = v_of(aligned);
  if (!channel_states_serve(pass)) return false;
  pass.b = q_of(aligned), pass.c = do_of(aligned);
  return !problem_.backward || channel_states_serve(pass);
}

// One run to a segment needs no state found before it, unless another rank does.
int64_t StreamBackend::choose_state_tokens() const {
  if (!tensor_cores_) return run_tokens_;
  const int64_t longest = longest_segment(work_);
  if (longest > run_tokens_) return states_fill_device() ? run_tokens_ : run_tokens_ / kStateRuns;
  if (!forgets() || !waits(work_)) return run_tokens_;
  return std::max(kLeastTailPart, (longest / kTailParts + 63) / 64 * 64);
}

// (run, head) of all segments.
int64_t StreamBackend::fused_items(int64_t run_tokens) const {
  const auto segments = std::max<int64_t>(1, static_cast<int64_t>(work_.segments.size()));
  return segments * problem_.heads * ((longest_segment(work_) + run_tokens - 1) / run_tokens);
}

// Of grouped heads with more runs than are worked on at once the workspace is to keep to its share: fewer
// multiprocessors are in clusters than there are, so that most numbers of runs leave a part of the last turn empty.
bool StreamBackend::fused_runs_fit(int64_t items) const {
  if (problem_.heads_k == problem_.heads || items <= fused_blocks_) return true;
  gpu::FusedBackward pass = fused_pass(aligned_buffers(), {});
  pass.num_runs = items / problem_.heads;
  pass.num_checkpoints = (problem_.batch * problem_.tokens + gpu::kFusedCheckpoint - 1) / gpu::kFusedCheckpoint;
  BackwardRoom room;
  Carver walk(nullptr), staged(nullptr);
  walk.take<float>(items * problem_.state_size());
  walk.take<float>(gpu::fused_backward_workspace(pass));
  place_staged(staged, room);
  return std::max(walk.used(), staged.used()) <= tensor_bytes() / kWorkspaceShare;
}

// As many runs as finish soonest, fused_blocks_ of (run, head) at a time; of equals, and of nearly equals, the
// fewest: each further one costs a pass over q and do to find its gradient of the state. They begin at checkpoints.
int64_t StreamBackend::choose_fused_run_tokens() const {
  constexpr int64_t kStep = gpu::kFusedCheckpoint, kMostRuns = 16,
                    kStart = 128;  // tokens' worth of a block's start
  const int64_t longest = longest_segment(work_);
  int64_t best = 0, best_time = 0;
  for (int64_t runs = 1; runs <= kMostRuns; ++runs) {
    const int64_t tokens = ((longest + runs - 1) / runs + kStep - 1) / kStep * kStep;
    const int64_t items = fused_items(tokens);
    if (runs > 1 && !fused_runs_fit(items)) continue;
    const int64_t waves = (items + fused_blocks_ - 1) / fused_blocks_;
    const int64_t time = waves * (std::min(tokens, longest) + kStart);
    if (best == 0 || time * 20 < best_time * 19) best = tokens, best_time = time;
  }
  return std::min(best, kStep << 20);
}

// Where runs are several, their gradients of the state are found in parts of so many tokens at least: more of them
// where other ranks wait for the result.
int64_t StreamBackend::choose_fused_state_tokens(int64_t run_tokens) const {
  constexpr int64_t kLeast = 512;
  const int64_t longest = longest_segment(work_);
  if (longest > run_tokens) {
    const bool whole = problem_.heads_k < problem_.heads && fused_items(run_tokens) > fused_blocks_;  // see above
    int64_t parts = whole ? 1 : waits(work_) ? 4 : 2;
    while (parts > 1 && run_tokens / parts < kLeast) parts /= 2;
    return run_tokens / parts;
  }
  if (!forgets() || !waits(work_)) return run_tokens;
  return std::max(kLeastTailPart, (longest / kTailParts + 63) / 64 * 64);
}

uint64_t StreamBackend::dense_bytes(const Layout &layout, int32_t heads, int32_t dim) const {
  const Problem &p = problem_;
  const int64_t elements = p.batch * p.tokens * heads * dim;
  if (layout.extent(p.batch, p.tokens, heads, dim) != elements) return 0;
  return static_cast<uint64_t>(elements * size_of(p.dtype));
}

uint64_t StreamBackend::forward_result_bytes() const {
  if (problem_.bidirectional || reach_tells(false) || cut_.independent[0].size() > 0) return 0;  // work goes ahead
  return dense_bytes(problem_.o, problem_.heads, problem_.head_dim_v);
}

uint64_t StreamBackend::backward_result_bytes() const {
  if (problem_.bidirectional || reach_tells(true)) return 0;
  return dense_bytes(problem_.dv, problem_.heads_v, problem_.head_dim_v);
}

// A multiple of every group of heads that shares a head of q, k or v.
int32_t StreamBackend::group_step() const {
  const Problem &p = problem_;
  return std::lcm(std::lcm(p.heads / p.heads_q, p.heads / p.heads_k), p.heads / p.heads_v);
}

// That the backward pass reads and writes.
uint64_t StreamBackend::tensor_bytes() const {
  const Problem &p = problem_;
  const int64_t of_k = int64_t{p.heads_q} + p.heads_k, of_v = int64_t{p.heads_v} + p.heads;
  int64_t of_token = (2 * of_k * p.head_dim_k + (of_v + p.heads_v) * p.head_dim_v) * size_of(p.dtype);
  if (p.decay == Decay::kChannel) of_token += 2 * p.heads * p.head_dim_k * size_of(p.decay_dtype);
  return static_cast<uint64_t>(p.batch * p.tokens * of_token);
}

// What the states of short runs may take in the workspace.
uint64_t StreamBackend::slab_bytes() const {
  const uint64_t tensors = tensor_bytes();
  Carver taken(nullptr);
  BackwardRoom room;
  place_states(taken, room);
  Carver fused = taken;
  place_gradients(taken, room);
  if (fused_cut_) place_fused_gradients(fused, room);
  if (fused.used() > taken.used()) taken = fused;
  const uint64_t all = tensors / kWorkspaceShare, left = all > taken.used() ? all - taken.used() : 0;
  const uint64_t most = fused_ || channel_ ? std::min(left, tensors / kSpareSlabShare) : left;
  Carver staged(nullptr);  // is there before them, in the same place
  if (!channel_) place_staged(staged, room);
  return std::max({most, taken.used() / kStatesShare, staged.used()});
}

// The gradient of the decay is found around short runs. Their states: of as many heads at once as there is room
// for, whole groups or an even part of one, else of one head and as many of the passes' runs, one at least. Unless
// they are spare, there is room in any case for two blocks to a multiprocessor.
void StreamBackend::choose_slabs(Tables &tables) {
  // States of parts of runs are no states once they are scanned.
  const bool in_parts = state_tokens_ < run_tokens_;
  if (!in_parts && run_tokens_ <= decay_run_tokens()) return;
  const uint64_t most = slab_bytes();
  const bool spare = fused_ || channel_;
  const int64_t blocks_of_run = (problem_.decay == Decay::kChannel ? problem_.head_dim_k + 63 : 256) / 64;
  const auto fits = [&](int32_t heads, int64_t runs) {
    Carver carver(nullptr);
    BackwardRoom room;
    place_slab(carver, room, heads, runs);
    return carver.used() <= most || (!spare && heads * runs * blocks_of_run <= 2 * multiprocessors_);
  };
  const ShortRunCount count = count_short_runs(work_, run_tokens_, decay_run_tokens());
  const int32_t step = group_step();
  slab_heads_ = 1;
  for (int32_t heads = 2; heads <= problem_.heads; ++heads)
    if ((step % heads == 0 || heads % step == 0) && fits(heads, count.all)) slab_heads_ = heads;
  int64_t runs = count.all;
  while (runs > count.longest && !fits(slab_heads_, runs)) runs = std::max(count.longest, runs * 7 / 8);
  short_runs_.emplace(tables, cut_short_runs(work_, run_tokens_, state_tokens_, decay_run_tokens(), runs));
}

}  // namespace lasp::cuda
