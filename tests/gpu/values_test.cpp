// check_values on a GPU: what is wrong with a tensor's numbers is found in device memory, and named as on the CPU;
// a captured pass, which could not be waited for, is refused.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "support/device.h"

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kBatch = 2, kTokens = 5, kHeads = 2, kDim = 8, kRow = kHeads * kDim;

lasp_problem small_problem(int32_t decay) {
  lasp_problem p = LASP_PROBLEM_INIT;
  p.batch = kBatch, p.tokens = kTokens, p.decay = decay;
  p.heads_q = p.heads_k = p.heads_v = kHeads, p.head_dim_k = p.head_dim_v = kDim;
  return p;
}

// Numbers here and memory there.
class Memory {
 public:
  Memory() = default;
  ~Memory() {
    if (device_ != nullptr) gpu::release(device_, bytes());
  }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;

  void make(size_t count, float value) {
    host.assign(count, value);
    device_ = gpu::allocate(bytes());
  }
  void upload(lasp_stream stream) { gpu::copy(device_, host.data(), bytes(), stream); }
  lasp_const_buffer in() const { return {device_, bytes()}; }
  lasp_buffer out() const { return {device_, bytes()}; }

  std::vector<float> host;

 private:
  size_t bytes() const { return host.size() * sizeof(float); }
  void *device_ = nullptr;
};

enum Id {
  kQ,
  kK,
  kV,
  kDecay,
  kDO,
  kO,
  kDq,
  kDk,
  kDv,
  kDDecay,
  kInitial,
  kFinal,
  kDInitial,
  kDFinal,
  kState,
  kCount
};

class Rank {
 public:
  Rank(lasp_comm *comm, const lasp_problem &problem) : comm_(comm), stream_(gpu::make_stream()), p_(problem) {
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.device = LASP_DEVICE_CUDA, options.check_values = 1, options.time_limit_ms = 20'000;
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &options, &context_), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_plan_create(context_, &problem, &plan_), LASP_OK) << lasp_last_error();
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    EXPECT_EQ(lasp_plan_get_info(plan_, &info), LASP_OK);
    for (int id = 0; id < kCount; ++id)
      (*this)[id].make(
          static_cast<size_t>(id < kInitial ? kBatch * kTokens * kRow : info.num_sequences * kHeads * kDim * kDim),
          id == kDecay ? -0.5f : 0.125f);
    cache_.make(info.state_cache_bytes / 4 + 1, 0);
    work_.make(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes) / 4 + 1, 0);
  }
  ~Rank() {
    EXPECT_EQ(lasp_plan_destroy(plan_), LASP_OK);
    EXPECT_EQ(lasp_context_destroy(context_), LASP_OK);
    EXPECT_EQ(lasp_comm_destroy(comm_), LASP_OK);
    gpu::destroy_stream(stream_);
  }
  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

  Memory &operator[](int id) { return tensors_[static_cast<size_t>(id)]; }
  lasp_stream stream() const { return stream_; }

  void upload() {
    for (Memory &tensor : tensors_) tensor.upload(stream_);
  }
  lasp_status forward() {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    inputs(a);
    a.packing = packing;
    a.initial_state = (*this)[kInitial].in();
    a.o = (*this)[kO].out(), a.final_state = (*this)[kFinal].out();
    a.state_cache = cache_.out(), a.workspace = work_.out();
    return said(lasp_forward(plan_, &a, stream_));
  }
  lasp_status backward() {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    inputs(a);
    a.packing = packing;
    a.initial_state = (*this)[kInitial].in();
    a.d_o = (*this)[kDO].in(), a.d_final_state = (*this)[kDFinal].in();
    a.state_cache = cache_.in(), a.workspace = work_.out();
    a.dq = (*this)[kDq].out(), a.dk = (*this)[kDk].out(), a.dv = (*this)[kDv].out();
    a.d_initial_state = (*this)[kDInitial].out();
    if (p_.decay != LASP_DECAY_NONE) a.d_decay = (*this)[kDDecay].out();
    return said(lasp_backward(plan_, &a, stream_));
  }
  lasp_status step() {
    lasp_step_args a = LASP_STEP_ARGS_INIT;
    inputs(a);
    a.state = (*this)[kState].out(), a.o = (*this)[kO].out();
    return said(lasp_step(plan_, &a, stream_));
  }

  std::string sentence;
  const lasp_packing *packing = nullptr;

 private:
  template <class Args>
  void inputs(Args &a) {
    a.q = (*this)[kQ].in(), a.k = (*this)[kK].in(), a.v = (*this)[kV].in();
    if (p_.decay != LASP_DECAY_NONE) a.decay = (*this)[kDecay].in();
  }
  lasp_status said(lasp_status status) {
    sentence = status == LASP_OK ? "" : lasp_last_error();
    return status;
  }

  lasp_comm *comm_;
  lasp_stream stream_;
  const lasp_problem p_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  std::array<Memory, kCount> tensors_;
  Memory cache_, work_;
};

lasp_comm *alone() {
  lasp_comm *comm = nullptr;
  EXPECT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  return comm;
}

size_t element(int64_t row, int64_t token, int64_t head, int64_t channel = 0) {
  return static_cast<size_t>((row * kTokens + token) * kRow + head * kDim + channel);
}

TEST(ValuesOnTheGpu, WhatIsRightPasses) {
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    Rank rank(alone(), small_problem(decay));
    rank[kDecay].host.front() = 0;
    rank[kDecay].host[1] = -kInfinity;  // forgets all
    rank.upload();
    EXPECT_EQ(rank.forward(), LASP_OK) << rank.sentence;
    EXPECT_EQ(rank.backward(), LASP_OK) << rank.sentence;
    EXPECT_EQ(rank.step(), LASP_OK) << rank.sentence;
  }
}

TEST(ValuesOnTheGpu, EachInputIsNamedWithItsPlace) {
  const struct {
    Id tensor;
    size_t at;
    float value;
    const char *forward, *backward, *step;
  } rows[] = {
      {kQ, element(1, 3, 1, 7), kNan, "q: NaN at sequence 1, token 3, head 1", "same", "same"},
      {kK, element(0, 4, 0), kInfinity, "k: infinity at sequence 0, token 4, head 0", "same", "same"},
      {kV, element(1, 0, 1), -kInfinity, "v: infinity at sequence 1, token 0, head 1", "same", "same"},
      {kDecay, element(1, 2, 0, 5), 1e-30f, "decay: a decay above 0 at sequence 1, token 2, head 0", "same",
       "same"},
      {kDecay, element(0, 0, 1), kNan, "decay: NaN at sequence 0, token 0, head 1", "same", "same"},
      {kInitial, 64, kNan, "initial_state: NaN at sequence 0, head 1", "same", ""},
      {kDO, element(0, 1, 1), kNan, "", "d_o: NaN at sequence 0, token 1, head 1", ""},
      {kDFinal, 3 * 64, kInfinity, "", "d_final_state: infinity at sequence 1, head 1", ""},
      {kState, 2 * 64, kNan, "", "", "o: NaN at sequence 1, token 0, head 0"},
  };
  for (const auto &row : rows) {
    Rank rank(alone(), small_problem(LASP_DECAY_CHANNEL));
    rank.upload();
    ASSERT_EQ(rank.forward(), LASP_OK) << rank.sentence;  // a state cache without faults
    rank[row.tensor].host[row.at] = row.value;
    const auto expect = [&](lasp_status status, const std::string &wanted) {
      EXPECT_EQ(status, wanted.empty() ? LASP_OK : LASP_ERROR_VALUES) << wanted << ": " << rank.sentence;
      EXPECT_EQ(rank.sentence, wanted);
    };
    const std::string forward = row.forward;
    rank.upload();
    expect(rank.backward(), row.backward == std::string("same") ? forward : row.backward);
    expect(rank.forward(), forward);
    expect(rank.step(), row.step == std::string("same") ? forward : row.step);
  }
}

TEST(ValuesOnTheGpu, PerHeadDecaysAndSixteenBits) {
  Rank rank(alone(), small_problem(LASP_DECAY_HEAD));
  rank[kDecay].host[1] = 0.5f;
  rank.upload();
  EXPECT_EQ(rank.forward(), LASP_ERROR_VALUES);
  EXPECT_EQ(rank.sentence, "decay: a decay above 0 at head 1");
  for (const auto &[dtype, good, bad, found] :
       {std::tuple{LASP_BFLOAT16, 0x3e80, 0x7f80, "infinity"}, std::tuple{LASP_BFLOAT16, 0x3e80, 0xffc0, "NaN"},
        std::tuple{LASP_FLOAT16, 0x7bff, 0xfc00, "infinity"}, std::tuple{LASP_FLOAT16, 0x2c00, 0x7e00, "NaN"}}) {
    lasp_problem p = small_problem(LASP_DECAY_NONE);
    p.dtype = dtype;
    Rank narrow(alone(), p);
    for (const Id id : {kQ, kK, kV})
      for (size_t i = 0; i < narrow[id].host.size() * 2; ++i)
        reinterpret_cast<uint16_t *>(narrow[id].host.data())[i] = id == kV ? static_cast<uint16_t>(good) : 0;
    narrow.upload();
    EXPECT_EQ(narrow.forward(), LASP_OK) << narrow.sentence;
    reinterpret_cast<uint16_t *>(narrow[kV].host.data())[element(1, 1, 0, 3)] = static_cast<uint16_t>(bad);
    narrow.upload();
    EXPECT_EQ(narrow.forward(), LASP_ERROR_VALUES);
    EXPECT_EQ(narrow.sentence, std::string("v: ") + found + " at sequence 1, token 1, head 0");
  }
}

// The first of many faults is the one that is said, however many threads have found some.
TEST(ValuesOnTheGpu, TheFirstOfMany) {
  Rank rank(alone(), small_problem(LASP_DECAY_NONE));
  for (size_t i = element(0, 2, 1, 3); i < rank[kK].host.size(); ++i) rank[kK].host[i] = kNan;
  rank[kK].host[element(0, 2, 1, 3)] = kInfinity;
  rank.upload();
  EXPECT_EQ(rank.forward(), LASP_ERROR_VALUES);
  EXPECT_EQ(rank.sentence, "k: infinity at sequence 0, token 2, head 1");
}

// Tokens are counted over all ranks, sequences by offsets that may lie on the device; these are looked at, too. The
// call does its work on every rank, and later ones too.
TEST(ValuesOnTheGpu, InAGroupWithOffsetsOnTheDevice) {
  const int64_t offsets[] = {0, 3, 3, 8, 9};  // the last token is padding
  lasp_comm *comms[2];
  ASSERT_EQ(lasp_comm_create_threads(2, comms), LASP_OK);
  lasp_problem p = small_problem(LASP_DECAY_SCALAR);
  p.batch = 1, p.max_sequences = 4;
  const auto run = [&](int32_t r) {
    void *const there = gpu::allocate(sizeof offsets);
    lasp_packing packing = LASP_PACKING_INIT;
    packing.cu_seqlens = {there, sizeof offsets}, packing.num_sequences = 4;
    {
      Rank rank(comms[r], p);
      gpu::copy(there, offsets, sizeof offsets, rank.stream());
      rank.packing = &packing;
      if (r == 1) rank[kV].host[element(0, 4, 1)] = kNan;  // nobody reads it
      rank.upload();
      EXPECT_EQ(rank.forward(), LASP_OK) << rank.sentence;
      if (r == 1) rank[kV].host[element(0, 2, 1)] = kNan;  // token 7 of all, the last one of sequence 2
      rank.upload();
      EXPECT_EQ(rank.forward(), r == 1 ? LASP_ERROR_VALUES : LASP_OK) << rank.sentence;
      EXPECT_EQ(rank.sentence, r == 1 ? "v: NaN at sequence 2, token 7, head 1" : "");
      rank[kV].host[element(0, 2, 1)] = 0.25f;
      rank.upload();
      EXPECT_EQ(rank.forward(), LASP_OK) << rank.sentence;
      EXPECT_EQ(rank.backward(), LASP_OK) << rank.sentence;
      const int64_t wrong[] = {0, 3, 2, 8, 9};
      gpu::copy(there, wrong, sizeof wrong, rank.stream());
      EXPECT_EQ(rank.forward(), LASP_ERROR_VALUES);
      EXPECT_EQ(rank.sentence, "packing.cu_seqlens[2] = 2: less than the offset before it, 3");
    }
    gpu::release(there, sizeof offsets);
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST(ValuesOnTheGpu, ACapturedPassIsRefused) {
  Rank rank(alone(), small_problem(LASP_DECAY_NONE));
  rank.upload();
  ASSERT_EQ(rank.forward(), LASP_OK) << rank.sentence;
  gpu::Graph graph;
  graph.begin(rank.stream());
  EXPECT_EQ(rank.forward(), LASP_ERROR_UNSUPPORTED);
  EXPECT_NE(rank.sentence.find("stream: it is being captured, and with check_values = 1"), std::string::npos)
      << rank.sentence;
  graph.end(rank.stream());
  EXPECT_EQ(rank.forward(), LASP_OK) << rank.sentence;
}

}  // namespace
