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

TEST(DeltaChoices, OfFloat32IsGeneral) {
  Problem p;
  p.delta = true, p.head_dim_k = p.head_dim_v = 128;
  for (const bool backward : {false, true}) {
    p.backward = backward;
    const DeltaChoices made = make_delta_choices(p, 90);
    EXPECT_EQ(made.set, gpu::KernelSet::kGeneric);
    EXPECT_EQ(made.describe(90),
              "CUDA, compute capability 9.0: delta rule by walks in float32, token by token, checkpoints every 64 "
              "tokens");
  }
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
