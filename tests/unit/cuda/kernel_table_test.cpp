// The table of kernels: what it answers, that what it names is there, and, in a build with CUDA, that it has the
// kernels' own numbers. No GPU is asked.
#include "cuda/choice/kernel_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "kernels/delta/passes.h"
#include "kernels/hopper/channel_backward.h"
#include "kernels/hopper/channel_pass.h"
#include "kernels/mma/channel_backward.h"
#include "kernels/mma/channel_states.h"
#include "kernels/mma/delta_passes.h"
#include "kernels/mma/linear_pass.h"
#include "unit/decays.h"

namespace lasp::cuda {
namespace {

constexpr int32_t kCapabilities[] = {80, 86, 87, 89, 90, 100, 103, 120};
constexpr int32_t kDims[] = {7, 8, 32, 40, 64, 96, 128, 136, 192, 256, 320, 512, 520};
constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

const char *file_of(KernelPass pass, Decay decay, int32_t k, int32_t v, DType type, int32_t capability) {
  const KernelRow *row = find_kernel(pass, {decay, k, v, type, capability});
  return row == nullptr ? "" : row->file;
}

TEST(KernelTable, FirstRowThatServes) {
  constexpr auto kHalf = DType::kBFloat16;
  using enum KernelPass;
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 128, 128, kHalf, 90), "hopper/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 128, 128, kHalf, 100), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 256, 128, kHalf, 90), "hopper/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 320, 128, kHalf, 90), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 96, 128, kHalf, 90), "hopper/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 80, 128, kHalf, 90), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 128, 128, DType::kFloat32, 90), "generic_pass.cu");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 256, 128, kHalf, 90), "hopper/channel_pass.cu");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 192, 192, kHalf, 90), "hopper/channel_pass.cu");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 64, 64, kHalf, 90), "hopper/channel_pass.cu");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 64, 96, kHalf, 90), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 96, 128, kHalf, 90), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 256, 128, kHalf, 100), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 256, 128, kHalf, 120), "generic_pass.cu") << "shared memory";
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 128, 128, kHalf, 89), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kTransposed, Decay::kChannel, 128, 128, kHalf, 89), "generic_pass.cu") << "shared memory";
  EXPECT_STREQ(file_of(kStates, Decay::kChannel, 192, 512, kHalf, 90), "mma/channel_states.cuh");
  EXPECT_STREQ(file_of(kStates, Decay::kChannel, 96, 128, kHalf, 90), "") << "no whole tiles";
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kScalar, 128, 128, kHalf, 90), "hopper/fused_backward.cuh");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kScalar, 128, 64, kHalf, 90), "hopper/fused_backward.cuh");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kHead, 256, 512, kHalf, 90), "hopper/fused_backward.cuh");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kHead, 320, 128, kHalf, 90), "") << "no checkpoints";
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kNone, 64, 128, kHalf, 90), "") << "no gradient of the decay";
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kNone, 128, 64, kHalf, 90), "hopper/fused_backward.cuh");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kNone, 32, 64, kHalf, 90), "hopper/fused_backward.cuh");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kHead, 96, 96, kHalf, 90), "hopper/fused_backward.cuh");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kNone, 128, 192, kHalf, 90), "hopper/fused_backward.cuh");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kScalar, 128, 128, kHalf, 80), "");
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 64, 128, kHalf, 89), "mma/channel_kernel.cuh");
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 128, 64, kHalf, 89), "") << "shared memory";
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 256, 512, kHalf, 90), "hopper/channel_backward.cuh");
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 64, 64, kHalf, 90), "hopper/channel_backward.cuh");
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 64, 128, kHalf, 90), "mma/channel_kernel.cuh");
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 256, 512, kHalf, 100), "mma/channel_kernel.cuh");
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 192, 128, kHalf, 90), "") << "no whole tiles";
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 128, 128, kHalf, 90), "delta/forward.cu");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 64, 128, kHalf, 90), "delta/forward.cu");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 96, 192, kHalf, 90), "delta/forward.cu");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 128, 72, kHalf, 90), "delta_forward.cu");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 16, 128, kHalf, 90), "mma/delta_forward.cuh");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 256, 512, kHalf, 90), "mma/delta_forward.cuh");
  for (const int32_t capability : {80, 86, 100, 120})
    EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 256, 128, kHalf, capability), "mma/delta_forward.cuh");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 128, 128, kHalf, 75), "delta_forward.cu");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kScalar, 264, 128, kHalf, 80), "delta_forward.cu");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kChannel, 128, 128, kHalf, 90), "delta/channel_forward.cu");
  EXPECT_STREQ(file_of(kDeltaForward, Decay::kChannel, 256, 128, kHalf, 90), "delta_forward.cu");
  EXPECT_STREQ(file_of(kDeltaReversed, Decay::kChannel, 64, 128, kHalf, 90), "delta/channel_reversed.cu");
  EXPECT_STREQ(file_of(kDeltaReversed, Decay::kNone, 128, 128, kHalf, 90), "delta/reversed.cu");
  EXPECT_STREQ(file_of(kDeltaGradients, Decay::kHead, 128, 128, kHalf, 90), "delta/gradients_kernel.cuh");
}

TEST(KernelTable, SomeKernelServesEveryPlan) {
  using enum KernelPass;
  for (const KernelPass pass : {kOutputs, kTransposed, kStateScan, kStep, kGroupSums})
    for (const Decay decay : kDecays)
      for (const int32_t dim : kDims)
        for (const DType type : kTypes)
          EXPECT_NE(find_kernel(pass, {decay, dim, 256, type, 75}), nullptr) << static_cast<int32_t>(pass);
}

TEST(KernelTable, NamesWhatIsThere) {
  for (const KernelRow &row : kernel_table()) {
    std::ifstream file(std::string(LASP_SOURCE_DIR "/kernels/") + row.file);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    EXPECT_NE(text.find(std::string(" ") + row.kernel + "("), std::string::npos) << row.file << ' ' << row.kernel;
    EXPECT_NE(text.find("__global__"), std::string::npos) << row.file;
  }
}

TEST(KernelTable, SaysWhyNot) {
  const auto why = [](Decay decay, int32_t k, int32_t v, DType type, int32_t capability) {
    return why_no_tensor_cores(KernelPass::kOutputs, {decay, k, v, type, capability});
  };
  constexpr auto kHalf = DType::kFloat16;
  EXPECT_EQ(why(Decay::kHead, 96, 96, kHalf, 80), "");
  EXPECT_EQ(why(Decay::kHead, 128, 128, kHalf, 75), "the tensor-core kernels are for compute capability 8.0 on");
  EXPECT_EQ(why(Decay::kHead, 128, 128, DType::kFloat32, 90),
            "the tensor-core kernels compute bfloat16 and float16");
  EXPECT_EQ(why(Decay::kHead, 7, 128, kHalf, 90), "the tensor-core kernels want K to be a multiple of 8 up to 512");
  EXPECT_EQ(why(Decay::kHead, 128, 520, kHalf, 90),
            "the tensor-core kernels want V to be a multiple of 8 up to 512");
  EXPECT_EQ(why(Decay::kChannel, 256, 128, kHalf, 120),
            "the tensor-core kernels need more shared memory for these dimensions than the device has");
}

// Every combination of what the table decides by has an answer, and what it says of tensor cores holds together.
TEST(KernelTable, SaysWhyNotExactlyWhereNoTensorCoresServe) {
  for (const KernelPass pass : {KernelPass::kOutputs, KernelPass::kTransposed, KernelPass::kDeltaForward,
                                KernelPass::kDeltaReversed, KernelPass::kDeltaGradients})
    for (const int32_t capability : kCapabilities)
      for (const Decay decay : kDecays)
        for (const int32_t k : kDims)
          for (const int32_t v : kDims)
            for (const DType type : kTypes) {
              const KernelShape shape = {decay, k, v, type, capability};
              const KernelRow *row = find_kernel(pass, shape);
              ASSERT_NE(row, nullptr);
              EXPECT_EQ(why_no_tensor_cores(pass, shape) == "", row->on_tensor_cores())
                  << "K " << k << " V " << v << " on " << capability;
            }
}

#ifdef LASP_HAVE_CUDA
// That a row has what the largest of its blocks needs, in KiB and to a tenth.
void expect_shared(const KernelRow *row, int64_t bytes) {
  EXPECT_NEAR(row->shared, static_cast<double>(bytes) / 1024, 0.05) << row->file;
}

TEST(KernelTable, HasTheSharedMemoryThatBlocksNeed) {
  for (const bool transposed : {false, true})
    for (const Decay decay : {Decay::kHead, Decay::kChannel})
      for (const int32_t dim : {64, 128, 256}) {
        SCOPED_TRACE(testing::Message() << "decay " << static_cast<int>(decay) << " dimension " << dim
                                        << (transposed ? ", transposed" : ""));
        if (decay != Decay::kChannel && dim < 256) continue;  // one row for all dimensions
        gpu::LinearPass pass;
        pass.dtype = gpu::DType::kBFloat16;
        pass.decay = static_cast<gpu::Decay>(decay);
        pass.a.dim = pass.b.dim = dim;
        pass.c.dim = pass.y.dim = 128;
        pass.state_transposed = transposed;
        const KernelPass of = transposed ? KernelPass::kTransposed : KernelPass::kOutputs;
        expect_shared(find_kernel(of, {decay, dim, 128, DType::kBFloat16, 100}),
                      gpu::mma::least_shared_bytes(pass));
      }
  const KernelShape widest = {Decay::kChannel, 128, 128, DType::kBFloat16, 90},
                    narrow = {Decay::kChannel, 64, 128, DType::kBFloat16, 90};
  using enum KernelPass;
  expect_shared(find_kernel(kOutputs, widest), gpu::hopper::channel_shared_bytes(128));
  expect_shared(find_kernel(kOutputs, narrow), gpu::hopper::channel_shared_bytes(64));
  for (const int32_t dim : {64, 128})
    expect_shared(find_kernel(kChannelBackward, {Decay::kChannel, dim, 64, DType::kBFloat16, 90}),
                  std::min(gpu::hopper::channel_backward_shared_bytes(dim, 64, false),
                           gpu::hopper::channel_backward_shared_bytes(dim, 64, true)));
  expect_shared(find_kernel(kChannelBackward, {Decay::kChannel, 128, 128, DType::kBFloat16, 100}),
                gpu::mma::channel::walk_shared_bytes(128, 128));
  expect_shared(find_kernel(kChannelBackward, narrow), gpu::mma::channel::walk_shared_bytes(64, 128));
  expect_shared(find_kernel(kStates, widest), gpu::mma::channel::states_shared_bytes(128, 128));
  const KernelShape delta = {Decay::kScalar, 128, 128, DType::kBFloat16, 90};
  expect_shared(find_kernel(kDeltaForward, delta), gpu::delta_hopper::forward_shared_bytes());
  expect_shared(find_kernel(kDeltaReversed, delta), gpu::delta_hopper::reversed_shared_bytes());
  expect_shared(find_kernel(kDeltaGradients, delta), gpu::delta_hopper::gradients_shared_bytes());
  expect_shared(find_kernel(kDeltaForward, {Decay::kScalar, 256, 128, DType::kBFloat16, 90}),
                gpu::mma_delta::walk_shared_bytes(256));
  expect_shared(find_kernel(kDeltaReversed, {Decay::kScalar, 256, 128, DType::kBFloat16, 90}),
                gpu::mma_delta::walk_shared_bytes(256));
  for (const int32_t dim_k : {128, 256})
    expect_shared(find_kernel(kDeltaGradients, {Decay::kScalar, dim_k, 128, DType::kBFloat16, 80}),
                  gpu::mma_delta::gradients_shared_bytes(dim_k));
  expect_shared(find_kernel(kDeltaForward, widest), gpu::delta_hopper::channel::forward_shared_bytes());
  expect_shared(find_kernel(kDeltaReversed, widest), gpu::delta_hopper::channel::reversed_shared_bytes());
  expect_shared(find_kernel(kDeltaGradients, widest), gpu::delta_hopper::channel::walk_back_shared_bytes());
}

template <class Pass>
Pass delta_pass(Decay decay, int32_t k, int32_t v, DType type) {
  Pass pass;
  pass.heads = 1;
  pass.decay = static_cast<gpu::Decay>(decay);
  pass.dtype = static_cast<gpu::DType>(type);
  pass.q.dim = pass.k.dim = k, pass.v.dim = v;
  return pass;
}

// The table decides, and the kernels of the delta rule take what it gives them, no more.
TEST(KernelTable, SaysOfTheDeltaRuleWhatItsKernelsSay) {
  using enum KernelPass;
  for (const Decay decay : kDecays)
    for (const int32_t k : kDims)
      for (const int32_t v : kDims)
        for (const DType type : kTypes) {
          const KernelShape shape = {decay, k, v, type, 90};
          const auto expect_same = [&](KernelPass of, const char *refusal) {
            EXPECT_EQ(find_kernel(of, shape)->set == gpu::KernelSet::kHopper, refusal == nullptr)
                << static_cast<int32_t>(of) << " K " << k << " V " << v << " decay " << static_cast<int>(decay);
          };
          constexpr gpu::KernelSet kSet = gpu::KernelSet::kHopper;
          auto gradients = delta_pass<gpu::DeltaGradients>(decay, k, v, type);
          gradients.d_q.heads = gradients.d_k.heads = gradients.d_v.heads = 1;
          gradients.staged[0] = gradients.staged[1] = v > 128;  // which several launches add to
          expect_same(kDeltaForward,
                      gpu::delta_forward_refusal(kSet, delta_pass<gpu::DeltaForward>(decay, k, v, type)));
          expect_same(kDeltaReversed,
                      gpu::delta_reversed_refusal(kSet, delta_pass<gpu::DeltaReversed>(decay, k, v, type)));
          expect_same(kDeltaGradients, gpu::delta_gradients_refusal(kSet, gradients));
          constexpr gpu::KernelSet kMma = gpu::KernelSet::kMma;
          EXPECT_NE(gpu::delta_gradients_refusal(kMma, gradients), nullptr);  // from other walks' checkpoints
          gradients.own_checkpoints = true;
          const KernelShape ampere = {decay, k, v, type, 80};
          EXPECT_EQ(find_kernel(kDeltaForward, ampere)->set == kMma,
                    gpu::delta_forward_refusal(kMma, delta_pass<gpu::DeltaForward>(decay, k, v, type)) == nullptr)
              << "K " << k << " V " << v << " decay " << static_cast<int>(decay);
          EXPECT_EQ(find_kernel(kDeltaReversed, ampere)->set == kMma,
                    gpu::delta_reversed_refusal(kMma, delta_pass<gpu::DeltaReversed>(decay, k, v, type)) == nullptr)
              << "K " << k << " V " << v << " decay " << static_cast<int>(decay);
          EXPECT_EQ(find_kernel(kDeltaGradients, ampere)->set == kMma,
                    gpu::delta_gradients_refusal(kMma, gradients) == nullptr)
              << "K " << k << " V " << v << " decay " << static_cast<int>(decay);
        }
}

// What the table cannot know.
TEST(KernelTable, KernelsOfTheDeltaRuleSayWhyNot) {
  constexpr gpu::KernelSet kSet = gpu::KernelSet::kHopper;
  auto pass = delta_pass<gpu::DeltaReversed>(Decay::kNone, 128, 128, DType::kBFloat16);
  EXPECT_EQ(gpu::delta_reversed_refusal(kSet, pass), nullptr);
  pass.d_o.strides.token = 132;
  EXPECT_STREQ(gpu::delta_reversed_refusal(kSet, pass), "needs strides that are multiples of 8");
  pass.d_o.strides.token = 136;
  for (const float scale : {0.0f, 1e-39f, 3e38f, -1e-42f}) {
    pass.scale = scale;
    EXPECT_STREQ(gpu::delta_reversed_refusal(kSet, pass), "divides by the scale") << scale;
  }
  pass.scale = -0.5f, pass.heads = 70000;
  EXPECT_STREQ(gpu::delta_reversed_refusal(kSet, pass), "needs at most 65535 heads");
}
#endif

}  // namespace
}  // namespace lasp::cuda
