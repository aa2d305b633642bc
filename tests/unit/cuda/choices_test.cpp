// What a plan chooses on a device, with the table of kernels in place of the kernels: neither CUDA nor a GPU.
#include "cuda/choice/choices.h"

#include <gtest/gtest.h>

namespace lasp::cuda {
namespace {

constexpr int32_t kMultiprocessors = 132;

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
  const char *refusal(const gpu::ChannelBackward &) const override { return nullptr; }
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

// 32 heads in slices of 32 columns fill 128 of 132 multiprocessors with one run; the fused pass has a block to a
// head and takes four.
TEST(Choices, RunsFillTheDevice) {
  const Choices made = Case(Decay::kHead, 16384).on(90);
  EXPECT_TRUE(made.tensor_cores && made.fused);
  EXPECT_FALSE(made.channel);
  EXPECT_EQ(made.run_tokens, 16384);
  EXPECT_EQ(made.state_tokens, 16384) << "one run to a segment needs no state found before it";
  EXPECT_EQ(made.fused_run_tokens, 4096);
  EXPECT_EQ(made.fused_state_tokens, 2048) << "in two parts";
  EXPECT_EQ(made.describe(16384, 90),
            "CUDA, compute capability 9.0: tensor-core kernels, runs of 16384 tokens, backward 4096");
}

TEST(Choices, StatesThatLeaveTheRankAreFoundByParts) {
  const Choices made = Case(Decay::kHead, 32768).on(90, true);
  EXPECT_EQ(made.run_tokens, 32768);
  EXPECT_EQ(made.state_tokens, 2048) << "a sixteenth";
  EXPECT_EQ(Case(Decay::kNone, 32768).on(90, true).state_tokens, 32768) << "nothing is forgotten";
}

TEST(Choices, BackwardByTheDecay) {
  EXPECT_FALSE(Case(Decay::kHead, 4096).on(80).fused) << "capability 9.0 alone";
  const Choices channel = Case(Decay::kChannel, 4096).on(90);
  EXPECT_TRUE(channel.channel);
  EXPECT_FALSE(channel.fused);
  EXPECT_FALSE(Case(Decay::kChannel, 4096).on(89).channel) << "shared memory";
}

// Of narrow states only where there is a decay whose gradient may be asked for.
TEST(Choices, OtherDimensionsGoByTiles) {
  const auto with = [](Decay decay, int32_t dim) {
    Case tiled(decay, 4096);
    tiled.problem.head_dim_k = tiled.problem.head_dim_v = dim;
    return tiled.on(90);
  };
  for (const int32_t dim : {64, 128, 192, 256}) {
    const Choices made = with(Decay::kScalar, dim);
    EXPECT_TRUE(made.fused) << dim;
    EXPECT_EQ(made.fused_for_decay, dim < 128);
    EXPECT_EQ(with(Decay::kNone, dim).fused, dim >= 128);
  }
  EXPECT_FALSE(with(Decay::kScalar, 96).fused);
  EXPECT_TRUE(with(Decay::kChannel, 256).channel);
}

// The fused kernels and the walks write what the tensors' type is; one gradient after the other may be float32.
TEST(Choices, Float32GradientsAreFoundOneByOne) {
  for (const Decay decay : {Decay::kHead, Decay::kChannel})
    for (DType Problem::*type : {&Problem::dq_dtype, &Problem::dk_dtype, &Problem::dv_dtype}) {
      Case wide(decay, 4096);
      wide.problem.*type = DType::kFloat32;
      const Choices made = wide.on(90);
      EXPECT_TRUE(made.tensor_cores);
      EXPECT_FALSE(made.fused || made.channel);
    }
  Case decay_alone(Decay::kScalar, 4096);
  decay_alone.problem.decay_dtype = DType::kBFloat16;
  decay_alone.problem.d_decay_dtype = DType::kFloat32;
  EXPECT_TRUE(decay_alone.on(90).fused);
}

// What waits of shared heads has the gradient's type.
TEST(StagedGradients, AreAsWideAsTheirGradient) {
  Case shared(Decay::kHead, 64);
  shared.problem.heads_k = shared.problem.heads_v = 8;
  const auto bytes = [&] {
    TokenRanges ranges;
    ranges.begin = {0, shared.problem.tokens};
    const TokenPartition partition = make_token_partition(shared.problem, ranges, 0);
    Choices choices;
    choices.tensor_cores = true;
    Carver carver(nullptr);
    StagedGradients().place(carver, PlanInputs(shared.problem, partition), choices);
    return carver.used();
  };
  EXPECT_EQ(bytes(), 64U * 32 * 128 * 2);
  shared.problem.dv_dtype = DType::kFloat32;
  EXPECT_EQ(bytes(), 64U * 32 * 128 * 4);
}

TEST(Choices, WithoutTensorCoresThereIsAReason) {
  const Choices single = Case(Decay::kHead, 4096, DType::kFloat32).on(90);
  EXPECT_FALSE(single.tensor_cores || single.fused || single.channel);
  EXPECT_EQ(single.describe(4096, 90),
            "CUDA, compute capability 9.0: recurrent kernels in float32 (the tensor-core kernels "
            "compute bfloat16 and float16), runs of " +
                std::to_string(single.run_tokens) + " tokens");
  Case unmasked(Decay::kNone, 4096);
  unmasked.problem.bidirectional = true;
  EXPECT_EQ(unmasked.on(90).why_not, "the tensor-core kernel is causal");
}

TEST(KernelFinder, PassesThatSeeTheStateTransposedHaveRowsOfTheirOwn) {
  const Case of(Decay::kChannel, 4096);
  gpu::LinearPass pass;
  pass.a.dim = pass.y.dim = 128;
  const FittingKernels kernels(of.problem, 89);
  EXPECT_EQ(kernels.linear_pass(pass), gpu::KernelSet::kMma);
  pass.state_transposed = true;
  EXPECT_EQ(kernels.linear_pass(pass), gpu::KernelSet::kGeneric) << "shared memory";
}

// Of the rows that serve a shape the first whose kernel takes the tensors.
TEST(KernelFinder, GoesOnWhereTensorsDoNotFit) {
  const Case of(Decay::kHead, 4096);
  gpu::LinearPass pass;
  pass.a.dim = pass.y.dim = 128;
  std::string why;
  FittingKernels kernels(of.problem, 90);
  EXPECT_EQ(kernels.linear_pass(pass, &why), gpu::KernelSet::kHopper);
  kernels.unfit_for_hopper = true;
  EXPECT_EQ(kernels.linear_pass(pass, &why), gpu::KernelSet::kMma);
  kernels.unfit_for_mma = true;
  EXPECT_EQ(kernels.linear_pass(pass, &why), gpu::KernelSet::kGeneric);
  EXPECT_EQ(why, "want other strides");
  pass.a.dim = 520;
  EXPECT_EQ(kernels.linear_pass(pass, &why), gpu::KernelSet::kGeneric);
  EXPECT_EQ(why, "the tensor-core kernels want K to be a multiple of 8 up to 512");
}

}  // namespace
}  // namespace lasp::cuda
