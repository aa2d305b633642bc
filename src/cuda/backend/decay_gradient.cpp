#include "cuda/backend/decay_gradient.h"

#include <algorithm>

#include "cuda/backend/packed_tables.h"
#include "cuda/cut/cut_heads.h"

namespace lasp::cuda {
namespace {

// The states of tiles take what is left of kWorkspaceShare, since fewer and larger tiles are faster; a smaller
// share of the tensors' bytes where they are spare.
constexpr int64_t kSpareTileShare = 100;
// Of what the passes' own states take, they may take one part in so many whatever is left: of many short sequences
// these take more than the tensors, and tiles of a few runs would be launches without end.
constexpr int64_t kStatesShare = 16;

// What the states of short runs may take in the workspace.
uint64_t most_bytes(const PlanInputs &inputs, bool spare, uint64_t other_bytes, uint64_t staged_bytes) {
  const uint64_t tensors = inputs.tensor_bytes(), all = tensors / kWorkspaceShare;
  const uint64_t left = all > other_bytes ? all - other_bytes : 0;
  return std::max(
      {spare ? std::min(left, tensors / kSpareTileShare) : left, other_bytes / kStatesShare, staged_bytes});
}

}  // namespace

DecayGradients::DecayGradients(Tables &tables, const DevicePlan &plan, bool spare, uint64_t other_bytes,
                               uint64_t staged_bytes)
    : plan_(plan), scan_(plan) {
  choose_tiles(tables, spare, most_bytes(plan.inputs, spare, other_bytes, staged_bytes));
}

// Of as many heads at once as there is room for, whole groups or an even part of one, else of one head and as many
// of the passes' runs, one at least. Unless the states are spare, there is room in any case for two blocks to a
// multiprocessor.
void DecayGradients::choose_tiles(Tables &tables, bool spare, uint64_t most) {
  const Problem &p = plan_.problem();
  const Choices &choices = plan_.choices;
  const int64_t decay_run_tokens = plan_.inputs.decay_run_tokens();
  // States of parts of runs are no states once they are scanned.
  const bool in_parts = choices.state_tokens < choices.run_tokens;
  if (!in_parts && choices.run_tokens <= decay_run_tokens) return;
  const int64_t blocks_of_run = (p.decay == Decay::kChannel ? p.head_dim_k + 63 : 256) / 64;
  const auto fits = [&](int32_t heads, int64_t runs) {
    Carver carver(nullptr);
    Workspace workspace;
    place_tile(carver, workspace, heads, runs);
    return carver.used() <= most || (!spare && heads * runs * blocks_of_run <= 2 * plan_.multiprocessors);
  };
  ShortRunCount count = count_short_runs(plan_.partition(), choices.run_tokens, decay_run_tokens);
  if (plan_.packed != nullptr) count.all = count.longest * plan_.cut.num_runs;
  const int32_t group = plan_.inputs.heads_in_group();
  tile_heads_ = 1;
  for (int32_t heads = 2; heads <= p.heads; ++heads)
    if ((group % heads == 0 || heads % group == 0) && fits(heads, count.all)) tile_heads_ = heads;
  int64_t runs = count.all;
  while (runs > count.longest && !fits(tile_heads_, runs)) runs = std::max(count.longest, runs * 7 / 8);
  if (plan_.packed != nullptr) return make_packed_windows(std::max<int64_t>(1, count.longest), runs);
  short_runs_.emplace(
      tables, cut_short_runs(plan_.partition(), choices.run_tokens, choices.state_tokens, decay_run_tokens, runs));
}

void DecayGradients::make_packed_windows(int64_t parts, int64_t runs) {
  short_runs_.emplace(*plan_.packed, plan_.cut, plan_.inputs.decay_run_tokens(), parts,
                      std::max<int64_t>(1, runs / parts));
}

void DecayGradients::place(Carver &carver, Workspace &workspace) const {
  if (short_runs_) return place_tile(carver, workspace, tile_heads_, short_runs_->most);
  gpu::DecayGradient pass = base_pass({});
  pass.num_runs = plan_.cut.num_states;
  workspace.kernel = carver.take<float>(gpu::decay_gradient_workspace(pass));
}

void DecayGradients::place_tile(Carver &carver, Workspace &workspace, int32_t heads, int64_t runs) const {
  gpu::DecayGradient pass = base_pass({});
  pass.heads = heads;
  pass.num_runs = runs;
  pass.run_tokens = plan_.inputs.decay_run_tokens();
  workspace.kernel = carver.take<float>(gpu::decay_gradient_workspace(pass));
  workspace.states.place(carver, plan_.inputs, runs, heads, true);
  workspace.gradients.place(carver, plan_.inputs, runs, heads, true);
}

gpu::DecayGradient DecayGradients::base_pass(const BackwardBuffers &b) const {
  gpu::DecayGradient pass{plan_.inputs.backward_pass(plan_.cut.state_runs.span(), b)};
  pass.run_tokens = plan_.cut.longest_state_run;
  if (plan_.choices.tensor_cores) pass.set = plan_.kernels.decay_gradient();
  return pass;
}

void DecayGradients::run(const BackwardBuffers &b, const ScanWorkspace &states, const ScanWorkspace &gradients,
                         const Workspace &workspace) const {
  if (b.d_decay == nullptr) return;
  if (short_runs_) return run_by_tile(b, states, gradients, workspace);
  gpu::DecayGradient pass = base_pass(b);
  pass.state = states.slots;
  pass.d_state = gradients.slots;
  pass.workspace = workspace.kernel;
  check_launch(gpu::launch_decay_gradient(pass, plan_.stream), "gradients of the decay");
}

void DecayGradients::tile_states(const BackwardBuffers &b, bool reversed, const ScanWorkspace &entering,
                                 const ScanWorkspace &workspace, const HeadTile &tile) const {
  const Problem &p = plan_.problem();
  const PlanInputs &inputs = plan_.inputs;
  gpu::GenericPass pass = inputs.base_pass(short_runs_->runs.span(), nullptr);
  pass.runs += tile.window.first_run;
  pass.num_runs = tile.window.num_runs;
  pass.heads = tile.heads;
  pass.g = cut_decay(b.decay, pass.decay, pass.g_strides.head, size_of(p.decay_dtype), tile.first_head);
  pass.reversed = reversed;
  const auto cut = [&](const gpu::Tensor &x) {
    return cut_heads(x, size_of(p.dtype), p.heads, tile.first_head, tile.heads);
  };
  pass.a = inputs.k_of(nullptr);  // only its width is used
  pass.b = cut(reversed ? inputs.q_of(b.q) : inputs.k_of(b.k));
  pass.c = cut(reversed ? inputs.do_of(b.d_o) : inputs.v_of(b.v));
  pass.y = inputs.o_of(nullptr);
  pass.out_scale = reversed ? inputs.backward_scale() : 1;
  pass.state_out = workspace.slots;
  plan_.run_pass(pass, "states for the gradient of the decay");

  gpu::StateScan scan;
  scan.shape = inputs.state_shape();
  scan.shape.heads = tile.heads;
  scan.segments = short_runs_->segments.data() + tile.window.first_segment;
  scan.num_segments = tile.window.num_segments;
  scan.reversed = reversed;
  scan.slots = workspace.slots;
  if (p.decay == Decay::kHead) {
    scan.runs = pass.runs;
    scan.head_decay = static_cast<const float *>(pass.g);
  } else {
    gpu::RunFactors factors = scan_.run_factors(plan_.cut, pass.g, workspace.factors);
    factors.runs = pass.runs;
    factors.num_runs = pass.num_runs;
    factors.heads = tile.heads;
    check_launch(gpu::launch_run_factors(factors, plan_.stream), "summing decays");
    scan.factors = workspace.factors;
  }
  if (entering.slots != nullptr) scan.starts = entering.slots + tile.first_head * p.state_size();
  scan.start_of = short_runs_->entered_at[reversed].data() + tile.window.first_segment;
  scan.start_stride = p.heads * p.state_size();
  check_launch(gpu::launch_state_scan(scan, plan_.stream), "scanning states");
}

void DecayGradients::run_by_tile(const BackwardBuffers &b, const ScanWorkspace &states,
                                 const ScanWorkspace &gradients, const Workspace &workspace) const {
  const Problem &p = plan_.problem();
  const int64_t element = size_of(p.dtype), decay_element = size_of(p.decay_dtype),
                d_decay_element = size_of(p.d_decay_dtype);
  for (int32_t first = 0; first < p.heads; first += tile_heads_) {
    const int32_t count = std::min(tile_heads_, p.heads - first);
    gpu::DecayGradient pass = base_pass(b);
    for (gpu::Tensor *x : {&pass.q, &pass.k, &pass.v, &pass.d_o})
      *x = cut_heads(*x, element, p.heads, first, count);
    pass.g = cut_decay(pass.g, pass.decay, pass.g_strides.head, decay_element, first);
    pass.d_g = const_cast<void *>(cut_decay(pass.d_g, pass.decay, pass.d_g_strides.head, d_decay_element, first));
    pass.heads = count;
    pass.run_tokens = plan_.inputs.decay_run_tokens();
    pass.state = workspace.states.slots;
    pass.d_state = workspace.gradients.slots;
    pass.workspace = workspace.kernel;
    const std::span<const ShortRuns::Window> windows = short_runs_->windows();
    for (const ShortRuns::Window &window : windows) {
      tile_states(b, false, states, workspace.states, {first, count, window});
      tile_states(b, true, gradients, workspace.gradients, {first, count, window});
      pass.runs = short_runs_->runs.data() + window.first_run;
      pass.num_runs = window.num_runs;
      pass.first = &window == &windows.front();
      pass.last = &window == &windows.back();
      check_launch(gpu::launch_decay_gradient(pass, plan_.stream), "gradients of the decay");
    }
  }
}

}  // namespace lasp::cuda
