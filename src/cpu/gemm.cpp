#include "gemm.h"

#include <cblas.h>

#include <mutex>

#include "base/at_fork.h"

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
int saved_threads = 1;  // what to put back when it is not 1

bool can_set_threads() { return openblas_set_num_threads != nullptr && openblas_get_num_threads != nullptr; }

// A forked child has none of the passes that were running: its first one puts the setting back.
void forget_users() { serial_users = 0; }
using Forks = AtFork<serial_mutex, forget_users>;

}  // namespace

SerialBlas::SerialBlas() {
  Forks::install();
  std::lock_guard lock(serial_mutex);
  if (serial_users++ != 0 || !can_set_threads()) return;
  if (saved_threads == 1) saved_threads = openblas_get_num_threads();
  if (saved_threads != 1) openblas_set_num_threads(1);
}

SerialBlas::~SerialBlas() {
  std::lock_guard lock(serial_mutex);
  if (--serial_users != 0 || saved_threads == 1) return;
  openblas_set_num_threads(saved_threads);
  saved_threads = 1;
}

}  // namespace lasp::cpu
