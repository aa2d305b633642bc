// The table of kernels in place of the kernels, for plans on a device that is not there: they take every tensor.
#pragma once

#include "cuda/choice/choices.h"

namespace lasp::cuda {

inline constexpr int32_t kMultiprocessors = 132;

// Kernels that take every tensor.
class FittingKernels final : public KernelFinder {
 public:
  using KernelFinder::KernelFinder;
  int64_t fused_backward_blocks(const gpu::FusedBackward &, int32_t multiprocessors) const override {
    return multiprocessors;
  }
  int64_t fused_backward_workspace(const gpu::FusedBackward &pass) const override {
    return pass.batch * pass.tokens * pass.heads;
  }
  bool unfit_for_hopper = false, unfit_for_mma = false;

 private:
  const char *refusal(gpu::KernelSet set, const gpu::LinearPass &) const override {
    const bool unfit = set == gpu::KernelSet::kHopper ? unfit_for_hopper : unfit_for_mma;
    return unfit ? "want other strides" : nullptr;
  }
  const char *refusal(const gpu::FusedBackward &) const override { return nullptr; }
  const char *refusal(gpu::KernelSet, const gpu::ChannelBackward &) const override { return nullptr; }
  const char *states_refusal(const gpu::LinearPass &) const override { return nullptr; }
  int32_t blocks(gpu::KernelSet, const gpu::LinearPass &pass) const override { return pass.y.dim / 32; }
  const char *refusal(gpu::KernelSet, const gpu::DeltaForward &) const override { return nullptr; }
  const char *refusal(gpu::KernelSet, const gpu::DeltaReversed &) const override { return nullptr; }
  const char *refusal(gpu::KernelSet, const gpu::DeltaGradients &) const override { return nullptr; }
};

struct Case {
  Problem problem;
  Case(Decay decay, int64_t tokens, DType type = DType::kBFloat16) {
    Problem &p = problem;
    p.tokens = tokens;
    p.heads_q = p.heads_k = p.heads_v = p.heads = 32;
    p.head_dim_k = p.head_dim_v = 128;
    p.dtype = p.dq_dtype = p.dk_dtype = p.dv_dtype = type, p.decay = decay;
    p.q = p.k = p.v = p.o = p.dq = p.dk = p.dv = p.d_o = {tokens * 32 * 128, 32 * 128, 128};
    p.decay_layout = p.d_decay_layout = {tokens * 32 * 128, 32 * 128, 128};
  }
  // On rank 1 of 3 of so many tokens each where `in_group`.
  Choices on(int32_t capability, bool in_group = false) {
    TokenRanges ranges;
    for (int64_t r = 0; r <= (in_group ? 3 : 1); ++r) ranges.begin.push_back(r * problem.tokens);
    const TokenPartition partition = make_token_partition(problem, ranges, in_group ? 1 : 0);
    const PlanInputs inputs(problem, partition);
    return make_choices(inputs, FittingKernels(problem, capability), kMultiprocessors);
  }
};

}  // namespace lasp::cuda
