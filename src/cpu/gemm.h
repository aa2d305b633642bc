// Row-major single-precision matrix products, one thread each: parallelism is over chunks and heads. On a processor
// with AVX2 and no AVX-512 they go by the library's own kernels (product_kernels.h), else by a CBLAS.
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

// How gemm multiplies, in the whole process.
enum class Products {
  kOwn,        // AVX2 without AVX-512
  kBlas,       // a product of the BLAS for each
  kSmallBlas,  // in pieces, by the kernels for small matrices that OpenBLAS has for processors with AVX-512
};
Products products();
const char *name_of(Products);
// For tests: kBlas goes everywhere, kOwn where kernels().multiply is. Backends made before keep their blocks.
void multiply_by(Products);

// The side of the square blocks along the diagonal of a causal product. Half of a block is computed for nothing, so
// small ones are less work; a BLAS is slower on them. Of 32 and 64 it is faster on neither, at chunks of 128.
int triangle_rows();

// While one lives, the BLAS uses one thread a call, if it is called at all. Its own threads would fight with ours
// over the same cores, and a product of 128 x 128 x 128 is too small to share out. The setting belongs to the
// process, so passes that run at the same time (ranks in threads) count themselves: the first in saves it, the last
// out puts it back.
class SerialBlas {
 public:
  SerialBlas();
  ~SerialBlas();
  SerialBlas(const SerialBlas &) = delete;
  SerialBlas &operator=(const SerialBlas &) = delete;
};

}  // namespace lasp::cpu
