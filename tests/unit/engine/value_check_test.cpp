// check_values: what is wrong with a tensor's numbers is found, wherever it is, and named; what is right passes.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kBatch = 2, kTokens = 5, kHeads = 2, kDim = 8, kRow = kHeads * kDim;

lasp_problem small_problem(int32_t decay) {
  lasp_problem p = LASP_PROBLEM_INIT;
  p.batch = kBatch, p.tokens = kTokens, p.decay = decay;
  p.heads_q = p.heads_k = p.heads_v = kHeads, p.head_dim_k = p.head_dim_v = kDim;
  return p;
}

// A rank with all the memory of its passes, filled with small numbers.
class Rank {
 public:
  Rank(lasp_comm *comm, const lasp_problem &problem, int32_t check = 1) : comm_(comm) {
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.check_values = check, options.cpu_threads = 1, options.time_limit_ms = 20'000;
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &options, &context_), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_plan_create(context_, &problem, &plan_), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_plan_get_info(plan_, &info_), LASP_OK);
    for (std::vector<float> *tensor : {&q, &k, &v, &d_o, &o, &dq, &dk, &dv})
      tensor->assign(static_cast<size_t>(kBatch * kTokens * kRow), 0.25f);
    decay.assign(static_cast<size_t>(kBatch * kTokens * kRow), -0.5f);
    d_decay = decay;
    for (std::vector<float> *states : {&initial_state, &final_state, &d_initial_state, &d_final_state, &state})
      states->assign(static_cast<size_t>(info_.num_sequences * kHeads * kDim * kDim), 0.125f);
    cache_.resize(info_.state_cache_bytes + 64);
    work_.resize(std::max(info_.workspace_forward_bytes, info_.workspace_backward_bytes) + 64);
    given_decay = problem.decay;
  }
  ~Rank() {
    EXPECT_EQ(lasp_plan_destroy(plan_), LASP_OK);
    EXPECT_EQ(lasp_context_destroy(context_), LASP_OK);
    EXPECT_EQ(lasp_comm_destroy(comm_), LASP_OK);
  }
  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

  lasp_status forward() {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    inputs(a);
    a.packing = packing;
    a.initial_state = in(initial_state);
    a.o = out(o), a.final_state = out(final_state), a.state_cache = aligned(cache_), a.workspace = aligned(work_);
    return said(lasp_forward(plan_, &a, nullptr));
  }
  lasp_status backward() {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    inputs(a);
    a.packing = packing;
    const lasp_buffer cache = aligned(cache_);
    a.initial_state = in(initial_state), a.d_o = in(d_o), a.d_final_state = in(d_final_state);
    a.state_cache = {cache.data, cache.bytes}, a.workspace = aligned(work_);
    a.dq = out(dq), a.dk = out(dk), a.dv = out(dv), a.d_initial_state = out(d_initial_state);
    if (given_decay != LASP_DECAY_NONE) a.d_decay = out(d_decay);
    return said(lasp_backward(plan_, &a, nullptr));
  }
  lasp_status step() {
    lasp_step_args a = LASP_STEP_ARGS_INIT;
    inputs(a);
    a.state = out(state), a.o = out(o);
    return said(lasp_step(plan_, &a, nullptr));
  }

  std::vector<float> q, k, v, decay, d_o, o, dq, dk, dv, d_decay;
  std::vector<float> initial_state, final_state, d_initial_state, d_final_state, state;
  std::string sentence;
  int32_t given_decay = LASP_DECAY_NONE;
  const lasp_packing *packing = nullptr;

 private:
  static lasp_const_buffer in(const std::vector<float> &x) { return {x.data(), x.size() * 4}; }
  static lasp_buffer out(std::vector<float> &x) { return {x.data(), x.size() * 4}; }
  static lasp_buffer aligned(std::vector<char> &x) {
    const auto at = (reinterpret_cast<uintptr_t>(x.data()) + 63) / 64 * 64;
    return {reinterpret_cast<void *>(at), x.size() - 64};
  }
  template <class Args>
  void inputs(Args &a) const {
    a.q = in(q), a.k = in(k), a.v = in(v);
    if (given_decay != LASP_DECAY_NONE) a.decay = in(decay);
  }
  lasp_status said(lasp_status status) {
    sentence = status == LASP_OK ? "" : lasp_last_error();
    return status;
  }

  lasp_comm *comm_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
  std::vector<char> cache_, work_;
};

lasp_comm *alone() {
  lasp_comm *comm = nullptr;
  EXPECT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  return comm;
}

size_t element(int64_t row, int64_t token, int64_t head, int64_t channel = 0) {
  return static_cast<size_t>((row * kTokens + token) * kRow + head * kDim + channel);
}

TEST(ValueCheck, WhatIsRightPasses) {
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    Rank rank(alone(), small_problem(decay));
    rank.decay.front() = 0;
    rank.decay[1] = -kInfinity;  // forgets all
    EXPECT_EQ(rank.forward(), LASP_OK) << rank.sentence;
    EXPECT_EQ(rank.backward(), LASP_OK) << rank.sentence;
    EXPECT_EQ(rank.step(), LASP_OK) << rank.sentence;
  }
}

TEST(ValueCheck, EachInputIsNamedWithItsPlace) {
  const struct {
    std::vector<float> Rank::*tensor;
    size_t at;
    float value;
    const char *forward, *backward, *step;
  } rows[] = {
      {&Rank::q, element(1, 3, 1, 7), kNan, "q: NaN at sequence 1, token 3, head 1", "same", "same"},
      {&Rank::k, element(0, 4, 0), kInfinity, "k: infinity at sequence 0, token 4, head 0", "same", "same"},
      {&Rank::v, element(1, 0, 1), -kInfinity, "v: infinity at sequence 1, token 0, head 1", "same", "same"},
      {&Rank::decay, element(1, 2, 0, 5), 1e-30f, "decay: a decay above 0 at sequence 1, token 2, head 0", "same",
       "same"},
      {&Rank::decay, element(0, 0, 1), kNan, "decay: NaN at sequence 0, token 0, head 1", "same", "same"},
      {&Rank::initial_state, 64, kNan, "initial_state: NaN at sequence 0, head 1", "same", ""},
      {&Rank::d_o, element(0, 1, 1), kNan, "", "d_o: NaN at sequence 0, token 1, head 1", ""},
      {&Rank::d_final_state, 3 * 64, kInfinity, "", "d_final_state: infinity at sequence 1, head 1", ""},
      {&Rank::state, 2 * 64, kNan, "", "", "o: NaN at sequence 1, token 0, head 0"},
  };
  for (const auto &row : rows) {
    Rank rank(alone(), small_problem(LASP_DECAY_CHANNEL));
    ASSERT_EQ(rank.forward(), LASP_OK) << rank.sentence;  // a state cache without faults
    (rank.*row.tensor)[row.at] = row.value;
    const auto expect = [&](lasp_status status, const std::string &wanted) {
      EXPECT_EQ(status, wanted.empty() ? LASP_OK : LASP_ERROR_VALUES) << wanted << ": " << rank.sentence;
      EXPECT_EQ(rank.sentence, wanted);
    };
    const std::string forward = row.forward;
    expect(rank.backward(), row.backward == std::string("same") ? forward : row.backward);
    expect(rank.forward(), forward);
    expect(rank.step(), row.step == std::string("same") ? forward : row.step);
  }
}

TEST(ValueCheck, PerHeadDecaysSixteenBitsAndOverflow) {
  Rank rank(alone(), small_problem(LASP_DECAY_HEAD));
  rank.decay[1] = 0.5f;
  EXPECT_EQ(rank.forward(), LASP_ERROR_VALUES);
  EXPECT_EQ(rank.sentence, "decay: a decay above 0 at head 1");
  rank.decay[1] = -0.5f;
  for (const size_t i : {size_t{0}, size_t{1}}) rank.q[element(0, 2, 0) + i] = rank.k[element(0, 2, 0) + i] = 3e38f;
  EXPECT_EQ(rank.forward(), LASP_ERROR_VALUES);
  EXPECT_EQ(rank.sentence.substr(0, 3), "o: ") << rank.sentence;  // inputs are right
  // Bits of 16-bit types: the same memory seen as two elements each.
  for (const auto &[dtype, good, bad, found] :
       {std::tuple{LASP_BFLOAT16, 0x3e80, 0x7f80, "infinity"}, std::tuple{LASP_BFLOAT16, 0x3e80, 0xffc0, "NaN"},
        std::tuple{LASP_FLOAT16, 0x7bff, 0xfc00, "infinity"}, std::tuple{LASP_FLOAT16, 0x2c00, 0x7e00, "NaN"}}) {
    lasp_problem p = small_problem(LASP_DECAY_NONE);
    p.dtype = dtype;
    Rank narrow(alone(), p);
    for (std::vector<float> *x : {&narrow.q, &narrow.k, &narrow.v})
      for (size_t i = 0; i < x->size() * 2; ++i)
        reinterpret_cast<uint16_t *>(x->data())[i] = x == &narrow.v ? static_cast<uint16_t>(good) : 0;
    EXPECT_EQ(narrow.forward(), LASP_OK) << narrow.sentence;
    reinterpret_cast<uint16_t *>(narrow.v.data())[element(1, 1, 0, 3)] = static_cast<uint16_t>(bad);
    EXPECT_EQ(narrow.forward(), LASP_ERROR_VALUES);
    EXPECT_EQ(narrow.sentence, std::string("v: ") + found + " at sequence 1, token 1, head 0");
  }
}

// Tokens are counted over all ranks, sequences by their offsets; the call does its work on every rank, and later
// ones too.
TEST(ValueCheck, InAGroupEveryRankWorksOn) {
  const int64_t offsets[] = {0, 3, 3, 8, 9};  // the last token is padding
  lasp_packing packing = LASP_PACKING_INIT;
  packing.cu_seqlens = {offsets, sizeof offsets}, packing.num_sequences = 4;
  lasp_comm *comms[2];
  ASSERT_EQ(lasp_comm_create_threads(2, comms), LASP_OK);
  lasp_problem p = small_problem(LASP_DECAY_SCALAR);
  p.batch = 1, p.max_sequences = 4;
  const auto run = [&](int32_t r) {
    Rank rank(comms[r], p);
    rank.packing = &packing;
    if (r == 1) rank.v[element(0, 4, 1)] = kNan;  // nobody reads it
    EXPECT_EQ(rank.forward(), LASP_OK) << rank.sentence;
    if (r == 1) rank.v[element(0, 2, 1)] = kNan;  // token 7 of all, the last one of sequence 2
    EXPECT_EQ(rank.forward(), r == 1 ? LASP_ERROR_VALUES : LASP_OK) << rank.sentence;
    EXPECT_EQ(rank.sentence, r == 1 ? "v: NaN at sequence 2, token 7, head 1" : "");
    rank.v[element(0, 2, 1)] = 0.25f;
    EXPECT_EQ(rank.forward(), LASP_OK) << rank.sentence;
    EXPECT_EQ(rank.backward(), LASP_OK) << rank.sentence;
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST(ValueCheck, NobodyLooksWhereItIsOff) {
  Rank rank(alone(), small_problem(LASP_DECAY_NONE), 0);
  rank.q[0] = kNan;
  EXPECT_EQ(rank.forward(), LASP_OK) << rank.sentence;
}

}  // namespace
