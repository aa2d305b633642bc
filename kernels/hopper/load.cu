// Loads every variant of the linear pass, without launching anything.
#include <cuda_runtime_api.h>

#include <utility>

#include "layout.cuh"
#include "linear_pass.h"

namespace lasp::gpu::hopper {

int load_linear_pass_kernels() {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const Decay decay : {Decay::kHead, Decay::kScalar}) {
      for (const auto &[dim, slice] : {std::pair{128, 64}, {128, 32}, {64, 64}, {64, 32}}) {
        LinearPass pass;
        void *const aligned = reinterpret_cast<void *>(128);  // never read
        pass.a = pass.b = {aligned, {dim, dim, dim}, 1, dim};
        pass.c = pass.y = {aligned, {slice, slice, slice}, 1, slice};
        pass.batch = pass.tokens = pass.heads = 1;
        pass.num_runs = 1;
        pass.dtype = type;
        pass.decay = decay;
        if (const int clusters = active_clusters(pass, {slice, 1}); clusters < 0) return -clusters;
      }
      for (const int32_t columns : {64, 128}) {
        PassParams params = {};
        params.decay = decay;
        const auto load = type == DType::kBFloat16 ? enqueue_own_states_bfloat16 : enqueue_own_states_float16;
        if (const int error = load(params, columns, 0, nullptr)) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace lasp::gpu::hopper
