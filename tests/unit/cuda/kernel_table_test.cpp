// The table of kernels: what it answers, that what it names is there, and, in a build with CUDA, that the kernels
// themselves say the same. No GPU is asked.
#include "cuda/choice/kernel_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cuda/choice/choices.h"

namespace lasp::cuda {
namespace {

constexpr int32_t kCapabilities[] = {80, 86, 87, 89, 90, 100, 103, 120};
constexpr int32_t kDims[] = {7, 8, 32, 40, 64, 96, 128, 136, 192, 256, 320, 512, 520};
constexpr Decay kDecays[] = {Decay::kNone, Decay::kHead, Decay::kScalar, Decay::kChannel};
constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

const char *file_of(KernelPass pass, Decay decay, int32_t k, int32_t v, DType type, int32_t capability) {
  const KernelRow *row = find_kernel(pass, decay, k, v, type, capability);
  return row == nullptr ? "" : row->file;
}

TEST(KernelTable, FirstRowThatServes) {
  constexpr auto kHalf = DType::kBFloat16;
  using enum KernelPass;
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 128, 128, kHalf, 90), "hopper/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 128, 128, kHalf, 100), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 96, 128, kHalf, 90), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kHead, 128, 128, DType::kFloat32, 90), "generic_pass.cu");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 256, 128, kHalf, 90), "mma/linear_pass.cuh");
  EXPECT_STREQ(file_of(kOutputs, Decay::kChannel, 256, 128, kHalf, 120), "generic_pass.cu") << "shared memory";
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kScalar, 128, 128, kHalf, 90), "hopper/fused_backward.cuh");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kScalar, 128, 64, kHalf, 90), "");
  EXPECT_STREQ(file_of(kFusedBackward, Decay::kScalar, 128, 128, kHalf, 80), "");
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 64, 128, kHalf, 89), "mma/channel_kernel.cuh");
  EXPECT_STREQ(file_of(kChannelBackward, Decay::kChannel, 128, 64, kHalf, 89), "") << "shared memory";
}

TEST(KernelTable, SomeKernelServesEveryPlan) {
  using enum KernelPass;
  for (const KernelPass pass : {kOutputs, kStateScan, kStep, kGroupSums})
    for (const Decay decay : kDecays)
      for (const int32_t dim : kDims)
        for (const DType type : kTypes)
          EXPECT_NE(find_kernel(pass, decay, dim, 256, type, 75), nullptr) << static_cast<int32_t>(pass);
}

TEST(KernelTable, NamesWhatIsThere) {
  for (const KernelRow &row : kernel_table()) {
    std::ifstream file(std::string(LASP_SOURCE_DIR "/kernels/") + row.file);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    EXPECT_NE(text.find(std::string(" ") + row.kernel + "("), std::string::npos) << row.file << ' ' << row.kernel;
    EXPECT_NE(text.find("__global__"), std::string::npos) << row.file;
  }
}

#ifdef LASP_HAVE_CUDA
// A problem of these dimensions whose tensors every kernel can read.
Problem problem_of(Decay decay, int32_t k, int32_t v, DType type) {
  Problem p;
  p.tokens = 256, p.heads_q = p.heads_k = p.heads_v = p.heads = 2;
  p.head_dim_k = k, p.head_dim_v = v, p.dtype = type, p.decay = decay;
  const auto layout = [&](int64_t dim) { return Layout{2 * 256 * dim, 2 * dim, dim}; };
  p.q = p.k = p.dq = p.dk = p.decay_layout = p.d_decay_layout = layout(k);
  p.v = p.o = p.dv = p.d_o = layout(v);
  return p;
}

TEST(KernelTable, KernelsSayTheSame) {
  void *const aligned = reinterpret_cast<void *>(64);
  const TokenPartition partition;
  for (const int32_t capability : kCapabilities)
    for (const Decay decay : kDecays)
      for (const int32_t k : kDims)
        for (const int32_t v : kDims)
          for (const DType type : kTypes) {
            const Problem p = problem_of(decay, k, v, type);
            const PlanInputs inputs(p, partition);
            const BackwardBuffers b = PlanInputs::aligned_buffers();
            const auto has = [&](KernelPass pass) {
              const KernelRow *row = find_kernel(pass, decay, k, v, type, capability);
              return row != nullptr && row->family == KernelFamily::kTensorCores;
            };
            SCOPED_TRACE(testing::Message() << "K " << k << " V " << v << " decay " << static_cast<int>(decay)
                                            << " type " << static_cast<int>(type) << " on " << capability);
            gpu::LinearPass pass = inputs.base_pass({}, aligned);
            pass.a = inputs.q_of(aligned), pass.b = inputs.k_of(aligned);
            pass.c = inputs.v_of(aligned), pass.y = inputs.o_of(aligned);
            EXPECT_EQ(gpu::linear_pass_supported(pass, capability, nullptr), has(KernelPass::kOutputs));
            pass.y = inputs.o_of(nullptr);
            EXPECT_EQ(gpu::channel_states_supported(pass, capability, nullptr), has(KernelPass::kStates));
            EXPECT_EQ(gpu::fused_backward_supported(fused_pass(inputs, {}, b), capability, nullptr),
                      has(KernelPass::kFusedBackward));
            EXPECT_EQ(
                gpu::channel_backward_supported(channel_pass(inputs, {}, b, nullptr, nullptr), capability, nullptr),
                has(KernelPass::kChannelBackward));
          }
}
#endif

}  // namespace
}  // namespace lasp::cuda
