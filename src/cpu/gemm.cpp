#include "gemm.h"

#include <cblas.h>

#include <mutex>

// Present when the BLAS in the process is OpenBLAS. Other libraries are run with their own thread setting.
extern "C" {
[[gnu::weak]] void openblas_set_num_threads(int threads);
[[gnu::weak]] int openblas_get_num_threads(void);
}

namespace lasp::cpu {

void gemm(Op op_a, Op op_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
          float beta, float *c, int ldc) {
  if (m == 0 || n == 0) return;
  cblas_sgemm(CblasRowMajor, op_a == Op::kPlain ? CblasNoTrans : CblasTrans,
              op_b == Op::kPlain ? CblasNoTrans : CblasTrans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

namespace {

std::mutex serial_mutex;
int serial_users = 0;
int saved_threads = 1;

}  // namespace

SerialBlas::SerialBlas() {
  std::lock_guard lock(serial_mutex);
  if (serial_users++ == 0 && openblas_set_num_threads != nullptr && openblas_get_num_threads != nullptr) {
    saved_threads = openblas_get_num_threads();
    if (saved_threads != 1) openblas_set_num_threads(1);
  }
}

SerialBlas::~SerialBlas() {
  std::lock_guard lock(serial_mutex);
  if (--serial_users == 0 && openblas_set_num_threads != nullptr && openblas_get_num_threads != nullptr) {
    if (saved_threads != 1) openblas_set_num_threads(saved_threads);
  }
}

}  // namespace lasp::cpu
