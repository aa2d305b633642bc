#include "cuda/backend/dense_maps.h"

#include <algorithm>

#include "base/status.h"
#include "kernels/delta.h"

namespace lasp::cuda {
namespace {

constexpr int64_t kScratchFloats = int64_t{4} << 20, kLibraryBytes = int64_t{4} << 20;
constexpr int64_t kMostAtOnce = 32768;
constexpr uintptr_t kProductAlignment = 64;  // of all maps; a caller's states may have less

void check_cublas(int status, const char *what) {
  if (status != CublasLibrary::kSuccess)
    throw fail(LASP_ERROR_DEVICE, "%s: cuBLAS answered with status %d", what, status);
}

// On rows [begin, ..) of so many floats each; null stays null.
template <class T>
T *at(T *floats, int64_t begin, int64_t each) {
  return floats == nullptr ? nullptr : floats + begin * each;
}

}  // namespace

DenseMaps::DenseMaps(const gpu::StateShape &shape, cudaStream_t stream)
    : library_(find_cublas("write = LASP_WRITE_DELTA: on a GPU cuBLAS multiplies the maps that ranks exchange")),
      dim_k_(static_cast<int32_t>(shape.dim_k)),
      dim_v_(static_cast<int32_t>(shape.dim_v)),
      heads_(shape.rows * shape.heads),
      handle_(nullptr, library_.destroy) {
  const int64_t operand = int64_t{dim_k_} * std::max(dim_k_, dim_v_);
  tile_ = std::clamp<int64_t>(kScratchFloats / (2 * operand), 1, std::clamp<int64_t>(heads_, 1, kMostAtOnce));
  tile_ = (tile_ + 3) / 4 * 4;  // so that what cuBLAS is given is aligned to 256 bytes
  scratch_.allocate(static_cast<size_t>(operand_floats() + product_floats()) * sizeof(float) + kLibraryBytes);
  cublasContext *handle = nullptr;
  check_cublas(library_.create(&handle), "making a handle");
  handle_.reset(handle);
  check_cublas(library_.set_math_mode(handle, CublasLibrary::kPedantic), "asking for float32");
  int version = 0;
  check_cublas(library_.get_version(handle, &version), "asking for the version");
  text_ = "cuBLAS " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
          std::to_string(version % 100);
  use(stream);
  check(cudaMemsetAsync(scratch_.data(), 0,
                        static_cast<size_t>(operand_floats() + product_floats()) * sizeof(float), stream),
        "clearing scratch");
  multiply_zeros(heads_, true);
  check(cudaStreamSynchronize(stream), "trying cuBLAS");
}

void DenseMaps::use(cudaStream_t stream) const {
  check_cublas(library_.set_stream(handle_.get(), stream), "setting the stream");
  check_cublas(library_.set_workspace(handle_.get(), library_scratch(), kLibraryBytes), "setting the workspace");
}

void DenseMaps::prepare(int64_t heads, cudaStream_t stream) {
  if (heads == 0 || heads == heads_ || std::find(prepared_.begin(), prepared_.end(), heads) != prepared_.end())
    return;
  use(stream);
  multiply_zeros(heads, false);
  check(cudaStreamSynchronize(stream), "trying cuBLAS");
  prepared_.push_back(heads);
}

void DenseMaps::multiply_zeros(int64_t heads, bool transitions) const {
  float *const operand = reinterpret_cast<float *>(scratch_.data()), *const product = product_scratch();
  each_tile(0, heads, [&](const Heads &tile) {
    multiply(product, operand, operand, dim_v_, true, {0, tile.count});
    if (transitions) multiply(product, operand, operand, dim_k_, false, {0, tile.count});
  });
}

template <class Body>
void DenseMaps::each_tile(int64_t begin, int64_t end, const Body &body) const {
  for (; begin < end; begin += tile_) body(Heads{begin, std::min(tile_, end - begin)});
}

void DenseMaps::compose(cudaStream_t stream, const AffineMapView &to, const AffineMapView &later,
                        const AffineMapView &earlier, int64_t begin, int64_t end) const {
  use(stream);
  each_tile(begin, end, [&](const Heads &heads) { apply(stream, to.state, later, earlier.state, heads); });
  if (to.transition == nullptr) return;
  each_tile(0, heads_, [&](const Heads &heads) {
    compose_transitions(stream, to.transition, later.transition, earlier.transition, heads);
  });
}

// What the product reads of the earlier map, in scratch: zero where the later one forgets it.
const float *DenseMaps::operand(cudaStream_t stream, const float *later, const float *earlier, int64_t columns,
                                Heads heads) const {
  gpu::DeltaOperand operand;
  operand.heads = heads.count;
  operand.dim_k = dim_k_;
  operand.columns = static_cast<int32_t>(columns);
  operand.later = at(later, heads.begin, int64_t{dim_k_} * dim_k_);
  operand.from = at(earlier, heads.begin, dim_k_ * columns);
  operand.to = reinterpret_cast<float *>(scratch_.data());
  check_launch(gpu::launch_delta_operand(operand, stream), "reading a map");
  return operand.to;
}

// to = later earlier, or added to it: row by row that is [columns, K] by [K, K] the other way round, which is how
// cuBLAS takes them.
void DenseMaps::multiply(float *to, const float *later, const float *earlier, int64_t columns, bool add,
                         Heads heads) const {
  const float one = 1, beta = add ? 1.0f : 0.0f;
  const auto width = static_cast<int>(columns);
  const long long size = dim_k_ * columns, square = int64_t{dim_k_} * dim_k_;
  check_cublas(library_.multiply(handle_.get(), CublasLibrary::kPlain, CublasLibrary::kPlain, width, dim_k_, dim_k_,
                                 &one, earlier, width, size, later, dim_k_, square, &beta, to, width, size,
                                 static_cast<int>(heads.count)),
               "multiplying maps");
}

void DenseMaps::apply(cudaStream_t stream, float *to, const AffineMapView &later, const float *earlier,
                      Heads heads) const {
  const int64_t size = int64_t{dim_k_} * dim_v_;
  const float *const operand_at = operand(stream, later.transition, earlier, dim_v_, heads);
  float *const result = at(to, heads.begin, size);
  // What cuBLAS does depends on alignment, and results may not.
  const bool aligned = reinterpret_cast<uintptr_t>(result) % kProductAlignment == 0;
  float *const sum = aligned ? result : product_scratch();
  const float *const own = at(later.state, heads.begin, size);
  const auto copy = [&](float *copied, const float *from) {
    if (copied != from)
      check(cudaMemcpyAsync(copied, from, static_cast<size_t>(heads.count * size) * sizeof(float),
                            cudaMemcpyDeviceToDevice, stream),
            "copying a map");
  };
  copy(sum, own);
  multiply(sum, at(later.transition, heads.begin, int64_t{dim_k_} * dim_k_), operand_at, dim_v_, true, heads);
  copy(result, sum);
}

void DenseMaps::compose_transitions(cudaStream_t stream, float *to, const float *later, const float *earlier,
                                    Heads heads) const {
  const int64_t square = int64_t{dim_k_} * dim_k_;
  const float *const operand_at = operand(stream, later, earlier, dim_k_, heads), *const by = at(later, heads.begin,
                                                                                                 square);
  float *const result = at(to, heads.begin, square), *const product = to == later ? product_scratch() : result;
  multiply(product, by, operand_at, dim_k_, false, heads);
  if (product != result)
    check(cudaMemcpyAsync(result, product, static_cast<size_t>(heads.count * square) * sizeof(float),
                          cudaMemcpyDeviceToDevice, stream),
          "copying a transition");
}

}  // namespace lasp::cuda
