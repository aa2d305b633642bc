// Speed of the CPU backend on its own, without an engine or an exchange: GFLOP/s of forward and backward for each
// decay kind, beside the rate of sgemm in the same moments. For work on the kernels; lasp-bench measures the
// library.
//
//   cpu_kernels [tokens [heads [head_dim [chunk [threads [repeats]]]]]]
//
// Counted per token and head: forward 2CK + 2CV with the causal half, and 4KV; backward 6CK + 4CV with the causal
// half, and 8KV. Delta rule: forward 4CK + 4CV with the causal half, 6KV and C^2 / 3 for the inverse; backward
// 12CK + 12CV with the causal half, 14KV and C^2 / 3. Its chunk is half as long. Rates are given by wall time and,
// for a machine that is shared, by the processor time of all threads. There the speed of a core changes within a
// second. So each pass is compared with sgemm right before and after it, and medians of rates and shares are
// printed.
#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/cpu_backend.h"
#include "cpu_rate.h"

namespace lasp {
namespace {

struct Shape {
  int64_t tokens = 16384;
  int32_t heads = 8, dim = 128, chunk = 128, threads = 2, repeats = 11;
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

class Sgemm {
 public:
  explicit Sgemm(int threads)
      : threads_(threads), a_(kSide * kSide, 0.5f), b_(kSide * kSide, 0.25f), c_(kSide * kSide) {}
  Rate measure() {
#ifdef OPENBLAS_VERSION
    openblas_set_num_threads(threads_);
#endif
    constexpr int n = kSide;
    const Rate rate = rate_of(2.0 * n * n * n, threads_, [&] {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a_.data(), n, b_.data(), n, 0, c_.data(),
                  n);
    });
    // OpenBLAS's other threads go on waiting busily for some 70 ms, in which a pass would be measured.
    if (threads_ > 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    return rate;
  }

 private:
  static constexpr int kSide = 1024;
  int threads_;
  std::vector<float> a_, b_, c_;
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t half = x.size() / 2;
  return x.size() % 2 == 1 ? x[half] : (x[half - 1] + x[half]) / 2;
}

// The rates of a pass, and their shares of sgemm beside it.
struct Samples {
  std::vector<double> wall, processor, wall_share, processor_share;

  void add(const Rate &pass, const Rate &before, const Rate &after) {
    wall.push_back(pass.wall), wall_share.push_back(2 * pass.wall / (before.wall + after.wall));
    processor.push_back(pass.processor);
    processor_share.push_back(2 * pass.processor / (before.processor + after.processor));
  }
  void print(const char *pass) const {
    std::printf("  %s %6.1f (%3.0f%%) [%6.1f (%5.1f%%, %.0f to %.0f%%)]", pass, median(wall),
                100 * median(wall_share), median(processor), 100 * median(processor_share),
                100 * *std::min_element(processor_share.begin(), processor_share.end()),
                100 * *std::max_element(processor_share.begin(), processor_share.end()));
  }
};

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
  Sgemm sgemm(s.threads);
  const auto run_forward = [&] { backend->forward_alone(forward); };
  const auto run_backward = [&] { backend->backward_alone(backward); };
  run_forward(), run_backward(), sgemm.measure();  // not counted
  Samples forwards, backwards;
  std::vector<double> sgemms;
  Rate before = sgemm.measure();
  for (int turn = 0; turn < s.repeats; ++turn) {
    const Rate f = rate_of(rows * of_forward, s.threads, run_forward), between = sgemm.measure();
    const Rate r = rate_of(rows * of_backward, s.threads, run_backward), after = sgemm.measure();
    forwards.add(f, before, between), backwards.add(r, between, after);
    sgemms.push_back(before.processor);
    before = after;
  }
  std::printf("%-14s", name);
  forwards.print("forward"), backwards.print("backward");
  std::printf("  sgemm 1024^3 [%5.1f]\n", median(sgemms));
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
  s.repeats = std::max(1, static_cast<int32_t>(number(6, s.repeats)));
  std::printf(
      "T %lld, H %d, K = V = %d, chunk %d, %d threads; GFLOP/s (share of sgemm) [by processor time, least to "
      "most]\n",
      static_cast<long long>(s.tokens), s.heads, s.dim, s.chunk, s.threads);
  const char *const names[2][4] = {{"none", "head", "scalar", "channel"},
                                   {"delta none", "delta head", "delta scalar", "delta channel"}};
  for (int delta = 0; delta < 2; ++delta)
    for (int decay = 0; decay < 4; ++decay)
      lasp::measure(s, static_cast<lasp::Decay>(decay), delta == 1, names[delta][decay]);
  return 0;
}
