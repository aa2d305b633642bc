// While one call is inside a comm, every other call on the comm's contexts and plans is refused. That the first
// call holds the comm is tests/abi/bad_input_ranks.cpp's and tests/endurance's; here it is held by hand, so that
// each of the others meets it.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <functional>
#include <string>
#include <vector>

#include "handles.h"

namespace lasp {
namespace {

constexpr int64_t kTokens = 4;
constexpr size_t kFloats = kTokens * 8;

class InUseByAnother : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
    ASSERT_EQ(lasp_context_create(LASP_ABI, comm, nullptr, &context), LASP_OK);
    ASSERT_EQ(lasp_context_create(LASP_ABI, comm, nullptr, &without_plans), LASP_OK);
    ASSERT_EQ(lasp_plan_create(context, &problem(), &plan), LASP_OK) << lasp_last_error();
    ASSERT_EQ(lasp_plan_get_info(plan, &info), LASP_OK);
    memory.resize(info.state_cache_bytes + info.workspace_forward_bytes + info.workspace_backward_bytes + 64);
  }
  void TearDown() override {
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_context_destroy(without_plans), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_context_destroy(context), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
  }
  static const lasp_problem &problem() {
    static const lasp_problem p = [] {
      lasp_problem small = LASP_PROBLEM_INIT;
      small.tokens = kTokens, small.head_dim_k = small.head_dim_v = 8;
      return small;
    }();
    return p;
  }
  lasp_const_buffer in() const { return {input.data(), input.size() * 4}; }
  static lasp_buffer out(std::vector<float> &x) { return {x.data(), x.size() * 4}; }
  lasp_buffer aligned(size_t begin, uint64_t bytes) {
    const auto at = (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64 + begin;
    return {reinterpret_cast<void *>(at), bytes};
  }
  lasp_status forward() {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    a.q = a.k = a.v = in(), a.o = out(o);
    a.state_cache = aligned(0, info.state_cache_bytes);
    a.workspace = aligned(info.state_cache_bytes, info.workspace_forward_bytes);
    return lasp_forward(plan, &a, nullptr);
  }
  lasp_status backward() {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    a.q = a.k = a.v = a.d_o = in(), a.dq = out(o), a.dk = out(dk), a.dv = out(dv);
    const lasp_buffer cache = aligned(0, info.state_cache_bytes);
    a.state_cache = {cache.data, cache.bytes};
    a.workspace = aligned(info.state_cache_bytes + info.workspace_forward_bytes, info.workspace_backward_bytes);
    return lasp_backward(plan, &a, nullptr);
  }
  lasp_status step() {
    lasp_step_args a = LASP_STEP_ARGS_INIT;
    a.q = a.k = a.v = in(), a.o = out(o), a.state = out(state);
    return lasp_step(plan, &a, nullptr);
  }

  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr, *without_plans = nullptr;
  lasp_plan *plan = nullptr, *another = nullptr;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  std::vector<float> input = std::vector<float>(kFloats, 1.0f), o = std::vector<float>(kFloats, 77.0f), dk = o,
                     dv = o, state = std::vector<float>(64, 77.0f);
  std::vector<std::byte> memory;
};

TEST_F(InUseByAnother, EveryCallIsRefusedAndLeavesAllAsItWas) {
  const std::pair<const char *, std::function<lasp_status()>> calls[] = {
      {"lasp_plan_create", [&] { return lasp_plan_create(without_plans, &problem(), &another); }},
      {"lasp_plan_prepare", [&] { return lasp_plan_prepare(plan, nullptr); }},
      {"lasp_forward", [&] { return forward(); }},
      {"lasp_backward", [&] { return backward(); }},
      {"lasp_step", [&] { return step(); }},
      {"lasp_plan_destroy", [&] { return lasp_plan_destroy(plan); }},
      {"lasp_context_destroy", [&] { return lasp_context_destroy(without_plans); }},
  };
  for (const auto &[name, call] : calls) {
    {
      const InUse by_another_call(comm->engine, "another call");
      EXPECT_EQ(call(), LASP_ERROR_IN_USE) << name;
      EXPECT_NE(std::string(lasp_last_error()).find("another thread"), std::string::npos)
          << name << lasp_last_error();
    }
    EXPECT_FALSE(comm->engine.in_use) << name;
  }
  EXPECT_EQ(another, nullptr);
  for (const std::vector<float> *x : {&o, &dk, &dv, &state})
    for (const float value : *x) ASSERT_EQ(value, 77.0f);
  // All is well once the other call has ended.
  EXPECT_EQ(lasp_plan_prepare(plan, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_EQ(forward(), LASP_OK) << lasp_last_error();
  EXPECT_EQ(backward(), LASP_OK) << lasp_last_error();
  EXPECT_EQ(step(), LASP_OK) << lasp_last_error();
}

TEST_F(InUseByAnother, QueriesAreAnsweredAllTheSame) {
  const InUse by_another_call(comm->engine, "another call");
  lasp_status status = -1;
  char text[8] = "?";
  EXPECT_EQ(lasp_context_get_async_error(context, &status, text, sizeof text), LASP_OK) << lasp_last_error();
  EXPECT_EQ(status, LASP_OK);
  EXPECT_STREQ(text, "");
  int32_t rank = -1, last = -1;
  EXPECT_EQ(lasp_plan_get_info(plan, &info), LASP_OK);
  EXPECT_EQ(lasp_plan_get_owners(plan, 0, 0, &rank, &last), LASP_OK);
  EXPECT_EQ(lasp_plan_describe(plan, nullptr, 0, nullptr), LASP_OK);
  EXPECT_EQ(lasp_comm_get_rank(comm, &rank, nullptr), LASP_OK);
  int32_t device = -1, index = -1;
  EXPECT_EQ(lasp_context_get_device(context, &device, &index), LASP_OK);
  EXPECT_TRUE(device == LASP_DEVICE_CPU && index == 0) << device << " " << index;
}

// The call in progress goes on until it notices; whoever asks meanwhile is told.
TEST_F(InUseByAnother, AnAbortIsToldAtOnceAndEndsTheComm) {
  lasp_status status = -1;
  {
    const InUse by_another_call(comm->engine, "another call");
    ASSERT_EQ(lasp_context_abort(context), LASP_OK) << lasp_last_error();
    char text[64] = "?", beginning[7] = "?";
    EXPECT_EQ(lasp_context_get_async_error(context, &status, text, sizeof text), LASP_OK) << lasp_last_error();
    EXPECT_EQ(status, LASP_ERROR_ABORTED);
    EXPECT_STREQ(text, "comm: the group was aborted; destroy it and build a new one");
    EXPECT_EQ(lasp_context_get_async_error(context, &status, beginning, sizeof beginning), LASP_OK);
    EXPECT_STREQ(beginning, "comm: ");
  }
  status = -1;
  EXPECT_EQ(lasp_context_get_async_error(without_plans, &status, nullptr, 0), LASP_OK) << lasp_last_error();
  EXPECT_EQ(status, LASP_ERROR_ABORTED);
  lasp_context *late = nullptr;
  const std::pair<const char *, lasp_status> answers[] = {
      {"lasp_context_create", lasp_context_create(LASP_ABI, comm, nullptr, &late)},
      {"lasp_plan_create", lasp_plan_create(without_plans, &problem(), &another)},
      {"lasp_forward", forward()},
      {"lasp_backward", backward()},
      {"lasp_step", step()},
  };
  for (const auto &[name, answer] : answers) EXPECT_EQ(answer, LASP_ERROR_ABORTED) << name;
  EXPECT_EQ(late, nullptr);
  EXPECT_EQ(another, nullptr);
}

}  // namespace
}  // namespace lasp
