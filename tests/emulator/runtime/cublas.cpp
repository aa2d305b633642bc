// The one product of cuBLAS that liblasp asks for, and what belongs to it: in float32, as one kernel.
#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <set>

#include "runtime/stream.h"

using namespace emulator::runtime;

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace {

constexpr int kSuccess = 0, kInvalidValue = 7, kExecutionFailed = 13;

// Column after column: c = alpha a b + beta c, where a is m by k and b is k by n.
struct Product {
  int m, n, k;
  float alpha, beta;
  const float *a, *b;
  float *c;
  int lda, ldb, ldc;

  void run() const {
    for (int64_t column = 0; column < n; ++column) {
      float *const to = c + column * ldc;
      for (int row = 0; row < m; ++row) to[row] = beta == 0 ? 0 : beta * to[row];
      for (int64_t inner = 0; inner < k; ++inner) {
        const float factor = alpha * b[column * ldb + inner];
        const float *const from = a + inner * lda;
        for (int row = 0; row < m; ++row) to[row] += factor * from[row];
      }
    }
  }
};

// cuBLAS loads a kernel when a product first asks for it, which must not happen in a pass. So the first of each
// kind is to be of zeros: the library makes it when it makes a plan.
using Kind = std::array<int, 5>;
bool is_first(const Kind &kind) {
  static std::mutex mutex;
  static auto &seen = *new std::set<Kind>;
  const std::lock_guard lock(mutex);
  return seen.insert(kind).second;
}
bool is_zero(const float *data, int64_t floats) {
  return std::all_of(data, data + floats, [](float x) { return x == 0; });
}

bool readable(const float *data, int lead, int columns, long long stride, int count) {
  const auto floats = static_cast<size_t>(stride * (count - 1) + int64_t{lead} * columns);
  return is_allocation(data) && within_allocation(data, floats * sizeof(float));
}

const Kernel *kernel() {
  static const auto *const product = [] {
    auto *const made = new CUkern_st;
    made->name = "emulated_sgemm";
    return made;
  }();
  return product;
}

}  // namespace

extern "C" {

int cublasCreate_v2(cublasContext **handle) { return *handle = new cublasContext, kSuccess; }
int cublasDestroy_v2(cublasContext *handle) { return delete handle, kSuccess; }
int cublasGetVersion_v2(cublasContext *, int *version) { return *version = 130000, kSuccess; }
int cublasSetStream_v2(cublasContext *handle, cudaStream_t stream) { return handle->stream = stream, kSuccess; }
int cublasSetWorkspace_v2(cublasContext *, void *, size_t) { return kSuccess; }
int cublasSetMathMode(cublasContext *, int) { return kSuccess; }

int cublasSgemmStridedBatched(cublasContext *handle, int op_a, int op_b, int m, int n, int k, const float *alpha,
                              const float *a, int lda, long long stride_a, const float *b, int ldb,
                              long long stride_b, const float *beta, float *c, int ldc, long long stride_c,
                              int count) {
  if (op_a != 0 || op_b != 0 || m < 0 || n < 0 || k < 0 || lda < m || ldb < k || ldc < m) return kInvalidValue;
  if (m == 0 || n == 0 || count == 0) return kSuccess;
  if (!readable(a, lda, k, stride_a, count) || !readable(b, ldb, n, stride_b, count) ||
      !readable(c, ldc, n, stride_c, count))
    return kInvalidValue;
  const Product first = {m, n, k, *alpha, *beta, a, b, c, lda, ldb, ldc};
  const bool first_of_kind = is_first({m, n, k, count, *beta == 0});
  const auto run = [=] {
    const bool zeros = is_zero(a, stride_a * count) && is_zero(b, stride_b * count) &&
                       (first.beta == 0 || is_zero(c, stride_c * count));
    if (first_of_kind && !zeros) break_all("a pass asks cuBLAS for a product that no plan has made");
    for (int i = 0; i < count; ++i) {
      Product product = first;
      product.a += i * stride_a, product.b += i * stride_b, product.c += i * stride_c;
      product.run();
    }
  };
  return enqueue(handle->stream, cudaGraphNodeTypeKernel, run, kernel()) == cudaSuccess ? kSuccess
                                                                                        : kExecutionFailed;
}
}
