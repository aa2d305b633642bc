// Matrix products of row-major matrices, by CBLAS on the calling thread.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace train_lm {

// Ranks and team members are threads already: one BLAS thread each.
inline void use_one_blas_thread() {
#ifdef TRAIN_LM_HAS_OPENBLAS
  openblas_set_num_threads(1);
#endif
}

// c[m,n] = a[m,k] b[k,n] + beta c
inline void multiply(std::int64_t m, int n, int k, const float *a, const float *b, float beta, float *c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(m), n, k, 1.0f, a, k, b, n, beta, c, n);
}

// c[m,n] = a[m,k] b[n,k]^T: the gradient of an input, from its output's and the weight.
inline void multiply_transposed(std::int64_t m, int n, int k, const float *a, const float *b, float *c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), n, k, 1.0f, a, k, b, k, 0.0f, c, n);
}

// c[m,n] += a[rows,m]^T b[rows,n]: the gradient of a weight, from its input and its output's gradient.
inline void add_outer(std::int64_t rows, int m, int n, const float *a, const float *b, float *c) {
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, n, static_cast<int>(rows), 1.0f, a, m, b, n, 1.0f, c, n);
}

}  // namespace train_lm
