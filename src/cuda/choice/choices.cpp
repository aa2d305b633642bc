#include "cuda/choice/choices.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "cuda/cut/runs.h"

namespace lasp::cuda {
namespace {

// If a segment has several runs, each is cut into so many parts to find its state, so that more blocks share the
// work. With decays that forget, heads have unequal work, and there are more parts.
constexpr int64_t kStateRuns = 4, kUnequalStateRuns = 8;
// If a segment is one run whose state leaves the rank, it is cut into so many parts at most, of at least so many
// tokens. Without decays that forget: into as many as fill the device.
constexpr int64_t kTailParts = 16, kLeastTailPart = 512;

void *const kAligned = reinterpret_cast<void *>(kAlignment);  // pointers are looked at again in each call

class Choosing {
 public:
  Choosing(const PlanInputs &inputs, const KernelFinder &kernels, int32_t multiprocessors)
      : inputs_(inputs),
        problem_(inputs.problem()),
        partition_(inputs.partition()),
        kernels_(kernels),
        multiprocessors_(multiprocessors) {}

  Choices choose() {
    made_.tensor_cores = choose_tensor_cores();
    made_.run_tokens = choose_run_tokens();
    made_.state_tokens = choose_state_tokens();
    if (problem_.backward && made_.tensor_cores) choose_fused();
    if (problem_.backward && !problem_.bidirectional) made_.channel = channel_kernels() != gpu::KernelSet::kGeneric;
    return made_;
  }

 private:
  bool choose_tensor_cores();
  int64_t choose_recurrent_run_tokens() const;
  int64_t choose_run_tokens() const;
  int64_t choose_state_tokens() const;
  int64_t runs_that_fill_device(int64_t blocks_of_head) const;
  bool has_hopper_channels() const;
  gpu::KernelSet channel_kernels() const;
  bool has_channel_states() const;
  int64_t channel_state_parts() const;
  void choose_fused();
  int64_t fused_items(int64_t run_tokens) const;
  bool fused_runs_fit(int64_t items) const;
  int64_t choose_fused_run_tokens() const;
  int64_t choose_fused_state_tokens() const;

  const PlanInputs &inputs_;
  const Problem &problem_;
  const TokenPartition &partition_;
  const KernelFinder &kernels_;
  const int32_t multiprocessors_;
  Choices made_;
};

// All passes of a plan cut the tokens alike, so either all are for the tensor cores or none.
bool Choosing::choose_tensor_cores() {
  if (problem_.bidirectional) {
    made_.why_not = "the tensor-core kernel is causal";
    return false;
  }
  const Problem &p = problem_;
  gpu::LinearPass pass = inputs_.base_pass({}, kAligned);
  const auto serves = [&](const gpu::Tensor &a, const gpu::Tensor &b, const gpu::Tensor &c, const gpu::Tensor &y,
                          bool transposed = false, bool float32 = false) {
    pass.a = a, pass.b = b, pass.c = c, pass.y = y, pass.state_transposed = transposed, pass.y_float32 = float32;
    return kernels_.linear_pass(pass, &made_.why_not) != gpu::KernelSet::kGeneric;
  };
  const gpu::Tensor q = inputs_.q_of(kAligned), k = inputs_.k_of(kAligned), v = inputs_.v_of(kAligned),
                    d_o = inputs_.do_of(kAligned);
  bool all = serves(q, k, v, inputs_.o_of(kAligned));
  if (!p.backward) return all;
  const auto gradient = [&](const gpu::Tensor &to) {
    return to.heads == p.heads ? to : inputs_.by_output_head(kAligned, p.heads, to.dim);
  };
  const auto wide = [](DType type) { return type == DType::kFloat32; };
  all = all && serves(d_o, v, k, gradient(inputs_.dq_of(kAligned)), true, wide(p.dq_dtype));
  all = all && serves(k, q, d_o, gradient(inputs_.dv_of(kAligned)), false, wide(p.dv_dtype));
  return all && serves(v, d_o, q, gradient(inputs_.dk_of(kAligned)), true, wide(p.dk_dtype));
}

// Of the recurrent kernels: some turns of the warps that a multiprocessor holds, so that the last turn weighs
// little. More runs than that are more states, in memory and to be moved.
int64_t Choosing::choose_recurrent_run_tokens() const {
  constexpr int64_t kWarps = 16, kTurns = 6, kTile = 32;
  const Problem &p = problem_;
  const int64_t warps = std::max<int64_t>(1, static_cast<int64_t>(partition_.segments.size())) * p.heads *
                        ((p.head_dim_k + kTile - 1) / kTile) * ((p.head_dim_v + kTile - 1) / kTile);
  const int64_t runs = std::max<int64_t>(1, multiprocessors_ * kWarps * kTurns / warps);
  const int64_t tokens = (inputs_.longest_segment() + runs - 1) / runs, step = p.chunk;
  return std::min((tokens + step - 1) / step * step, int64_t{1} << 28);
}

// Where decay is per channel, two blocks of the walks in mma/ fit a multiprocessor, and one of the kernels in
// hopper/. There a block has 128 columns of o or dv, or 128 channels of dq and dk. Where K is 64 it has 64 of two
// heads.
int64_t Choosing::runs_that_fill_device(int64_t blocks_of_head) const {
  const Problem &p = problem_;
  const int64_t items = std::max<int64_t>(1, static_cast<int64_t>(partition_.segments.size())) * p.heads;
  if (p.decay != Decay::kChannel) return multiprocessors_ / (items * blocks_of_head);
  if (!has_hopper_channels()) return 2 * multiprocessors_ / (items * blocks_of_head);
  if (p.head_dim_k == 64) return multiprocessors_ / ((items * ((p.head_dim_v + 63) / 64) + 1) / 2);
  const int64_t width = p.backward ? std::min(p.head_dim_k, p.head_dim_v) : p.head_dim_v;
  return multiprocessors_ / (items * ((width + 127) / 128));
}

bool Choosing::has_hopper_channels() const {
  gpu::LinearPass pass = inputs_.base_pass({}, kAligned);
  pass.a = inputs_.q_of(kAligned), pass.b = inputs_.k_of(kAligned), pass.c = inputs_.v_of(kAligned);
  pass.y = inputs_.o_of(kAligned);
  if (kernels_.linear_pass(pass) != gpu::KernelSet::kHopper) return false;
  return !problem_.backward || channel_kernels() == gpu::KernelSet::kHopper;
}

gpu::KernelSet Choosing::channel_kernels() const {
  if (inputs_.has_wide_gradients()) return gpu::KernelSet::kGeneric;
  return kernels_.channel_backward(channel_pass(inputs_, {}, PlanInputs::aligned_buffers(), nullptr, nullptr));
}

// As long as the blocks still fill the device: each further run costs a pass over k and v to find its state.
int64_t Choosing::choose_run_tokens() const {
  if (!made_.tensor_cores) return choose_recurrent_run_tokens();
  const bool channel = problem_.decay == Decay::kChannel;  // without checkpoints
  constexpr int64_t kTile = 64 * kUnequalStateRuns, kFusedTile = std::lcm(kTile, int64_t{gpu::kFusedCheckpoint});
  const int64_t step = channel ? kTile : kFusedTile, longest = step << 20;
  gpu::LinearPass pass = inputs_.base_pass({}, nullptr);
  pass.a = inputs_.q_of(nullptr);
  pass.y = inputs_.o_of(nullptr);
  int64_t of_head = kernels_.linear_pass_blocks(pass);
  if (problem_.backward) {  // dq and dk see the state transposed
    pass.a = inputs_.do_of(nullptr);
    pass.y = inputs_.q_of(nullptr);
    pass.state_transposed = true;
    of_head = std::min<int64_t>(of_head, kernels_.linear_pass_blocks(pass));
  }
  const int64_t runs = std::max<int64_t>(1, runs_that_fill_device(of_head));
  return std::min(longest, ((inputs_.longest_segment() + runs - 1) / runs + step - 1) / step * step);
}

bool Choosing::has_channel_states() const {
  gpu::LinearPass pass = inputs_.base_pass({}, kAligned);
  pass.b = inputs_.k_of(kAligned), pass.c = inputs_.v_of(kAligned);
  if (!kernels_.channel_states(pass)) return false;
  pass.b = inputs_.q_of(kAligned), pass.c = inputs_.do_of(kAligned);
  return !problem_.backward || kernels_.channel_states(pass);
}

// The states pass of per-channel decay has a block for each tile of the state. With two blocks on each
// multiprocessor it is bound by memory. Runs of the kernels in hopper/ are fewer than that.
int64_t Choosing::channel_state_parts() const {
  if (!has_hopper_channels()) return 1;
  const auto tiles = [](int64_t dim) { return dim % 128 == 0 ? dim / 128 : dim / 64; };
  const int64_t runs = (inputs_.longest_segment() + made_.run_tokens - 1) / made_.run_tokens,
                blocks = runs * std::max<int64_t>(1, static_cast<int64_t>(partition_.segments.size())) *
                         problem_.heads * tiles(problem_.head_dim_k) * tiles(problem_.head_dim_v);
  return int64_t(std::bit_floor(uint64_t(std::clamp<int64_t>(2 * multiprocessors_ / blocks, 1, kStateRuns))));
}

// One run to a segment needs no state found before it, unless another rank does.
int64_t Choosing::choose_state_tokens() const {
  if (!made_.tensor_cores) return made_.run_tokens;
  const int64_t longest = inputs_.longest_segment();
  if (longest > made_.run_tokens && has_channel_states()) return made_.run_tokens / channel_state_parts();
  if (longest > made_.run_tokens) return made_.run_tokens / (inputs_.forgets() ? kUnequalStateRuns : kStateRuns);
  if (!inputs_.waits() || problem_.decay == Decay::kChannel) return made_.run_tokens;
  const int64_t items = std::max<int64_t>(1, static_cast<int64_t>(partition_.segments.size())) * problem_.heads;
  const int64_t parts =
      inputs_.forgets() ? kTailParts : std::clamp<int64_t>(multiprocessors_ / items, 1, kTailParts);
  return std::min(made_.run_tokens, std::max(kLeastTailPart, (longest / parts + 63) / 64 * 64));
}

void Choosing::choose_fused() {
  if (inputs_.has_wide_gradients()) return;
  const auto runs = static_cast<int64_t>(make_runs(partition_, made_.run_tokens, made_.run_tokens).size());
  const gpu::FusedBackward pass =
      fused_pass(inputs_, {nullptr, runs}, PlanInputs::aligned_buffers(), kAligned, kAligned);
  if (!kernels_.fused_backward(pass)) return;
  made_.fused_blocks = kernels_.fused_backward_blocks(pass, multiprocessors_);
  made_.fused = made_.fused_blocks > 0;
  if (!made_.fused) return;
  made_.fused_sums = problem_.heads_v < problem_.heads;
  const int32_t k = problem_.head_dim_k, v = problem_.head_dim_v;
  made_.fused_for_decay = (k < 128 || v < 128) && !(v == 64 && k % 64 == 0) && std::max(k, v) > 64;
  made_.fused_run_tokens = choose_fused_run_tokens();
  made_.fused_state_tokens = choose_fused_state_tokens();
}

// (run, head) of all segments.
int64_t Choosing::fused_items(int64_t run_tokens) const {
  const auto segments = std::max<int64_t>(1, static_cast<int64_t>(partition_.segments.size()));
  return segments * problem_.heads * ((inputs_.longest_segment() + run_tokens - 1) / run_tokens);
}

// Of grouped heads with more runs than are worked on at once the workspace is to keep to its share: fewer
// multiprocessors are in clusters than there are, so that most numbers of runs leave a part of the last turn empty.
bool Choosing::fused_runs_fit(int64_t items) const {
  if (!made_.fused_sums || items <= made_.fused_blocks) return true;
  gpu::FusedBackward pass = fused_pass(inputs_, {}, PlanInputs::aligned_buffers(), kAligned, kAligned);
  pass.num_runs = items / problem_.heads;
  pass.num_checkpoints = (problem_.batch * problem_.tokens + gpu::kFusedCheckpoint - 1) / gpu::kFusedCheckpoint;
  Carver walk(nullptr), staged(nullptr);
  walk.take<float>(items * problem_.state_size());
  walk.take<float>(kernels_.fused_backward_workspace(pass));
  StagedGradients().place(staged, inputs_, made_);
  return std::max(walk.used(), staged.used()) <= inputs_.tensor_bytes() / kWorkspaceShare;
}

// As many runs as finish soonest, fused_blocks of (run, head) at a time; of equals, and of nearly equals, the
// fewest: each further one costs a pass over q and do to find its gradient of the state. They begin at checkpoints.
int64_t Choosing::choose_fused_run_tokens() const {
  constexpr int64_t kStep = gpu::kFusedCheckpoint, kMostRuns = 16,
                    kStart = 128;  // tokens' worth of a block's start
  const int64_t longest = inputs_.longest_segment(), blocks = made_.fused_blocks;
  int64_t best = 0, best_time = 0;
  for (int64_t runs = 1; runs <= kMostRuns; ++runs) {
    const int64_t tokens = ((longest + runs - 1) / runs + kStep - 1) / kStep * kStep;
    const int64_t items = fused_items(tokens);
    if (runs > 1 && !fused_runs_fit(items)) continue;
    const int64_t waves = (items + blocks - 1) / blocks;
    const int64_t time = waves * (std::min(tokens, longest) + kStart);
    if (best == 0 || time * 20 < best_time * 19) best = tokens, best_time = time;
  }
  return std::min(best, kStep << 20);
}

// Where runs are several, their gradients of the state are found in parts of so many tokens at least: more of them
// where other ranks wait for the result.
int64_t Choosing::choose_fused_state_tokens() const {
  constexpr int64_t kLeast = 512;
  const int64_t longest = inputs_.longest_segment(), run_tokens = made_.fused_run_tokens;
  if (longest > run_tokens) {
    const bool whole = made_.fused_sums && fused_items(run_tokens) > made_.fused_blocks;  // see above
    int64_t parts = whole ? 1 : inputs_.waits() ? 4 : 2;
    while (parts > 1 && run_tokens / parts < kLeast) parts /= 2;
    return run_tokens / parts;
  }
  if (!inputs_.forgets() || !inputs_.waits()) return run_tokens;
  return std::max(kLeastTailPart, (longest / kTailParts + 63) / 64 * 64);
}

int64_t staged_bytes(const PlanInputs &inputs, const Choices &choices, int32_t heads, int32_t dim, DType type) {
  const Problem &p = inputs.problem();
  const int64_t of_head = p.batch * p.tokens * dim;
  if (heads == p.heads) return 0;
  if (!choices.tensor_cores) return p.heads * of_head * int64_t{sizeof(float)};
  return (choices.fused_sums ? inputs.heads_in_group() : p.heads) * of_head * size_of(type);
}

}  // namespace

Choices make_choices(const PlanInputs &inputs, const KernelFinder &kernels, int32_t multiprocessors) {
  return Choosing(inputs, kernels, multiprocessors).choose();
}

gpu::FusedBackward fused_pass(const PlanInputs &inputs, const RunSpan &reversed_runs, const BackwardBuffers &b,
                              void *staged_dq, void *staged_dk) {
  const Problem &p = inputs.problem();
  const bool sums = p.heads_v < p.heads;  // Choices::fused_sums
  const auto gradient = [&](const gpu::Tensor &to, void *staged) {
    return sums || to.heads == p.heads ? to : inputs.by_output_head(staged, p.heads, to.dim);
  };
  gpu::FusedBackward pass{inputs.backward_pass(reversed_runs, b)};
  pass.d_q = gradient(inputs.dq_of(b.dq), staged_dq);
  pass.d_k = gradient(inputs.dk_of(b.dk), staged_dk);
  pass.d_v = inputs.dv_of(b.dv);
  pass.d_edge_state = b.d_initial_state;
  pass.edge_adds = b.adds(LASP_ADD_D_INITIAL_STATE);
  return pass;
}

gpu::ChannelBackward channel_pass(const PlanInputs &inputs, const RunSpan &runs, const BackwardBuffers &b,
                                  void *staged_dq, void *staged_dk) {
  const int32_t heads = inputs.problem().heads;
  const auto gradient = [&](const gpu::Tensor &to, void *staged) {
    return to.heads == heads ? to : inputs.by_output_head(staged, heads, to.dim);
  };
  gpu::ChannelBackward pass{inputs.backward_pass(runs, b)};
  pass.d_q = gradient(inputs.dq_of(b.dq), staged_dq);
  pass.d_k = gradient(inputs.dk_of(b.dk), staged_dk);
  return pass;
}

void StagedGradients::place(Carver &carver, const PlanInputs &inputs, const Choices &choices) {
  const Problem &p = inputs.problem();
  const int64_t dq_bytes = staged_bytes(inputs, choices, p.heads_q, p.head_dim_k, p.dq_dtype),
                dk_bytes = staged_bytes(inputs, choices, p.heads_k, p.head_dim_k, p.dk_dtype),
                dv_bytes = staged_bytes(inputs, choices, p.heads_v, p.head_dim_v, p.dv_dtype);
  if (!choices.tensor_cores) {
    dq = carver.take<std::byte>(dq_bytes);
    dk = carver.take<std::byte>(dk_bytes);
    dv = carver.take<std::byte>(dv_bytes);
    return;
  }
  const bool apart = choices.channel || (choices.fused && !choices.fused_sums);
  if (apart) dq = carver.take<std::byte>(dq_bytes);
  dk = dv = carver.take<std::byte>(std::max({dk_bytes, dv_bytes, apart ? 0 : dq_bytes}));
  if (!apart) dq = dk;
}

std::string Choices::describe(int64_t tokens, int32_t compute_capability) const {
  const int64_t most = std::max<int64_t>(tokens, 1);
  std::string text = "CUDA, compute capability " + std::to_string(compute_capability / 10) + "." +
                     std::to_string(compute_capability % 10) + ": ";
  text += tensor_cores ? "tensor-core kernels" : "recurrent kernels in float32 (" + why_not + ")";
  text += ", runs of " + std::to_string(std::min(run_tokens, most)) + " tokens";
  if (fused) text += ", backward " + std::to_string(std::min(fused_run_tokens, most));
  return text;
}

}  // namespace lasp::cuda
