// Speed of the CPU backend on its own, without an engine or an exchange: GFLOP/s of forward and backward for each
// decay kind, beside the rate of sgemm in the same moments. For work on the kernels; lasp-bench measures the
// library.
//
//   cpu_kernels [tokens [heads [head_dim [chunk [threads [repeats]]]]]]
//
// Counted per token and head: forward 2CK + 2CV with the causal half, and 4KV; backward 6CK + 4CV with the causal
// half, and 8KV. Delta rule: forward 4CK + 4CV with the causal half, 6KV and C^2 / 3 for the inverse; backward
// 12CK + 12CV with the causal half, 14KV and C^2 / 3. Its chunk is half as long. Rates are given by wall time and,
// for a machine that is shared, by the processor time of all threads.
#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/cpu_backend.h"
#include "cpu_rate.h"

namespace lasp {
namespace {

struct Shape {
  int64_t tokens = 16384;
  int32_t heads = 8, dim = 128, chunk = 128, threads = 2, repeats = 5;
};

struct Buffers {
  explicit Buffers(const Shape &s, Decay decay) : random(7) {
    const int64_t count = s.tokens * s.heads * s.dim;
    for (auto *x : {&q, &k, &v, &d_o}) fill(*x, count, -1, 1);
    for (auto *x : {&o, &dq, &dk, &dv}) x->resize(static_cast<size_t>(count));
    const int64_t decays = decay == Decay::kChannel  ? count
                           : decay == Decay::kScalar ? s.tokens * s.heads
                                                     : s.heads;
    fill(g, decays, -0.1f, -0.001f);
    dg.resize(g.size());
    fill(beta, s.tokens * s.heads, 0, 1);
    d_beta.resize(beta.size());
    const float width = 1 / std::sqrt(static_cast<float>(s.dim) / 3);  // keys of length 1 or so
    for (float &x : k) x *= width;
  }
  void fill(std::vector<float> &x, int64_t count, float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    x.resize(static_cast<size_t>(count));
    for (float &e : x) e = uniform(random);
  }
  std::mt19937 random;
  std::vector<float> q, k, v, d_o, o, dq, dk, dv, g, dg, beta, d_beta;
};

Problem make_problem(const Shape &s, Decay decay, bool delta) {
  Problem p;
  p.tokens = s.tokens;
  p.heads = p.heads_q = p.heads_k = p.heads_v = s.heads;
  p.head_dim_k = p.head_dim_v = s.dim;
  p.decay = decay;
  p.chunk = delta ? s.chunk / 2 : s.chunk;
  p.delta = delta;
  p.scale = 1 / std::sqrt(static_cast<float>(s.dim));
  const Layout rows = {s.tokens * s.heads * s.dim, int64_t{s.heads} * s.dim, s.dim};
  p.q = p.k = p.v = p.o = p.dq = p.dk = p.dv = p.d_o = rows;
  p.decay_layout = p.d_decay_layout = decay == Decay::kChannel ? rows : Layout{s.tokens * s.heads, s.heads, 1};
  p.beta_layout = p.d_beta_layout = {s.tokens * s.heads, s.heads, 1};
  return p;
}

Rate measure_sgemm(int threads, int repeats) {
  constexpr int n = 1024;
  std::vector<float> a(n * n, 0.5f), b(n * n, 0.25f), c(n * n);
#ifdef OPENBLAS_VERSION
  openblas_set_num_threads(threads);
#endif
  return best_rate(2.0 * n * n * n, threads, 4 * repeats, [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a.data(), n, b.data(), n, 0, c.data(), n);
  });
}

void measure(const Shape &s, Decay decay, bool delta, const char *name) {
  const Problem problem = make_problem(s, decay, delta);
  const TokenPartition partition = make_token_partition(problem, TokenRanges{{0, s.tokens}}, 0);
  ThreadPool pool(s.threads);
  const std::unique_ptr<Backend> backend = make_cpu_backend(problem, partition, pool);
  Buffers b(s, decay);
  std::vector<float> cache(backend->cache_bytes(true) / 4 + 16);
  std::vector<char> workspace(std::max(backend->forward_workspace_bytes(), backend->backward_workspace_bytes()) +
                              64);
  const auto align = [](void *p) {
    return reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(p) + 63) / 64 * 64);
  };
  ForwardBuffers forward{};
  forward.q = b.q.data(), forward.k = b.k.data(), forward.v = b.v.data(), forward.decay = b.g.data();
  forward.beta = b.beta.data(), forward.o = b.o.data();
  forward.state_cache = align(cache.data()), forward.workspace = align(workspace.data());
  BackwardBuffers backward{};
  backward.q = b.q.data(), backward.k = b.k.data(), backward.v = b.v.data(), backward.decay = b.g.data();
  backward.beta = b.beta.data(), backward.d_o = b.d_o.data(), backward.state_cache = align(cache.data());
  backward.dq = b.dq.data(), backward.dk = b.dk.data(), backward.dv = b.dv.data(), backward.d_decay = b.dg.data();
  backward.d_beta = b.d_beta.data(), backward.workspace = align(workspace.data());
  const double rows = static_cast<double>(s.tokens) * s.heads, d = s.dim, c = problem.chunk;
  const double of_forward = delta ? 4 * c * d + 6 * d * d + c * c / 3 : 2 * c * d + 4 * d * d;
  const double of_backward = delta ? 12 * c * d + 14 * d * d + c * c / 3 : 5 * c * d + 8 * d * d;
  const Rate sgemm = measure_sgemm(s.threads, s.repeats);
  const Rate f = best_rate(rows * of_forward, s.threads, s.repeats, [&] { backend->forward_alone(forward); });
  const Rate r = best_rate(rows * of_backward, s.threads, s.repeats, [&] { backend->backward_alone(backward); });
  std::printf(
      "%-14s forward %6.1f (%3.0f%%) [%6.1f (%3.0f%%)]   backward %6.1f (%3.0f%%) [%6.1f (%3.0f%%)]   "
      "sgemm 1024^3 %5.1f [%5.1f]\n",
      name, f.wall, 100 * f.wall / sgemm.wall, f.processor, 100 * f.processor / sgemm.processor, r.wall,
      100 * r.wall / sgemm.wall, r.processor, 100 * r.processor / sgemm.processor, sgemm.wall, sgemm.processor);
  std::fflush(stdout);
}

}  // namespace
}  // namespace lasp

int main(int argc, char **argv) {
  lasp::Shape s;
  const auto number = [&](int i, int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  s.tokens = number(1, s.tokens);
  s.heads = static_cast<int32_t>(number(2, s.heads));
  s.dim = static_cast<int32_t>(number(3, s.dim));
  s.chunk = static_cast<int32_t>(number(4, s.chunk));
  s.threads = static_cast<int32_t>(number(5, s.threads));
  s.repeats = static_cast<int32_t>(number(6, s.repeats));
  std::printf("T %lld, H %d, K = V = %d, chunk %d, %d threads; GFLOP/s (share of sgemm) [by processor time]\n",
              static_cast<long long>(s.tokens), s.heads, s.dim, s.chunk, s.threads);
  const char *const names[2][4] = {{"none", "head", "scalar", "channel"},
                                   {"delta none", "delta head", "delta scalar", "delta channel"}};
  for (int delta = 0; delta < 2; ++delta)
    for (int decay = 0; decay < 4; ++decay)
      lasp::measure(s, static_cast<lasp::Decay>(decay), delta == 1, names[delta][decay]);
  return 0;
}
