// Packing that changes with every pass of one plan: against the oracle, with padding that nobody reads, messages
// that do not depend on it, and ranks that were given different offsets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "support/group.h"
#include "support/guarded_buffer.h"
#include "support/kinds.h"
#include "support/measure.h"
#include "support/packing.h"

namespace lasp_test {
namespace {

constexpr int64_t kMost = 7;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Case base_case(int32_t decay, bool delta) {
  Case c;
  c.name = "packing_" + std::to_string(decay) + (delta ? "_delta" : "");
  c.decay = decay, c.delta = delta;
  c.tokens = 67, c.heads_q = c.heads_k = c.heads_v = 2, c.head_dim_k = c.head_dim_v = 8, c.chunk = 16;
  c.split = Split::ragged;
  return c;
}

// Sequences anywhere, equal offsets too, at most kMost; half of the time padding, and now and then nothing else.
std::vector<int64_t> drawn_offsets(std::mt19937 &random, int64_t tokens) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  if (below(20) == 0) return {0};
  const int64_t end = below(2) == 0 ? tokens : below(tokens + 1);
  std::vector<int64_t> offsets = {0, end};
  for (int64_t i = below(kMost); i > 0; --i) offsets.push_back(below(4) == 0 ? offsets.back() : below(end + 1));
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

// What a rank is given and gives of a tensor [tokens, width]: rows [begin, begin + count) of it.
std::vector<float> rows_of(const std::vector<float> &whole, int64_t begin, int64_t count, int64_t tokens) {
  const auto width = static_cast<int64_t>(whole.size()) / tokens;
  return {whole.begin() + begin * width, whole.begin() + (begin + count) * width};
}

struct Pass {
  Case c;  // with the offsets
  CaseData data;
  Expected expected;
};

Pass make_pass(Case c, std::vector<int64_t> offsets, uint64_t seed) {
  c.cu_seqlens = std::move(offsets);
  Pass pass;
  pass.data = make_data(c, seed);
  pass.expected = expected_of(c, pass.data);
  pass.c = std::move(c);
  return pass;
}

// One rank with one plan, and memory that is the same from pass to pass.
class PackedRank {
 public:
  PackedRank(const Case &c, lasp_comm *comm, int32_t schedule, int32_t verify = 0, int32_t threads = 1)
      : comm_(comm) {
    ok(lasp_comm_get_rank(comm, &rank, &nranks));
    lasp_context_options options = test_context_options(c);
    options.verify_messages = verify, options.cpu_threads = threads;
    ok(lasp_context_create(LASP_ABI, comm, &options, &context_));
    RunOptions run;
    run.schedule = schedule;
    lasp_problem p = problem_of(c, rank, nranks, run);
    p.max_sequences = kMost;
    ok(lasp_plan_create(context_, &p, &plan_));
    ok(lasp_plan_get_info(plan_, &info));
    cache_ = std::make_unique<GuardedBuffer>(info.state_cache_bytes, 64);
    work_ =
        std::make_unique<GuardedBuffer>(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes), 64);
    const std::vector<int64_t> tokens = tokens_of_ranks(c, nranks);
    count = tokens[rank], begin = std::accumulate(tokens.begin(), tokens.begin() + rank, int64_t{0});
  }
  ~PackedRank() {
    ok(lasp_plan_destroy(plan_));
    ok(lasp_context_destroy(context_));
    ok(lasp_comm_destroy(comm_));
  }
  PackedRank(const PackedRank &) = delete;
  PackedRank &operator=(const PackedRank &) = delete;

  // Forward and backward. What is padding holds NaN, all that is written too, and so do states that are not there.
  lasp_status run(const Pass &pass, bool narrow) {
    const Case &c = pass.c;
    const int64_t used = std::clamp<int64_t>(c.cu_seqlens.back() - begin, 0, count);
    const auto input = [&](const std::vector<float> &whole) {
      if (whole.empty()) return whole;
      std::vector<float> mine = rows_of(whole, begin, count, c.tokens);
      const auto width = static_cast<int64_t>(whole.size()) / c.tokens;
      std::fill(mine.begin() + used * width, mine.end(), kNan);
      return mine;
    };
    const bool per_head = c.decay == LASP_DECAY_HEAD;
    q_ = input(pass.data.q), k_ = input(pass.data.k), v_ = input(pass.data.v), d_o_ = input(pass.data.d_o);
    g_ = per_head ? pass.data.g : input(pass.data.g), beta_ = input(pass.data.beta);
    const size_t state = static_cast<size_t>(c.heads() * c.head_dim_k * c.head_dim_v);
    initial_ = pass.data.initial_state, d_final_ = pass.data.d_final_state;
    initial_.resize(kMost * state, kNan), d_final_.resize(kMost * state, kNan);
    for (auto &x : out) x.clear();
    const auto fresh = [&](TensorId id, size_t size) { out[id].assign(size, kNan); };
    fresh(kO, d_o_.size()), fresh(kDq, q_.size()), fresh(kDk, k_.size()), fresh(kDv, v_.size());
    fresh(kDDecay, g_.size()), fresh(kDBeta, beta_.size());
    fresh(kFinalState, initial_.size()), fresh(kDInitialState, initial_.size());
    const PackingOf packing(c.cu_seqlens, narrow);
    cache_->poison(), work_->poison();
    lasp_forward_args f = LASP_FORWARD_ARGS_INIT;
    f.q = in(q_), f.k = in(k_), f.v = in(v_), f.decay = in(g_), f.beta = in(beta_), f.initial_state = in(initial_);
    f.o = to(kO), f.final_state = to(kFinalState), f.packing = packing.get();
    f.state_cache = {cache_->data(), info.state_cache_bytes};
    f.workspace = {work_->data(), info.workspace_forward_bytes};
    const lasp_status status = lasp_forward(plan_, &f, nullptr);
    if (status != LASP_OK) return status;
    work_->poison();
    lasp_backward_args b = LASP_BACKWARD_ARGS_INIT;
    b.q = f.q, b.k = f.k, b.v = f.v, b.decay = f.decay, b.beta = f.beta, b.initial_state = f.initial_state;
    b.d_o = in(d_o_), b.d_final_state = in(d_final_), b.state_cache = {cache_->data(), info.state_cache_bytes};
    b.dq = to(kDq), b.dk = to(kDk), b.dv = to(kDv), b.d_decay = to(kDDecay), b.d_beta = to(kDBeta);
    b.d_initial_state = to(kDInitialState), b.packing = packing.get();
    b.workspace = {work_->data(), info.workspace_backward_bytes};
    return lasp_backward(plan_, &b, nullptr);
  }
  bool within_bounds() const { return cache_->canaries_intact() && work_->canaries_intact(); }

  int32_t rank = 0, nranks = 1;
  int64_t begin = 0, count = 0;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  std::array<std::vector<float>, kTensors> out;

 private:
  static void ok(lasp_status status) { EXPECT_EQ(status, LASP_OK) << lasp_last_error(); }
  static lasp_const_buffer in(const std::vector<float> &x) {
    return {x.empty() ? nullptr : x.data(), x.size() * sizeof(float)};
  }
  lasp_buffer to(TensorId id) {
    return {out[id].empty() ? nullptr : out[id].data(), out[id].size() * sizeof(float)};
  }

  lasp_comm *comm_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  std::vector<float> q_, k_, v_, g_, beta_, d_o_, initial_, d_final_;
  std::unique_ptr<GuardedBuffer> cache_, work_;
};

// The whole tensors, from those of all ranks.
void put_together(const Pass &pass, const PackedRank &rank, TensorSet &whole) {
  const Case &c = pass.c;
  const std::vector<SequenceOwner> owners = sequence_owners(c, rank.nranks);
  const size_t state = static_cast<size_t>(c.heads() * c.head_dim_k * c.head_dim_v);
  for (int id = 0; id < kTensors; ++id) {
    const std::vector<float> &part = rank.out[id];
    std::vector<double> &to = whole[id];
    if (id == kDDecay && c.decay == LASP_DECAY_HEAD) {
      to.resize(part.size(), 0.0);
      for (size_t i = 0; i < part.size(); ++i) to[i] += part[i];
    } else if (id == kFinalState || id == kDInitialState) {
      to.resize(owners.size() * state, kNan);
      for (size_t n = 0; n < static_cast<size_t>(kMost); ++n) {
        const bool mine =
            n < owners.size() && rank.rank == (id == kFinalState ? owners[n].last_rank : owners[n].first_rank);
        for (size_t i = n * state; i < (n + 1) * state; ++i) {
          if (mine) to[i] = part[i];
          ASSERT_TRUE(mine || std::isnan(part[i])) << kTensorNames[id] << " of sequence " << n;
        }
      }
    } else {
      to.insert(to.end(), part.begin(), part.end());
    }
  }
}

// Every element, not their mean alone: what is padding is zero, and NaN is nowhere.
void expect_right(const Pass &pass, const TensorSet &found, bool optional_delta) {
  for (int i = 0; i < kTensors; ++i) {
    const auto id = static_cast<TensorId>(i);
    if (id == kDBeta && !optional_delta) continue;
    const std::vector<double> &expected = pass.expected.tensors[id];
    ASSERT_EQ(found[id].size(), expected.size()) << kTensorNames[id];
    EXPECT_LE(relative_error(expected, found[id], id == kDDecay ? pass.expected.d_decay_size : 0.0),
              error_bound(pass.c, id))
        << kTensorNames[id];
    if (id == kFinalState || id == kDInitialState || (id == kDDecay && pass.c.decay == LASP_DECAY_HEAD)) continue;
    const auto width = expected.size() / static_cast<size_t>(pass.c.tokens);
    for (size_t at = static_cast<size_t>(pass.c.cu_seqlens.back()) * width; at < expected.size(); ++at)
      ASSERT_EQ(found[id][at], 0.0) << kTensorNames[id] << " of padding";
  }
}

void run_all(const Case &c, int32_t nranks, int32_t schedule, int packings, uint32_t seed, int32_t threads = 1) {
  std::mt19937 random(seed);
  std::vector<Pass> passes;
  for (int i = 0; i < packings; ++i)
    passes.push_back(make_pass(c, drawn_offsets(random, c.tokens), static_cast<uint64_t>(i % 3)));
  std::vector<lasp_comm *> comms(static_cast<size_t>(nranks));
  ASSERT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK);
  std::vector<std::vector<std::array<std::vector<float>, kTensors>>> outs(static_cast<size_t>(nranks));
  std::vector<std::unique_ptr<PackedRank>> ranks(static_cast<size_t>(nranks));
  on_threads(nranks, [&](int32_t r) {
    const auto i = static_cast<size_t>(r);
    ranks[i] = std::make_unique<PackedRank>(c, comms[i], schedule, 0, threads);
    for (size_t p = 0; p < passes.size(); ++p) {
      // Ranks may differ in the type of their offsets.
      ASSERT_EQ(ranks[i]->run(passes[p], (p + i) % 2 == 0), LASP_OK) << lasp_last_error();
      outs[i].push_back(ranks[i]->out);
      ASSERT_TRUE(ranks[i]->within_bounds());
    }
  });
  for (size_t p = 0; p < passes.size() && !testing::Test::HasFailure(); ++p) {
    SCOPED_TRACE(testing::Message() << c.name << ", " << nranks << " ranks, " << schedule_name(schedule)
                                    << ", packing " << p << ": " << testing::PrintToString(passes[p].c.cu_seqlens));
    TensorSet whole;
    for (auto &rank : ranks) {
      ASSERT_EQ(outs[static_cast<size_t>(rank->rank)].size(), passes.size());
      rank->out = outs[static_cast<size_t>(rank->rank)][p];
      put_together(passes[p], *rank, whole);
    }
    expect_right(passes[p], whole, c.delta);
  }
}

bool packs() { return !on_cuda(); }

TEST(Packing, AThousandThroughPlansOfEveryKind) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  const int each = quick_run() ? 5 : 32;
  uint32_t seed = 1;
  for (const int32_t decay : kDecays)
    for (const bool delta : {false, true})
      for (const int32_t nranks : {1, 2, 3, 4}) {
        Case c = base_case(decay, delta);
        if (seed % 2 == 0) c.cache = LASP_CACHE_INCOMING;
        run_all(c, nranks, kSchedules[seed % std::size(kSchedules)], each, seed, 1 + seed % 3 / 2);
        ++seed;
      }
}

// By every schedule, on ranks with few tokens or none, grouped heads and 16-bit inputs.
TEST(Packing, OnUnevenRanksBySchedules) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  for (const int32_t schedule : kSchedules)
    for (const int32_t decay : kDecays) {
      Case c = base_case(decay, false);
      c.split = Split::sparse, c.heads_q = 4;
      run_all(c, 5, schedule, quick_run() ? 3 : 12, static_cast<uint32_t>(100 + schedule));
    }
}

// One order of sums over segments, by the two schedules that keep it.
TEST(Packing, WithSegments) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  for (const int32_t schedule : {LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_SCAN})
    for (const int32_t decay : kDecays)
      for (const int32_t nranks : {1, 3}) {
        Case c = base_case(decay, false);
        c.segment = 16, c.split = Split::even;
        run_all(c, nranks, schedule, quick_run() ? 3 : 12, static_cast<uint32_t>(200 + nranks));
      }
}

// A packed plan sends what a plan of one sequence sends: where a schedule brings transitions that all ranks could
// work out of a plan of one sequence, those too.
TEST(Packing, MessagesAreThoseOfOneSequence) {
  for (const int32_t decay : kDecays)
    for (const int32_t schedule : kSchedules)
      for (int32_t rank = 0; rank < 4; ++rank) {
        const Case c = base_case(decay, false);
        RunOptions options;
        options.schedule = schedule;
        lasp_problem p = problem_of(c, rank, 4, options);
        lasp_placement at = LASP_PLACEMENT_INIT;
        at.rank = rank, at.nranks = 4;
        lasp_plan_info plain = LASP_PLAN_INFO_INIT, few = plain, many = plain;
        ASSERT_EQ(lasp_problem_get_info(&p, &at, &plain), LASP_OK);
        p.max_sequences = 2;
        ASSERT_EQ(lasp_problem_get_info(&p, &at, &few), LASP_OK);
        p.max_sequences = 500;
        ASSERT_EQ(lasp_problem_get_info(&p, &at, &many), LASP_OK);
        const bool maps = schedule == LASP_SCHEDULE_ALL_GATHER || schedule == LASP_SCHEDULE_DOUBLING;
        const bool known = decay == LASP_DECAY_NONE || decay == LASP_DECAY_HEAD;
        const uint64_t factor = maps && known ? static_cast<uint64_t>(c.heads()) * sizeof(float) : 0;
        EXPECT_EQ(few.forward_messages_sent, plain.forward_messages_sent);
        EXPECT_EQ(few.forward_bytes_sent, plain.forward_bytes_sent + factor * plain.forward_messages_sent);
        EXPECT_EQ(few.backward_bytes_sent, plain.backward_bytes_sent + factor * plain.backward_messages_sent);
        EXPECT_EQ(many.forward_bytes_sent, few.forward_bytes_sent);
        EXPECT_EQ(many.backward_messages_sent, few.backward_messages_sent);
        EXPECT_GE(many.workspace_forward_bytes, few.workspace_forward_bytes);
        EXPECT_EQ(many.num_sequences, 500);
      }
}

// Two ranks of two minds. Where messages are verified the later one finds out; else numbers are undefined, and all
// calls return.
TEST(Packing, OffsetsThatDifferBetweenRanks) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  for (const int32_t schedule : kSchedules)
    for (const int32_t decay : kDecays)
      for (const int32_t verify : {0, 1}) {
        const Case c = base_case(decay, decay % 2 == 1);
        const Pass here = make_pass(c, {0, 10, 50}, 0), there = make_pass(c, {0, 10, 51}, 0);
        lasp_comm *comms[2] = {};
        ASSERT_EQ(lasp_comm_create_threads(2, comms), LASP_OK);
        lasp_status statuses[2] = {};
        std::string sentences[2];
        on_threads(2, [&](int32_t r) {
          PackedRank rank(c, comms[r], schedule, verify);
          statuses[r] = rank.run(r == 0 ? here : there, false);
          sentences[r] = lasp_last_error();
          EXPECT_TRUE(rank.within_bounds());
        });
        if (verify == 0) {
          EXPECT_EQ(statuses[0], LASP_OK) << sentences[0];
          EXPECT_EQ(statuses[1], LASP_OK) << sentences[1];
        } else {
          EXPECT_EQ(statuses[1], LASP_ERROR_TRANSPORT) << sentences[1];
          EXPECT_NE(sentences[1].find("arrived changed (checksum), or that rank was given another packing"),
                    std::string::npos)
              << sentences[1];
          EXPECT_NE(statuses[0], LASP_OK);  // in its backward pass
        }
      }
}

TEST(Packing, EqualOffsetsOfEitherTypeAreVerified) {
  if (!packs()) GTEST_SKIP() << "buffers of this test are the host's; tests/gpu/packing_test.cpp has a GPU's";
  const Case c = base_case(LASP_DECAY_SCALAR, false);
  const Pass pass = make_pass(c, {0, 10, 50}, 0), next = make_pass(c, {0, 10, 10, 51}, 0);
  lasp_comm *comms[3] = {};
  ASSERT_EQ(lasp_comm_create_threads(3, comms), LASP_OK);
  on_threads(3, [&](int32_t r) {
    PackedRank rank(c, comms[r], LASP_SCHEDULE_DOUBLING, 1);
    EXPECT_EQ(rank.run(pass, r == 1), LASP_OK) << lasp_last_error();
    EXPECT_EQ(rank.run(next, r == 0), LASP_OK) << lasp_last_error();
  });
}

}  // namespace
}  // namespace lasp_test
