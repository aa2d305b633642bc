// Which kernel computes a pass of a plan: the first row of the table (kernel_table.h) that serves its shape and
// whose kernel takes its tensors. Pure: what kernels say of tensors, and their numbers, come from whoever derives
// from this, so that choices can be tested without CUDA.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/choice/kernel_table.h"
#include "kernels/delta.h"

namespace lasp::cuda {

class KernelFinder {
 public:
  // The problem outlives it.
  KernelFinder(const Problem &problem, int32_t capability) : problem_(problem), capability_(capability) {}
  virtual ~KernelFinder() = default;
  int32_t capability() const { return capability_; }

  // By which kernels. kGeneric: *why, unless null, says why not by tensor cores.
  gpu::KernelSet linear_pass(const gpu::LinearPass &, std::string *why = nullptr) const;
  gpu::KernelSet decay_gradient() const;
  gpu::KernelSet channel_backward(const gpu::ChannelBackward &) const;
  // Whether a kernel does all of it at once.
  bool fused_backward(const gpu::FusedBackward &) const;
  bool channel_states(const gpu::LinearPass &) const;
  // The delta rule's launches, by the sets to `newest`. kGeneric: *why, unless null, says why not by tensor cores.
  gpu::KernelSet delta(const gpu::DeltaForward &, gpu::KernelSet newest, std::string *why = nullptr) const;
  gpu::KernelSet delta(const gpu::DeltaReversed &, gpu::KernelSet newest, std::string *why = nullptr) const;
  gpu::KernelSet delta(const gpu::DeltaGradients &, gpu::KernelSet newest, std::string *why = nullptr) const;

  // Blocks that a (run, head) of a pass of this shape keeps busy.
  int32_t linear_pass_blocks(const gpu::LinearPass &) const;
  // As gpu::fused_backward_blocks and fused_backward_workspace. Asked once, where the pass is served.
  virtual int64_t fused_backward_blocks(const gpu::FusedBackward &, int32_t multiprocessors) const = 0;
  virtual int64_t fused_backward_workspace(const gpu::FusedBackward &) const = 0;

 private:
  // As the functions of kernels/launch.h and delta.h.
  virtual const char *refusal(gpu::KernelSet, const gpu::LinearPass &) const = 0;
  virtual const char *refusal(const gpu::FusedBackward &) const = 0;
  virtual const char *refusal(gpu::KernelSet, const gpu::ChannelBackward &) const = 0;
  virtual const char *states_refusal(const gpu::LinearPass &) const = 0;
  virtual int32_t blocks(gpu::KernelSet, const gpu::LinearPass &) const = 0;
  virtual const char *refusal(gpu::KernelSet, const gpu::DeltaForward &) const = 0;
  virtual const char *refusal(gpu::KernelSet, const gpu::DeltaReversed &) const = 0;
  virtual const char *refusal(gpu::KernelSet, const gpu::DeltaGradients &) const = 0;

  template <class Pass>
  gpu::KernelSet first_fit(KernelPass of, const KernelShape &shape, const Pass &pass, std::string *why,
                           gpu::KernelSet newest = gpu::KernelSet::kHopper) const;
  KernelShape shape(int32_t dim_k, int32_t dim_v) const;

  const Problem &problem_;
  int32_t capability_;
};

}  // namespace lasp::cuda
