// Row-major single-precision matrix products by CBLAS, one thread each: parallelism is over chunks and heads.
#pragma once

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

// Whether the BLAS multiplies by a matrix as it lies (kPlain) so much faster than by a transposed one that it pays
// to transpose that first. So do the kernels for small matrices that OpenBLAS has for processors with AVX-512.
bool multiplies_best_by_plain();

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
