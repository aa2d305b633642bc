// The CPU backend against the recurrence in float64, without an engine: this test carves up the work, moves the
// states between simulated ranks itself, and stops the work done ahead at will.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cpu/gemm.h"
#include "cpu_backend_oracle.h"
#include "cpu_backend_ranks.h"

namespace lasp::cpu_test {
namespace {

double difference(const Values &a, const Values &b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) error += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return size == 0 ? std::sqrt(error) : std::sqrt(error / size);
}

// Summing n terms of random sign rounds by u sqrt(n / 6) of the sum (tests/support/measure.cpp has the steps), and
// a result nests sums over at most 1500 tokens, 64 keys and 512 values: 18.6 u. A decay factor exp(G), with |G| <
// 10 where it still counts, has 12 u more. A tenth on top for the spread is 34 u = 2e-6. Rounding to the tensor's
// type adds its own.
constexpr double kBound = 2e-6;
// A per-head gradient is one number that sums terms of both signs, so it is measured by the sum of their sizes. It
// has one term for each key of each token, 8 at least and 16 mostly, whose errors of kBound are independent: a
// quarter of kBound where the terms are of one size, and twice that where a few of them are larger.
constexpr double kSumBound = 1e-6;

void expect_close(const Case &c, const Results &got, const Results &want) {
  const double tensor = kBound + (c.dtype == DType::kFloat32 ? 0 : unit_roundoff(c.dtype));
  const double decay = kBound + (c.decay_dtype == DType::kFloat32 ? 0 : unit_roundoff(c.decay_dtype));
  EXPECT_LE(difference(got.o, want.o), tensor);
  EXPECT_LE(difference(got.dq, want.dq), tensor);
  EXPECT_LE(difference(got.dk, want.dk), tensor);
  EXPECT_LE(difference(got.dv, want.dv), tensor);
  if (want.head_terms.empty()) {
    EXPECT_LE(difference(got.d_decay, want.d_decay), decay);
  }
  for (size_t h = 0; h < want.head_terms.size(); ++h) {
    EXPECT_LE(std::abs(got.d_decay[h] - want.d_decay[h]), kSumBound * want.head_terms[h]);
  }
  EXPECT_LE(difference(got.final_state, want.final_state), kBound);
  EXPECT_LE(difference(got.d_initial_state, want.d_initial_state), kBound);
}

void expect_same(const Results &a, const Results &b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.final_state, b.final_state);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
  EXPECT_EQ(a.d_decay, b.d_decay);
  EXPECT_EQ(a.d_initial_state, b.d_initial_state);
}

class CpuBackend : public testing::TestWithParam<Case> {};
class CpuBackendAlone : public CpuBackend {};
class CpuBackendStep : public CpuBackend {};
class CpuBackendPortable : public CpuBackend {};

void expect_agreement(const Case &c) {
  const Inputs in = make_inputs(c);
  Oracle oracle{c, in, {}};
  oracle.run();
  if (c.split.size() <= 1) {
    Group alone(c, in);
    alone.run(Ahead::kNone, false);
    expect_close(c, alone.results(oracle.out), oracle.out);
  }
  Group late(c, in), half(c, in), early(c, in);
  late.run(Ahead::kNone, true);
  const Results first = late.results(oracle.out);
  expect_close(c, first, oracle.out);
  half.run(Ahead::kHalf, true);
  expect_same(half.results(oracle.out), first);
  early.run(Ahead::kAll, true);
  expect_same(early.results(oracle.out), first);

  // Outputs once more from the cache, with nothing exchanged.
  for (auto &r : early.ranks) std::fill(r->o.bytes.begin(), r->o.bytes.end(), 0x11);
  std::fill(early.final.begin(), early.final.end(), NAN);
  for (auto &r : early.ranks) r->backend->forward_from_cache(early.forward_buffers(*r));
  const Results again = early.results(oracle.out);
  EXPECT_EQ(again.o, first.o);
  EXPECT_LE(difference(again.final_state, first.final_state), kBound);
}

TEST_P(CpuBackend, AgreesWithTheRecurrence) { expect_agreement(GetParam()); }

// The same on the kernels of a processor without vector extensions, and by products of the BLAS.
TEST_P(CpuBackendPortable, AgreesWithTheRecurrence) {
  const cpu::Products by = cpu::products();
  cpu::multiply_by(cpu::Products::kBlas);
  Case c = GetParam();
  c.kernels = cpu::usable_kernels().back();
  expect_agreement(c);
  cpu::multiply_by(by);
}

TEST_P(CpuBackendAlone, DoesNotDependOnTheNumberOfThreads) {
  Case c = GetParam();
  const Inputs in = make_inputs(c);
  Oracle shape{c, in, {}};
  shape.shape();
  c.threads = 1;
  Group one(c, in);
  one.run(Ahead::kNone, false);
  c.threads = 3;
  Group three(c, in);
  three.run(Ahead::kNone, false);
  expect_same(three.results(shape.out), one.results(shape.out));
}

TEST_P(CpuBackendStep, StepsLikeTheRecurrence) {
  const Case &c = GetParam();
  const Inputs in = make_inputs(c);
  Oracle oracle{c, in, {}};
  oracle.run_forward();
  Group group(c, in);
  Rank &r = *group.ranks[0];
  std::vector<float> state(group.initial.size(), 0.0f);
  if (c.states) state = group.initial;
  r.backend->step({r.q.bytes.data(), r.k.bytes.data(), r.v.bytes.data(), r.decay_data(), nullptr, state.data(),
                   r.o.bytes.data(), r.problem.tokens});
  std::copy(state.begin(), state.end(), group.final.begin());
  group.d_initial.assign(group.d_initial.size(), NAN);
  for (size_t n = 0; n + 1 < c.cu_seqlens.size(); ++n) {
    const auto size = static_cast<size_t>(int64_t{c.heads()} * c.keys * c.values);
    if (c.cu_seqlens[n] == c.cu_seqlens[n + 1]) std::fill_n(group.final.begin() + n * size, size, NAN);
  }
  const Results got = group.results(oracle.out);
  // One token after another: each may round the state once more in the same direction.
  const double bound = kBound + static_cast<double>(c.tokens) * 0x1p-24;
  EXPECT_LE(difference(got.o, oracle.out.o), bound + (c.dtype == DType::kFloat32 ? 0 : unit_roundoff(c.dtype)));
  EXPECT_LE(difference(got.final_state, oracle.out.final_state), bound);
}

// ThreadSanitizer is for what threads share. It needs minutes for tensors that are large enough to be written past
// the caches, whose stores it does not see anyway, for long chunks and weak decays, and for kernels without vector
// extensions, which run in the same threads as the others. AddressSanitizer has all of these, but one type of the
// tensors written past the caches; the plain build has all.
#if defined(__SANITIZE_THREAD__)
constexpr bool kForThreads = true;
#else
constexpr bool kForThreads = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kForAddresses = true;
#else
constexpr bool kForAddresses = false;
#endif

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const std::pair<const char *, Decay> kinds[] = {
      {"none", Decay::kNone}, {"head", Decay::kHead}, {"scalar", Decay::kScalar}, {"channel", Decay::kChannel}};
  for (const auto &[kind, decay] : kinds) {
    const auto add = [&, k = std::string(kind), d = decay](const std::string &name, Case c) {
      c.name = k + "_" + name;
      c.decay = d;
      cases.push_back(c);
    };
    add("plain", {.batch = 2, .tokens = 96});
    add("no_states", {.tokens = 70, .states = false});
    add("short", {.tokens = 5, .states = false});
    add("one_token", {.tokens = 1});
    add("tail", {.tokens = 131, .keys = 32, .values = 16});
    add("chunk16", {.tokens = 77, .chunk = 16});
    if (!kForThreads) {
      add("chunk128", {.tokens = 300, .keys = 64, .values = 40, .chunk = 128});
      add("chunk256",
          {.tokens = 530, .heads_q = 1, .heads_k = 1, .heads_v = 1, .keys = 24, .values = 64, .chunk = 256});
    }
    add("incoming_cache", {.tokens = 131, .cache_chunks = false});
    add("grouped_queries", {.tokens = 80, .heads_q = 6, .heads_k = 2, .heads_v = 3});
    add("grouped_values", {.tokens = 80, .heads_q = 1, .heads_k = 2, .heads_v = 6, .cache_chunks = false});
    add("heads_first", {.batch = 2, .tokens = 67, .order = Order::kHeadsFirst});
    add("padded", {.batch = 2, .tokens = 67, .order = Order::kPadded});
    add("bfloat16", {.batch = 2,
                     .tokens = 75,
                     .heads_q = 2,
                     .heads_k = 1,
                     .heads_v = 2,
                     .dtype = DType::kBFloat16,
                     .order = Order::kPadded});
    add("float16", {.tokens = 75,
                    .dtype = DType::kFloat16,
                    .decay_dtype = decay == Decay::kHead ? DType::kFloat32 : DType::kFloat16});
    add("packed", {.tokens = 150, .cu_seqlens = {0, 17, 17, 50, 51, 150}});
    add("two_ranks", {.batch = 2, .tokens = 150, .split = {80, 70}});
    add("three_ranks", {.batch = 3, .tokens = 161, .heads_q = 4, .heads_k = 2, .heads_v = 1, .split = {64, 0, 97}});
    add("tiny_ranks", {.tokens = 20, .split = {1, 17, 0, 2}});
    add("ranks_no_states", {.tokens = 140, .states = false, .split = {70, 70}});
    add("ranks_incoming_cache", {.tokens = 161, .cache_chunks = false, .split = {60, 37, 64}});
    add("ranks_packed", {.tokens = 170,
                         .cache_chunks = false,
                         .cu_seqlens = {0, 40, 80, 80, 130, 150, 170},
                         .split = {80, 40, 50}});
    add("ranks_bfloat16", {.batch = 2,
                           .tokens = 150,
                           .heads_q = 2,
                           .heads_k = 1,
                           .heads_v = 2,
                           .cache_chunks = false,
                           .dtype = DType::kBFloat16,
                           .split = {80, 70}});
    add("ranks_float16", {.tokens = 150,
                          .dtype = DType::kFloat16,
                          .decay_dtype = decay == Decay::kHead ? DType::kFloat32 : DType::kFloat16,
                          .split = {80, 70}});
    if (decay == Decay::kScalar && !kForThreads) {
      // Large enough for results to be written past the caches.
      add("streamed",
          {.tokens = 1030, .heads_q = 4, .heads_k = 4, .heads_v = 4, .keys = 8, .values = 512, .chunk = 128});
      if (!kForAddresses)
        add("streamed_bfloat16", {.tokens = 1030,
                                  .heads_q = 4,
                                  .heads_k = 4,
                                  .heads_v = 8,
                                  .keys = 8,
                                  .values = 512,
                                  .chunk = 256,
                                  .dtype = DType::kBFloat16,
                                  .order = Order::kPadded});
    }
    if (decay != Decay::kNone) {
      add("forgetting", {.tokens = 150, .some_forget = true, .split = {80, 70}});
      add("strong", {.tokens = 150, .decay_low = -60, .decay_high = -60, .states = false, .chunk = 128});
      add("mixed", {.tokens = 400, .decay_low = -9, .decay_high = 0, .chunk = 128, .split = {150, 250}});
      if (!kForThreads) {
        add("weak", {.tokens = 1500, .decay_low = -1e-6f, .decay_high = -1e-6f, .chunk = 128});
        add("weak_ranks",
            {.tokens = 1500, .decay_low = -1e-6f, .decay_high = -1e-6f, .chunk = 128, .split = {700, 800}});
      }
    }
  }
  for (Case c : std::vector<Case>{
           {.name = "plain", .batch = 2, .tokens = 96},
           {.name = "no_states", .tokens = 70, .states = false},
           {.name = "grouped", .tokens = 80, .heads_q = 6, .heads_k = 2, .heads_v = 3},
           {.name = "ranks", .batch = 2, .tokens = 161, .split = {64, 0, 97}},
           {.name = "bfloat16", .tokens = 150, .heads_q = 1, .dtype = DType::kBFloat16, .split = {80, 70}}}) {
    c.name = "bidirectional_" + c.name;
    c.bidirectional = true;
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> cases_where(bool (*wanted)(const Case &)) {
  std::vector<Case> chosen;
  for (const Case &c : all_cases()) {
    if (wanted(c)) chosen.push_back(c);
  }
  return chosen;
}

const auto name_of = [](const auto &info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Cases, CpuBackend, testing::ValuesIn(all_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Cases, CpuBackendPortable, testing::ValuesIn(cases_where([](const Case &c) {
                           return c.tokens <= 200 && c.split.size() != 1 &&
                                  (!kForThreads || c.name == "scalar_three_ranks");
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cases, CpuBackendAlone,
                         testing::ValuesIn(cases_where([](const Case &c) { return c.split.empty(); })), name_of);
INSTANTIATE_TEST_SUITE_P(Cases, CpuBackendStep, testing::ValuesIn(cases_where([](const Case &c) {
                           return c.split.empty() && !c.bidirectional;
                         })),
                         name_of);

}  // namespace
}  // namespace lasp::cpu_test
