// Speed of products of matrices as the CPU's passes take them, by the BLAS and by gemm (src/cpu/gemm.h), on one
// thread. For work on the kernels. It prints CSV: GFLOP/s by processor time, the best of 40; far rows are 1,024
// floats apart.
#include <cblas.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cpu/gemm.h"
#include "cpu_rate.h"

namespace {

using lasp::cpu::gemm;
using lasp::cpu::Op;

struct Shape {
  int m, n, k;
  bool turn_a, turn_b;
  int lda, ldb, ldc;
};

constexpr int kNear = 128, kFar = 1024;
constexpr Shape kShapes[] = {
    {1024, 1024, 1024, false, false, kFar, kFar, kFar},  // the yardstick
    {128, 128, 128, false, false, kNear, kNear, kNear}, {128, 128, 128, true, false, kNear, kNear, kNear},
    {128, 128, 128, false, true, kNear, kNear, kNear},  {32, 128, 128, false, false, kNear, kNear, kNear},
    {128, 128, 128, false, false, kFar, kFar, kFar},    {128, 128, 128, true, false, kFar, kFar, kFar},
    {128, 128, 128, false, true, kFar, kFar, kFar},     {32, 64, 128, false, false, kFar, kNear, kNear},
    {256, 256, 128, true, false, 256, 256, 256},        {512, 512, 128, true, false, 512, 512, 512},
    {128, 512, 512, false, false, 512, 512, 512},
};

// Of calls enough for milliseconds.
template <class Body>
double rate(const Shape &s, Body &&body) {
  const double flop = 2.0 * s.m * s.n * s.k;
  const int calls = 1 + static_cast<int>(5e7 / flop);
  const auto all = [&] {
    for (int call = 0; call < calls; ++call) body();
  };
  return lasp::best_rate(flop * calls, 1, 40, all).processor;
}

}  // namespace

int main() {
  const lasp::cpu::SerialBlas serial;
  struct alignas(64) Matrix {
    float data[1024 * 1024];
  };
  const auto a = std::make_unique<Matrix>(), b = std::make_unique<Matrix>(), c = std::make_unique<Matrix>();
  std::fill_n(a->data, 1024 * 1024, 0.5f);
  std::fill_n(b->data, 1024 * 1024, 0.25f);
  std::puts("m,n,k,a,b,lda,ldb,ldc,blas_gflops,gemm_gflops");
  for (const Shape &s : kShapes) {
    const double blas = rate(s, [&] {
      cblas_sgemm(CblasRowMajor, s.turn_a ? CblasTrans : CblasNoTrans, s.turn_b ? CblasTrans : CblasNoTrans, s.m,
                  s.n, s.k, 1, a->data, s.lda, b->data, s.ldb, 0, c->data, s.ldc);
    });
    const double own = rate(s, [&] {
      gemm(s.turn_a ? Op::kTransposed : Op::kPlain, s.turn_b ? Op::kTransposed : Op::kPlain, s.m, s.n, s.k, 1,
           a->data, s.lda, b->data, s.ldb, 0, c->data, s.ldc);
    });
    std::printf("%d,%d,%d,%s,%s,%d,%d,%d,%.1f,%.1f\n", s.m, s.n, s.k, s.turn_a ? "transposed" : "plain",
                s.turn_b ? "transposed" : "plain", s.lda, s.ldb, s.ldc, blas, own);
  }
  return 0;
}
