// Matrix products on a GPU by cuBLAS, whose functions are found at run time: neither its header nor the library is
// needed to build.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <string>

struct cublasContext;

namespace train_lm {

// An array of a product: its first element, and whether that is bfloat16 or float32.
struct Operand {
  const void *data;
  bool narrow;
};

class Cublas {
 public:
  // `path`, or, when that is empty, a library already in the process, else libcublas.so.13 or .12. Products are in
  // the order of `stream`, on the thread's current device.
  Cublas(const std::string &path, lasp_stream stream);
  ~Cublas();
  Cublas(const Cublas &) = delete;

  // c[m,n] = a b + beta c of row-major matrices, summed in float32. a is [m,k], or [k,m] where `a_transposed`; b is
  // [k,n], or [n,k] where `b_transposed`.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, Operand a, bool a_transposed, Operand b,
                bool b_transposed, float beta, Operand c) const;

 private:
  void check(int result, const char *call) const;

  int (*create_)(cublasContext **) = nullptr;
  int (*destroy_)(cublasContext *) = nullptr;
  int (*set_stream_)(cublasContext *, lasp_stream) = nullptr;
  int (*gemm_)(cublasContext *, int, int, int, int, int, const void *, const void *, int, int, const void *, int,
               int, const void *, void *, int, int, int, int) = nullptr;
  cublasContext *handle_ = nullptr;
};

}  // namespace train_lm
