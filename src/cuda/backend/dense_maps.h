// Maps with dense transitions composed on a GPU: products by cuBLAS in IEEE float32, [K, K] by [K, V] and by [K,
// K], of all heads at once.
//
// Serves: plans of the delta rule, their exchange and their stages.
// Needs:  cuBLAS, a handle of it, and scratch for some heads' operands, for a product may not overwrite what it
//         reads; all of the plan's own. One composition runs after the other: the exchange stream sees to it, and
//         of the stages lasp.h asks it of the caller.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cuda/backend/cublas_library.h"
#include "cuda/backend/device_plan.h"

namespace lasp::cuda {

class DenseMaps {
 public:
  // Of `shape`'s maps, on the current device. Waits for `stream`. Throws where there is no cuBLAS.
  DenseMaps(const gpu::StateShape &shape, cudaStream_t stream);
  // Makes the product for states of so many heads once, of zeros, and waits for `stream`; the constructor makes
  // those of all heads (0). cuBLAS loads a kernel when it is first asked for it, which in a pass may never end: a
  // load waits for the GPU, the GPU for a message of another rank, and that rank, in the same process, for cuBLAS.
  void prepare(int64_t heads, cudaStream_t stream);

  // As MapComposer has it, of one later map.
  void compose(cudaStream_t stream, const AffineMapView &to, const AffineMapView &later,
               const AffineMapView &earlier, int64_t begin, int64_t end) const;
  // "cuBLAS 13.0.2".
  const std::string &library_text() const { return text_; }

 private:
  struct Heads {
    int64_t begin, count;
  };
  // The stream, and with it cuBLAS's workspace, which setting the stream takes away.
  void use(cudaStream_t stream) const;
  void multiply_zeros(int64_t heads, bool transitions) const;
  template <class Body>
  void each_tile(int64_t begin, int64_t end, const Body &body) const;
  void apply(cudaStream_t stream, float *to, const AffineMapView &later, const float *earlier, Heads heads) const;
  void compose_transitions(cudaStream_t stream, float *to, const float *later, const float *earlier,
                           Heads heads) const;
  const float *operand(cudaStream_t stream, const float *later, const float *earlier, int64_t columns,
                       Heads heads) const;
  void multiply(float *to, const float *later, const float *earlier, int64_t columns, bool add, Heads heads) const;

  // Scratch: an operand of tile_ heads, a product of theirs, cuBLAS's own.
  int64_t operand_floats() const { return tile_ * dim_k_ * std::max(dim_k_, dim_v_); }
  int64_t product_floats() const { return operand_floats(); }
  float *product_scratch() const { return reinterpret_cast<float *>(scratch_.data()) + operand_floats(); }
  std::byte *library_scratch() const { return reinterpret_cast<std::byte *>(product_scratch() + product_floats()); }

  const CublasLibrary &library_;
  int32_t dim_k_, dim_v_;
  int64_t heads_;     // of all rows
  int64_t tile_ = 1;  // heads worked on at once
  DeviceBlock scratch_;
  std::unique_ptr<cublasContext, int (*)(cublasContext *)> handle_;
  std::string text_;
  std::vector<int64_t> prepared_;  // numbers of heads
};

}  // namespace lasp::cuda
