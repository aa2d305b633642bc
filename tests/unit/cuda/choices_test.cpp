// What a plan chooses on a device, with the table of kernels in place of the kernels: neither CUDA nor a GPU.
#include "cuda/choice/choices.h"

#include <gtest/gtest.h>

#include "unit/cuda/fitting_kernels.h"

namespace lasp::cuda {
namespace {

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

// Blocks of hopper/ have a multiprocessor each; those that find states want two on each.
TEST(Choices, RunsPerChannelFillTheDeviceOnce) {
  const auto with = [](int32_t heads, int32_t dim, int32_t capability = 90, int32_t dim_v = 0) {
    Case channel(Decay::kChannel, 16384);
    Problem &p = channel.problem;
    p.heads_q = p.heads_k = p.heads_v = p.heads = heads;
    p.head_dim_k = dim, p.head_dim_v = dim_v > 0 ? dim_v : dim;
    p.backward = true;
    return channel.on(capability);
  };
  EXPECT_EQ(with(32, 128).run_tokens, 4096) << "128 blocks";
  EXPECT_EQ(with(32, 128).state_tokens, 2048) << "in two parts";
  EXPECT_EQ(with(12, 128).run_tokens, 1536) << "132 blocks";
  EXPECT_EQ(with(12, 128).state_tokens, 768);
  EXPECT_EQ(with(32, 64).run_tokens, 2048) << "two heads in a block";
  EXPECT_EQ(with(32, 64).state_tokens, 2048) << "256 blocks, as they are";
  EXPECT_EQ(with(16, 256).run_tokens, 4096) << "two blocks for the channels of a head";
  EXPECT_EQ(with(32, 128, 90, 64).run_tokens, 4096) << "128 blocks, of 64 columns";
  EXPECT_EQ(with(16, 128, 90, 256).run_tokens, 2048) << "a block for the channels of a head";
  EXPECT_EQ(with(8, 128, 100).state_tokens, 2048) << "as they are";
  EXPECT_EQ(with(8, 128, 100).run_tokens, 2048) << "two blocks on each, of mma/, four for a head";
}

TEST(Choices, StatesThatLeaveTheRankAreFoundByParts) {
  const Choices made = Case(Decay::kHead, 32768).on(90, true);
  EXPECT_EQ(made.run_tokens, 32768);
  EXPECT_EQ(made.state_tokens, 2048) << "a sixteenth";
  EXPECT_EQ(Case(Decay::kHead, 32768).on(90, false).state_tokens, 32768) << "nobody waits";
  EXPECT_EQ(Case(Decay::kNone, 32768).on(90, true).state_tokens, 8192) << "32 heads by 4 parts fill the device";
  EXPECT_EQ(Case(Decay::kNone, 1024).on(90, true).state_tokens, 512) << "and not less";
}

TEST(Choices, BackwardByTheDecay) {
  EXPECT_FALSE(Case(Decay::kHead, 4096).on(80).fused) << "capability 9.0 alone";
  const Choices channel = Case(Decay::kChannel, 4096).on(90);
  EXPECT_TRUE(channel.channel);
  EXPECT_FALSE(channel.fused);
  EXPECT_FALSE(Case(Decay::kChannel, 4096).on(89).channel) << "shared memory";
}

// Of states with K of 64 and V above only where there is a decay whose gradient may be asked for.
TEST(Choices, OtherDimensionsGoByTiles) {
  const auto with = [](Decay decay, int32_t dim_k, int32_t dim_v) {
    Case tiled(decay, 4096);
    tiled.problem.head_dim_k = dim_k, tiled.problem.head_dim_v = dim_v;
    return tiled.on(90);
  };
  for (const int32_t dim_k : {64, 128, 192, 256})
    for (const int32_t dim_v : {64, 128, 192, 256}) {
      const Choices made = with(Decay::kScalar, dim_k, dim_v);
      EXPECT_TRUE(made.fused) << dim_k << " x " << dim_v;
      const bool for_decay = dim_k == 64 && dim_v > 64;
      EXPECT_EQ(made.fused_for_decay, for_decay);
      EXPECT_EQ(with(Decay::kNone, dim_k, dim_v).fused, !for_decay);
    }
  for (const auto &[k, v] : {std::pair{96, 96}, {160, 96}, {96, 64}, {32, 128}})
    EXPECT_TRUE(with(Decay::kScalar, k, v).fused && with(Decay::kScalar, k, v).fused_for_decay) << k << " x " << v;
  EXPECT_FALSE(with(Decay::kScalar, 32, 32).fused_for_decay);
  EXPECT_FALSE(with(Decay::kScalar, 80, 96).fused);
  for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kScalar}) {
    Case half(decay, 4096, DType::kFloat16);
    EXPECT_TRUE(half.on(90).fused);
    half.problem.head_dim_v = 64;
    EXPECT_TRUE(half.on(90).fused);
    half.problem.head_dim_k = half.problem.head_dim_v = 96;
    EXPECT_EQ(half.on(90).fused, decay != Decay::kNone);
  }
  EXPECT_TRUE(with(Decay::kChannel, 256, 256).channel);
}

// Heads of k and v that several output heads share, the fused kernel sums itself; of q and k it leaves the sums.
TEST(Choices, WhoSumsOverSharedHeads) {
  Case values(Decay::kScalar, 4096), queries(Decay::kScalar, 4096);
  values.problem.heads_k = values.problem.heads_v = 8;
  queries.problem.heads_q = queries.problem.heads_k = 1;
  EXPECT_TRUE(values.on(90).fused && values.on(90).fused_sums);
  EXPECT_TRUE(queries.on(90).fused && !queries.on(90).fused_sums);
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

// Gradients of q and k that the fused pass leaves for their sums are there at once.
TEST(StagedGradients, OfSharedQueriesLieApart) {
  Case shared(Decay::kHead, 64);
  shared.problem.heads_q = shared.problem.heads_k = 8;
  TokenRanges ranges;
  ranges.begin = {0, shared.problem.tokens};
  const TokenPartition partition = make_token_partition(shared.problem, ranges, 0);
  const Choices choices = shared.on(90);
  Carver carver(reinterpret_cast<void *>(kAlignment));  // of memory that nobody touches
  StagedGradients staged;
  staged.place(carver, PlanInputs(shared.problem, partition), choices);
  EXPECT_EQ(carver.used(), 2U * 64 * 32 * 128 * 2);
  EXPECT_NE(staged.dq, staged.dk);
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
