// Row-major single-precision matrix products, one thread each: parallelism is over chunks and heads. They go by a
// CBLAS, or by the library's own kernels (product_kernels.h) where these are faster at our sizes.
#pragma once

#include <cstdint>

namespace lasp::cpu {

enum class Op { kPlain, kTransposed };

// c [m, n] = alpha * op(a) [m, k] * op(b) [k, n] + beta * c. With beta 0, c is only written. A product with an
// empty inner dimension scales c.
void gemm(Op op_a, Op op_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
          float beta, float *c, int ldc);

// The same with b as it lies, cut into pieces of the size that a BLAS with kernels for small matrices is fastest
// at. Which BLAS is in the process decides whether gemm takes it.
void gemm_in_pieces(Op op_a, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                    float beta, float *c, int ldc);

// What gemm goes by in this process.
enum class Products {
  kOwn,        // AVX2 without AVX-512
  kBlas,       // any
  kSmallBlas,  // an OpenBLAS with kernels for small matrices, which it has for processors with AVX-512
};
Products products();

// Rows of a causal product that one call takes. Columns go up to the block's end, so few rows compute less that is
// above the diagonal. A BLAS is slower on few; of 32 and 64 neither is faster at chunks of 128.
int triangle_rows();

// Whether operands whose rows are so far apart are better copied first. Own kernels read them row by row.
bool copies_first(int64_t ld);

// While one lives, the BLAS uses one thread a call. Its own threads would fight with ours over the same cores, and
// a product of 128 x 128 x 128 is too small to share out. The setting belongs to the process, so passes that run at
// the same time (ranks in threads) count themselves: the first in saves it, the last out puts it back.
class SerialBlas {
 public:
  SerialBlas();
  ~SerialBlas();
  SerialBlas(const SerialBlas &) = delete;
  SerialBlas &operator=(const SerialBlas &) = delete;
};

}  // namespace lasp::cpu
