// Runs every row of the tables of wrong calls (bad_input.h), and shows that the same rig succeeds when nothing is
// wrong.
#include <algorithm>
#include <regex>

#include "bad_input.h"
#include "support/strided_layout.h"

TEST_P(WrongCalls, RefusedWithReasonAndNoEffect) {
  const WrongCall &row = GetParam();
  Rig rig(row.delta ? Rig::delta_problem() : row.packed ? Rig::packed_problem() : Rig::valid_problem());
  const std::vector<unsigned char> arena_before = rig.arena.bytes();
  unsigned char outs_before[sizeof(Outs)];
  std::memcpy(outs_before, &rig.outs, sizeof(Outs));

  const lasp_status status = row.call(rig);
  const std::string sentence = lasp_last_error();

  EXPECT_EQ(status, row.status) << lasp_status_name(status) << ", expected " << lasp_status_name(row.status)
                                << ": \"" << sentence << "\"";
  if (status != LASP_OK) {
    EXPECT_TRUE(std::regex_search(sentence, std::regex(row.sentence)))
        << "\"" << sentence << "\" does not match " << row.sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
  }
  EXPECT_TRUE(arena_before == rig.arena.bytes()) << "a buffer was written";
  EXPECT_EQ(std::memcmp(outs_before, &rig.outs, sizeof(Outs)), 0) << "an out-parameter was written";
  // "Everything lives on": the rig still works.
  const lasp_forward_args args = rig.forward_args();
  EXPECT_EQ(lasp_forward(rig.plan, &args, nullptr), LASP_OK) << lasp_last_error();
}

// A library on top of this one has sentences of its own.
TEST(LastError, MayBeSetByAnotherLibrary) {
  EXPECT_EQ(lasp_set_last_error(LASP_ERROR_TRANSPORT, "a sentence of mine"), LASP_ERROR_TRANSPORT);
  EXPECT_STREQ(lasp_last_error(), "a sentence of mine");
  const std::string longer(5000, 'x');
  EXPECT_EQ(lasp_set_last_error(12345, longer.c_str()), 12345);
  EXPECT_EQ(lasp_last_error(), longer.substr(0, 1023));
  EXPECT_EQ(lasp_set_last_error(LASP_OK, nullptr), LASP_OK);
  EXPECT_STREQ(lasp_last_error(), "");
}

TEST(RightCalls, WriteEveryOutput) {
  Rig rig;
  const lasp_forward_args forward = rig.forward_args();
  ASSERT_EQ(lasp_forward(rig.plan, &forward, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_FALSE(Arena::all_canary(rig.o));
  EXPECT_FALSE(Arena::all_canary(rig.final_state));
  EXPECT_FALSE(Arena::all_canary(rig.state_cache));
  EXPECT_TRUE(Arena::all_canary(rig.dq));
  const lasp_backward_args backward = rig.backward_args();
  ASSERT_EQ(lasp_backward(rig.plan, &backward, nullptr), LASP_OK) << lasp_last_error();
  for (const lasp_buffer &written : {rig.dq, rig.dk, rig.dv, rig.d_decay, rig.d_initial_state}) {
    EXPECT_FALSE(Arena::all_canary(written));
  }
  std::memset(rig.state.data, 0, rig.state.bytes);
  const lasp_step_args step = rig.step_args();
  ASSERT_EQ(lasp_step(rig.plan, &step, nullptr), LASP_OK) << lasp_last_error();
}

TEST(RightCalls, WriteEveryOutputOfTheDeltaRule) {
  Rig rig(Rig::delta_problem());
  const lasp_forward_args forward = rig.forward_args();
  ASSERT_EQ(lasp_forward(rig.plan, &forward, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_FALSE(Arena::all_canary(rig.o));
  EXPECT_TRUE(Arena::all_canary(rig.d_beta));
  const lasp_backward_args backward = rig.backward_args();
  ASSERT_EQ(lasp_backward(rig.plan, &backward, nullptr), LASP_OK) << lasp_last_error();
  for (const lasp_buffer &written : {rig.dq, rig.dk, rig.dv, rig.d_decay, rig.d_beta, rig.d_initial_state}) {
    EXPECT_FALSE(Arena::all_canary(written));
  }
  std::memset(rig.state.data, 0, rig.state.bytes);
  const lasp_step_args step = rig.step_args();
  ASSERT_EQ(lasp_step(rig.plan, &step, nullptr), LASP_OK) << lasp_last_error();
}

TEST(RightCalls, WriteEveryOutputOfAPackedPlan) {
  Rig rig(Rig::packed_problem());
  const lasp_forward_args forward = rig.forward_args();
  ASSERT_EQ(lasp_forward(rig.plan, &forward, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_FALSE(Arena::all_canary(rig.o));
  const lasp_backward_args backward = rig.backward_args();
  ASSERT_EQ(lasp_backward(rig.plan, &backward, nullptr), LASP_OK) << lasp_last_error();
  for (const lasp_buffer &written : {rig.dq, rig.dk, rig.dv, rig.d_decay, rig.d_initial_state})
    EXPECT_FALSE(Arena::all_canary(written));
  // Of the sequence that is not there nothing is written.
  for (const lasp_buffer &states : {rig.final_state, rig.d_initial_state}) {
    const size_t row = states.bytes / Rig::kMostSequences, there = row * Rig::kSequences;
    EXPECT_TRUE(Arena::all_canary({static_cast<char *>(states.data) + there, states.bytes - there}));
    EXPECT_FALSE(Arena::all_canary({static_cast<char *>(states.data) + there - row, row}));
  }
}

// Whatever its place is read by a program of a later version.
TEST(RightCalls, AnyTypeOfOffsetsAndALargerStruct) {
  Rig rig(Rig::packed_problem());
  const int32_t narrow[] = {0, 5, 20};
  struct {
    lasp_packing known;
    unsigned char later[16];
  } larger{rig.packing, {}};
  larger.known.size = sizeof larger;
  larger.known.dtype = LASP_INT32, larger.known.memory = LASP_DEVICE_CPU;
  larger.known.cu_seqlens = {narrow, sizeof narrow};
  lasp_forward_args args = rig.forward_args();
  args.packing = &larger.known;
  EXPECT_EQ(lasp_forward(rig.plan, &args, nullptr), LASP_OK) << lasp_last_error();
  larger.later[0] = 1;
  EXPECT_EQ(lasp_forward(rig.plan, &args, nullptr), LASP_ERROR_INVALID_STRUCT);
}

// q, k and v in one buffer, dq, dk and dv in another, o beside q in a third; and inputs that are each other.
TEST(RightCalls, InterleavedTensorsAreAccepted) {
  constexpr int64_t kHeads = 2, kDim = 16, kTokens = 10, kWidth = 3 * kHeads * kDim;
  Rig rig;
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = kTokens;
  problem.heads_q = problem.heads_k = problem.heads_v = kHeads;
  problem.head_dim_k = problem.head_dim_v = kDim;
  problem.q = problem.k = problem.v = problem.o = problem.dq = problem.dk = problem.dv =
      lasp_test::strided(kTokens * kWidth, kWidth, kDim);
  lasp_plan *plan = nullptr;
  ASSERT_EQ(lasp_plan_create(rig.context, &problem, &plan), LASP_OK) << lasp_last_error();
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  ASSERT_EQ(lasp_plan_get_info(plan, &info), LASP_OK);
  Arena arena(1 << 20);
  const lasp_buffer qkv = arena.take(kTokens * kWidth * 4), gradients = arena.take(kTokens * kWidth * 4),
                    d_o = arena.take(kTokens * kHeads * kDim * 4), cache = arena.take(info.state_cache_bytes),
                    work = arena.take(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
  std::memset(qkv.data, 0, qkv.bytes);
  std::memset(d_o.data, 0, d_o.bytes);
  const auto part = [](const lasp_buffer &whole, size_t i) {
    const size_t begin = i * kHeads * kDim * 4;
    return lasp_buffer{static_cast<char *>(whole.data) + begin, whole.bytes - begin};
  };
  const auto input = [](const lasp_buffer &buffer) { return lasp_const_buffer{buffer.data, buffer.bytes}; };
  lasp_forward_args f = LASP_FORWARD_ARGS_INIT;
  f.q = f.k = input(part(qkv, 0));
  f.v = input(part(qkv, 1));
  f.o = part(qkv, 2);
  f.state_cache = cache, f.workspace = work;
  EXPECT_EQ(lasp_forward(plan, &f, nullptr), LASP_OK) << lasp_last_error();
  lasp_backward_args b = LASP_BACKWARD_ARGS_INIT;
  b.q = f.q, b.k = f.k, b.v = f.v, b.d_o = input(d_o), b.state_cache = input(cache), b.workspace = work;
  b.dq = part(gradients, 0), b.dk = part(gradients, 1), b.dv = part(gradients, 2);
  EXPECT_EQ(lasp_backward(plan, &b, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
}

// One key head for all lies between the rows of o, or in an element of it.
TEST(Forward, AnExpandedInputIsFoundInAnOutput) {
  constexpr int64_t kHeads = 4, kDim = 16, kTokens = 10, kWidth = (kHeads + 1) * kDim;
  Rig rig;
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = kTokens, problem.backward = 0;
  problem.heads_q = problem.heads_k = problem.heads_v = kHeads;
  problem.head_dim_k = problem.head_dim_v = kDim;
  problem.o = lasp_test::strided(kTokens * kWidth, kWidth, kDim);
  problem.k = lasp_test::strided(0, kWidth, 0);
  lasp_plan *plan = nullptr;
  ASSERT_EQ(lasp_plan_create(rig.context, &problem, &plan), LASP_OK) << lasp_last_error();
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  ASSERT_EQ(lasp_plan_get_info(plan, &info), LASP_OK);
  Arena arena(1 << 20);
  const lasp_buffer q = arena.take(kTokens * kHeads * kDim * 4), all = arena.take(kTokens * kWidth * 4);
  std::memset(q.data, 0, q.bytes);
  std::memset(all.data, 0, all.bytes);
  lasp_forward_args f = LASP_FORWARD_ARGS_INIT;
  f.q = f.v = {q.data, q.bytes};
  f.workspace = arena.take(info.workspace_forward_bytes);
  f.o = {all.data, all.bytes - kDim * 4};
  const auto with_k_at = [&](int64_t floats) {
    const size_t bytes = ((kTokens - 1) * kWidth + kDim) * 4;
    f.k = {static_cast<float *>(all.data) + floats, bytes};
    return lasp_forward(plan, &f, nullptr);
  };
  EXPECT_EQ(with_k_at(kHeads * kDim), LASP_OK) << lasp_last_error();
  EXPECT_EQ(with_k_at(kHeads * kDim - 1), kInvalid);
  EXPECT_STREQ(lasp_last_error(), "k and o share memory: an output needs its own");
  EXPECT_EQ(with_k_at(kDim), kInvalid);
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
}

// The rows of o leave room for a whole workspace between them, which no element touches. It is refused all the
// same.
TEST(Forward, RefusesAWorkspaceBetweenTheElementsOfAnOutput) {
  constexpr int64_t kHeads = 2, kDim = 16, kTokens = 10, kRow = kTokens * kHeads * kDim, kGap = 1 << 16;
  Rig rig;
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.batch = 2;
  problem.tokens = kTokens;
  problem.heads_q = problem.heads_k = problem.heads_v = kHeads;
  problem.head_dim_k = problem.head_dim_v = kDim;
  problem.backward = 0;
  problem.o = lasp_test::strided(kRow + kGap, kHeads * kDim, kDim);
  lasp_plan *plan = nullptr;
  ASSERT_EQ(lasp_plan_create(rig.context, &problem, &plan), LASP_OK) << lasp_last_error();
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  ASSERT_EQ(lasp_plan_get_info(plan, &info), LASP_OK);
  ASSERT_LE(info.workspace_forward_bytes, kGap * 4 - info.alignment);
  Arena arena(1 << 20);
  const lasp_buffer qkv = arena.take(2 * kRow * 4), o = arena.take((2 * kRow + kGap) * 4);
  std::memset(qkv.data, 0, qkv.bytes);
  const auto end_of_row = reinterpret_cast<uintptr_t>(o.data) + kRow * 4;
  const auto room = (end_of_row + info.alignment - 1) / info.alignment * info.alignment;
  lasp_forward_args f = LASP_FORWARD_ARGS_INIT;
  f.q = f.k = f.v = {qkv.data, qkv.bytes};
  f.o = o;
  f.workspace = {reinterpret_cast<void *>(room), info.workspace_forward_bytes};
  EXPECT_EQ(lasp_forward(plan, &f, nullptr), kInvalid);
  EXPECT_STREQ(lasp_last_error(), "o and workspace share memory: an output needs its own");
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
}
