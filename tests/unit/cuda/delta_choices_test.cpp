// What a plan of the delta rule chooses for a GPU, and which cuBLAS is taken. No GPU is asked.
#include "cuda/choice/delta_choices.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/decays.h"
#ifdef LASP_HAVE_CUDA
#include "base/status.h"
#include "cuda/backend/cublas_library.h"
#endif

namespace lasp::cuda {
namespace {

TEST(DeltaChoices, GeneralKernelsServeEveryPlan) {
  for (const Decay decay : kDecays)
    for (const int32_t dim : {1, 8, 40, 200, 512})
      for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
        for (const KernelPass pass :
             {KernelPass::kDeltaForward, KernelPass::kDeltaReversed, KernelPass::kDeltaGradients})
          EXPECT_NE(find_kernel(pass, {decay, dim, dim, type, 75}), nullptr) << static_cast<int32_t>(pass);
}

// Kernels of the delta rule that refuse as they are told to.
class DeltaKernels final : public KernelFinder {
 public:
  using KernelFinder::KernelFinder;
  const char *forward = nullptr, *reversed = nullptr, *gradients = nullptr;
  int32_t fewest_heads = 1;  // of dq and dk
  bool asks_float32 = false;
  int64_t fused_backward_blocks(const gpu::FusedBackward &, int32_t) const override { return 0; }
  int64_t fused_backward_workspace(const gpu::FusedBackward &) const override { return 0; }

 private:
  const char *refusal(gpu::KernelSet, const gpu::LinearPass &) const override { return nullptr; }
  const char *refusal(const gpu::FusedBackward &) const override { return nullptr; }
  const char *refusal(gpu::KernelSet, const gpu::ChannelBackward &) const override { return nullptr; }
  const char *states_refusal(const gpu::LinearPass &) const override { return nullptr; }
  int32_t blocks(gpu::KernelSet, const gpu::LinearPass &) const override { return 1; }
  const char *refusal(gpu::KernelSet, const gpu::DeltaForward &) const override { return forward; }
  const char *refusal(gpu::KernelSet, const gpu::DeltaReversed &) const override { return reversed; }
  const char *refusal(gpu::KernelSet, const gpu::DeltaGradients &pass) const override {
    EXPECT_EQ(pass.d_q.heads, pass.d_k.heads);
    EXPECT_EQ(pass.d_v.heads, pass.heads);
    if (pass.d_q.heads < fewest_heads) return "adds up no heads";
    if (asks_float32 && !pass.staged[0]) return "adds in float32";
    return gradients;
  }
};

struct DeltaCase {
  Problem problem;
  DeltaKernels kernels;
  explicit DeltaCase(DType type = DType::kBFloat16, int32_t capability = 90) : kernels(problem, capability) {
    Problem &p = problem;
    p.delta = p.backward = true, p.dtype = p.dq_dtype = p.dk_dtype = p.dv_dtype = type;
    p.tokens = 100, p.head_dim_k = p.head_dim_v = 128;
    p.heads = p.heads_v = 4, p.heads_q = p.heads_k = 2;
  }
  DeltaChoices made() const {
    const TokenPartition partition = make_token_partition(problem, TokenRanges{{0, 100}}, 0);
    return make_delta_choices(PlanInputs(problem, partition), kernels);
  }
};

TEST(DeltaChoices, OfFloat32IsGeneral) {
  DeltaCase c(DType::kFloat32);
  for (const bool backward : {false, true}) {
    c.problem.backward = backward;
    EXPECT_EQ(c.made().forward, gpu::KernelSet::kGeneric);
    EXPECT_EQ(
        c.made().describe(90, backward),
        "CUDA, compute capability 9.0: delta rule by walks in float32, token by token (the tensor-core kernels "
        "compute bfloat16 and float16), checkpoints every 64 tokens");
  }
}

// No other set reads the checkpoints of kHopper.
TEST(DeltaChoices, HopperForAllLaunchesOrNone) {
  using enum gpu::KernelSet;
  DeltaCase c;
  const auto expect_all = [&](gpu::KernelSet set) {
    const DeltaChoices made = c.made();
    for (const gpu::KernelSet launch : {made.forward, made.reversed, made.gradients}) EXPECT_EQ(launch, set);
  };
  expect_all(kHopper);
  EXPECT_EQ(c.made().describe(90, true),
            "CUDA, compute capability 9.0: tensor-core kernels of the delta rule, checkpoints every 256 tokens");
  for (const char **refusal : {&c.kernels.forward, &c.kernels.reversed, &c.kernels.gradients}) {
    *refusal = "want it otherwise";
    EXPECT_EQ(c.made().forward, refusal == &c.kernels.forward ? kGeneric : kMma);
    EXPECT_EQ(c.made().gradients, kGeneric);  // kMma finds them only after both walks of its own
    EXPECT_FALSE(c.made().own_checkpoints);
    EXPECT_EQ(c.made().spacing, 64);
    EXPECT_EQ(c.made().why_not, "want it otherwise");
    c.problem.backward = false;
    EXPECT_EQ(c.made().forward, refusal == &c.kernels.forward ? kGeneric : kHopper);
    c.problem.backward = true;
    *refusal = nullptr;
  }
  c.problem.decay = Decay::kChannel;
  expect_all(kHopper);
}

// Checkpoints of kMma are its own, or those of the general kernels, which go on from there.
TEST(DeltaChoices, TensorCoresFromEightOn) {
  using enum gpu::KernelSet;
  for (const int32_t capability : {80, 86, 89, 100, 120}) {
    const DeltaChoices made = DeltaCase(DType::kBFloat16, capability).made();
    for (const gpu::KernelSet launch : {made.forward, made.reversed, made.gradients})
      EXPECT_EQ(launch, kMma) << capability;
    EXPECT_TRUE(made.own_checkpoints);
    EXPECT_EQ(made.left.heads, 4);
    EXPECT_EQ(made.spacing, 64);
    EXPECT_EQ(made.describe(80, true),
              "CUDA, compute capability 8.0: tensor-core kernels of the delta rule, checkpoints every 64 tokens");
  }
  EXPECT_EQ(DeltaCase(DType::kBFloat16, 75).made().forward, kGeneric);
  DeltaCase c;
  c.problem.head_dim_k = 256;
  EXPECT_EQ(c.made().forward, kMma);
  EXPECT_EQ(c.made().reversed, kMma);
  for (const bool backward : {false, true}) {
    EXPECT_EQ(c.made().gradients, kMma);
    EXPECT_EQ(c.made().describe(90, backward),
              "CUDA, compute capability 9.0: tensor-core kernels of the delta rule, checkpoints every 64 tokens");
  }
  c.problem.decay = Decay::kChannel;
  EXPECT_EQ(c.made().forward, kGeneric);
  // Of all gradients a block needs more than 8.6 has.
  DeltaCase small(DType::kBFloat16, 86);
  small.problem.head_dim_k = 256;
  EXPECT_EQ(small.made().reversed, kMma);
  EXPECT_EQ(small.made().gradients, kGeneric);
  EXPECT_FALSE(small.made().own_checkpoints);
  EXPECT_EQ(
      small.made().describe(86, true),
      "CUDA, compute capability 8.6: tensor-core kernels of the delta rule for outputs and gradients of states, "
      "the others by walks in float32, token by token (the tensor-core kernels need more shared memory for "
      "these dimensions than the device has), checkpoints every 64 tokens");
}

TEST(DeltaChoices, GradientsOfSharedHeads) {
  DeltaCase c;
  EXPECT_EQ(c.made().left.heads, 2) << "added up by the launch";
  EXPECT_FALSE(c.made().left.float32);
  c.problem.heads_k = 1;
  EXPECT_EQ(c.made().left.heads, 2);
  EXPECT_TRUE(is_staged(c.made().left, 4, 1, false)) << "of two pairs";
  EXPECT_FALSE(is_staged(c.made().left, 4, 2, false));
  EXPECT_TRUE(is_staged(c.made().left, 4, 2, true)) << "of v";
  c.problem.heads_q = 4;
  EXPECT_EQ(c.made().left.heads, 4) << "q is not shared";
  c.problem.heads_q = c.problem.heads_k = 2;
  c.kernels.fewest_heads = 4;
  EXPECT_EQ(c.made().left.heads, 4);
  EXPECT_EQ(c.made().gradients, gpu::KernelSet::kHopper);
  EXPECT_FALSE(c.made().left.float32) << "what is shared waits in float32 already";
  c.problem.heads_q = c.problem.heads_k = 4;
  EXPECT_FALSE(is_staged(c.made().left, 4, 4, false));
  c.kernels.asks_float32 = true;
  EXPECT_TRUE(c.made().left.float32);
  EXPECT_TRUE(is_staged(c.made().left, 4, 4, false));
}

// Long stretches, but no fewer blocks than the GPU has multiprocessors for want of stretches.
TEST(DeltaChoices, SpacingOfCheckpoints) {
  DeltaCase c;
  EXPECT_EQ(c.made().spacing, 256);
  EXPECT_EQ(gpu::delta_spacing(gpu::KernelSet::kHopper, 16384, 32), 512);
  EXPECT_EQ(gpu::delta_spacing(gpu::KernelSet::kHopper, 2048, 32), 512);  // 128 blocks, not twice as many
  EXPECT_EQ(gpu::delta_spacing(gpu::KernelSet::kHopper, 2048, 16), 256);
  EXPECT_EQ(gpu::delta_spacing(gpu::KernelSet::kHopper, int64_t{1} << 40, 1024), 512);
  EXPECT_EQ(gpu::delta_spacing(gpu::KernelSet::kGeneric, 16384, 32), 64);
  EXPECT_EQ(gpu::delta_window(512, 32), 8);
  EXPECT_EQ(gpu::delta_window(256, 2000), 1);
}

#ifdef LASP_HAVE_CUDA
std::string refusal_of(const std::vector<const char *> &names) {
  try {
    load_cublas(names, "write = LASP_WRITE_DELTA: what for");
  } catch (const Error &error) {
    EXPECT_EQ(error.status, LASP_ERROR_LIBRARY_MISSING);
    return error.sentence;
  }
  return "";
}

TEST(Cublas, AbsentIsSaid) {
  EXPECT_EQ(
      refusal_of({"libnone.so.1", "libnone.so.2"}),
      "write = LASP_WRITE_DELTA: what for; neither libnone.so.1 nor libnone.so.2 is in this process or found by "
      "the loader");
}

TEST(Cublas, WhatLacksItsFunctionsIsNone) {
  EXPECT_EQ(refusal_of({"libnone.so.1", "libc.so.6"}),
            "write = LASP_WRITE_DELTA: what for; the one that is there lacks cublasCreate_v2");
}
#endif

}  // namespace
}  // namespace lasp::cuda
