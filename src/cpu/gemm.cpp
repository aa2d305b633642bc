#include "gemm.h"

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "base/at_fork.h"
#include "kernels.h"

// Present when the BLAS in the process is OpenBLAS. Other libraries are run with their own thread setting.
extern "C" {
[[gnu::weak]] void openblas_set_num_threads(int threads);
[[gnu::weak]] int openblas_get_num_threads(void);
[[gnu::weak]] char *openblas_get_corename(void);
}

namespace lasp::cpu {

namespace {

// OpenBLAS copies the operands of a product before it multiplies, but where the product is small and the processor
// has AVX-512. Those kernels reach 0.98 of the processor's peak on 48 rows, 128 columns and 128 terms, the others
// 0.70 to 0.85 on products of our sizes.
bool has_small_kernels() {
  static const bool has = [] {
    const char *const core = openblas_get_corename != nullptr ? openblas_get_corename() : "";
    for (const char *const with : {"SkylakeX", "Cooperlake", "SapphireRapids"})
      if (std::strcmp(core, with) == 0) return true;
    return false;
  }();
  return has;
}

constexpr double kSmall = 100.0 * 100 * 100;  // m n k of the largest product that OpenBLAS gives to them
constexpr int kRowStep = 24;                  // rows that they take at once: of 48 or 24 none are left over

void multiply(Op op_a, Op op_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
              float beta, float *c, int ldc) {
  cblas_sgemm(CblasRowMajor, op_a == Op::kPlain ? CblasNoTrans : CblasTrans,
              op_b == Op::kPlain ? CblasNoTrans : CblasTrans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace

namespace {

Products best_products() {
  if (has_small_kernels()) return Products::kSmallBlas;
  return kernels().multiply != nullptr ? Products::kOwn : Products::kBlas;
}

std::atomic<Products> &chosen() {
  static std::atomic<Products> by{best_products()};
  return by;
}

}  // namespace

Products products() { return chosen().load(std::memory_order_relaxed); }

const char *name_of(Products by) { return by == Products::kOwn ? "own products" : "CBLAS products"; }

void multiply_by(Products by) { chosen() = by; }

int triangle_rows() { return products() == Products::kOwn ? 16 : 32; }

void gemm(Op op_a, Op op_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
          float beta, float *c, int ldc) {
  if (m == 0 || n == 0) return;
  if (products() == Products::kOwn) {
    kernels().multiply(
        {op_a == Op::kTransposed, op_b == Op::kTransposed, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc});
  } else if (op_b == Op::kPlain && products() == Products::kSmallBlas) {
    gemm_in_pieces(op_a, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  } else {
    multiply(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}

void gemm_in_pieces(Op op_a, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                    float beta, float *c, int ldc) {
  const int columns = k <= 160 ? 128 : 64;
  const int most = static_cast<int>(kSmall / columns / std::max(k, 1));
  const int rows = std::min(2 * kRowStep, most / kRowStep * kRowStep);
  if (rows == 0 || double{1} * m * n * k <= kSmall)
    return multiply(op_a, Op::kPlain, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  for (int i = 0; i < m; i += rows) {
    const float *const from = a + (op_a == Op::kPlain ? int64_t{i} * lda : int64_t{i});
    for (int j = 0; j < n; j += columns)
      multiply(op_a, Op::kPlain, std::min(rows, m - i), std::min(columns, n - j), k, alpha, from, lda, b + j, ldb,
               beta, c + int64_t{i} * ldc + j, ldc);
  }
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
  if (serial_users++ != 0 || !can_set_threads() || products() == Products::kOwn) return;
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
