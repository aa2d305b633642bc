// cuBLAS, found at run time: liblasp links to none. One that the process has loaded is taken first, then that of
// the toolkits it may stand beside. Its types are declared here as far as they are needed; the values are cuBLAS's
// ABI.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <span>
#include <string>

struct cublasContext;

namespace lasp {

struct CublasLibrary {
  static constexpr int kSuccess = 0, kPlain = 0;  // CUBLAS_OP_N
  static constexpr int kPedantic = 2;             // CUBLAS_PEDANTIC_MATH: IEEE float32 throughout

  int (*create)(cublasContext **);
  int (*destroy)(cublasContext *);
  int (*get_version)(cublasContext *, int *version);
  int (*set_stream)(cublasContext *, lasp_stream);
  int (*set_workspace)(cublasContext *, void *, size_t bytes);
  int (*set_math_mode)(cublasContext *, int mode);
  int (*multiply)(cublasContext *, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a,
                  int lda, long long stride_a, const float *b, int ldb, long long stride_b, const float *beta,
                  float *c, int ldc, long long stride_c, int count);
};

// The first of `names` that the process has loaded, else the first that the loader finds; it is never closed.
// Throws LASP_ERROR_LIBRARY_MISSING, in a sentence that begins with `what` ("write = ..: what cuBLAS is for").
CublasLibrary load_cublas(std::span<const char *const> names, const char *what);
// That of CUDA 13, else of CUDA 12; once found, the same for ever.
const CublasLibrary &find_cublas(const char *what);

}  // namespace lasp
