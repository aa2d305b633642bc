// Row-major single-precision matrix products by CBLAS, one thread each: parallelism is over chunks and heads.
#pragma once

namespace lasp::cpu {

enum class Op { kPlain, kTransposed };

// c [m, n] = alpha * op(a) [m, k] * op(b) [k, n] + beta * c. With beta 0, c is only written. A product with an
// empty inner dimension scales c.
void gemm(Op op_a, Op op_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
          float beta, float *c, int ldc);

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
