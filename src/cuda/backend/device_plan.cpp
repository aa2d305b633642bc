#include "cuda/backend/device_plan.h"

#include "core/decay.h"

namespace lasp::cuda {
namespace {

std::vector<float> reset_factors(const std::vector<RowPath> &rows) {
  std::vector<float> factors;
  for (const RowPath &row : rows) factors.push_back(row.reset ? kForgetsAll : kKeepsAll);
  return factors;
}

}  // namespace

const char *Kernels::refusal(gpu::KernelSet set, const gpu::LinearPass &pass) const {
  return gpu::linear_pass_refusal(set, pass);
}
const char *Kernels::refusal(const gpu::FusedBackward &pass) const { return gpu::fused_backward_refusal(pass); }
const char *Kernels::refusal(gpu::KernelSet set, const gpu::ChannelBackward &pass) const {
  return gpu::channel_backward_refusal(set, pass);
}
const char *Kernels::states_refusal(const gpu::LinearPass &pass) const { return gpu::channel_states_refusal(pass); }
const char *Kernels::refusal(gpu::KernelSet set, const gpu::DeltaForward &pass) const {
  return gpu::delta_forward_refusal(set, pass);
}
const char *Kernels::refusal(gpu::KernelSet set, const gpu::DeltaReversed &pass) const {
  return gpu::delta_reversed_refusal(set, pass);
}
const char *Kernels::refusal(gpu::KernelSet set, const gpu::DeltaGradients &pass) const {
  return gpu::delta_gradients_refusal(set, pass);
}
int32_t Kernels::blocks(gpu::KernelSet set, const gpu::LinearPass &pass) const {
  return gpu::linear_pass_blocks(set, pass);
}
int64_t Kernels::fused_backward_blocks(const gpu::FusedBackward &pass, int32_t multiprocessors_) const {
  return gpu::fused_backward_blocks(pass, multiprocessors_);
}
int64_t Kernels::fused_backward_workspace(const gpu::FusedBackward &pass) const {
  return gpu::fused_backward_workspace(pass);
}

DevicePlan::DevicePlan(Tables &tables, const BackendPlan &plan)
    : inputs(plan.problem, plan.partition),
      kernels(inputs.problem(), plan.compute_capability),
      multiprocessors(plan.multiprocessors),
      alone(plan.ranges.nranks() == 1),
      choices(make_choices(inputs, kernels, multiprocessors)),
      packed(!plan.problem.packed ? nullptr : std::make_unique<PackedTables>(plan.problem, plan.ranges, plan.rank)),
      cut(make_cut(tables, choices.run_tokens, choices.state_tokens)) {
  if (inputs.reads_zeros())
    zeros = tables.add(std::vector<float>(static_cast<size_t>(inputs.problem().head_dim_v)));
  resets[0] = tables.add(reset_factors(plan.partition.forward));
  resets[1] = tables.add(reset_factors(plan.partition.backward));
}

Partition DevicePlan::make_cut(Tables &tables, int64_t run_tokens, int64_t state_tokens) const {
  return packed ? Partition(*packed, partition(), run_tokens, state_tokens)
                : Partition(tables, partition(), run_tokens, state_tokens);
}

namespace {

void *behind(const void *cache, uint64_t states) {
  return static_cast<std::byte *>(const_cast<void *>(cache)) + states;
}

}  // namespace

void DevicePlan::make_tables(const ForwardBuffers &b, uint64_t states) const {
  if (!packed) return;
  packed->set(problem().backward ? behind(b.state_cache, states) : b.workspace, b.packing);
  const Padded o = {inputs.o_of(b.o), problem().dtype};
  packed->make(stream, {&o, b.o != nullptr ? size_t{1} : size_t{0}});
}

void DevicePlan::find_tables(const ForwardBuffers &b, uint64_t states) const {
  if (packed) packed->set(behind(b.state_cache, states), b.packing);
}

void DevicePlan::find_tables(const BackwardBuffers &b, uint64_t states) const {
  if (!packed) return;
  if (b.state_cache != nullptr) return packed->set(behind(b.state_cache, states), b.packing);
  packed->set(b.workspace, b.packing);
  packed->make(stream);
}

void DevicePlan::run_pass(const gpu::GenericPass &pass, const char *what) const {
  if (pass.num_runs == 0) return;
  const bool fits = choices.tensor_cores && !pass.fixed_state;
  const gpu::KernelSet set = fits ? kernels.linear_pass(pass) : gpu::KernelSet::kGeneric;
  check_launch(set == gpu::KernelSet::kGeneric ? gpu::launch_generic_pass(pass, stream)
                                               : gpu::launch_linear_pass(set, pass, stream),
               what);
}

void DevicePlan::zero(void *to, int64_t count, const char *what) const {
  if (count > 0) check(cudaMemsetAsync(to, 0, static_cast<size_t>(count) * sizeof(float), stream), what);
}

void DevicePlan::fill_factors(const AffineMapView &map, bool reversed) const {
  if (map.transition != nullptr)
    check_launch(gpu::launch_fill_factors(map.transition, partition().rows(), inputs.factors(1),
                                          resets[reversed].data(), stream),
                 "filling factors");
}

}  // namespace lasp::cuda
