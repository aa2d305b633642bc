// Every buffer of a call may be as small as its own tensor's strides and heads, and the sequences, allow, and not
// by a byte smaller. No two tensors of the problem here have the same strides, so that none is measured by
// another's.
#include <algorithm>
#include <functional>
#include <map>

#include "bad_input.h"

namespace {

constexpr int64_t kBatch = 2, kTokens = 24, kHeads = 4, kDimK = 8, kDimV = 16;
// Two heads read each head of q, all four the one of v.
constexpr int64_t kHeadsQ = 2, kHeadsK = 4, kHeadsV = 1;

struct Tensor {
  const char *name;
  lasp_layout lasp_problem::*layout;
  int64_t heads, dim;
};
constexpr Tensor kTensors[] = {
    {"q", &lasp_problem::q, kHeadsQ, kDimK},         {"k", &lasp_problem::k, kHeadsK, kDimK},
    {"v", &lasp_problem::v, kHeadsV, kDimV},         {"decay", &lasp_problem::decay_layout, kHeads, kDimK},
    {"o", &lasp_problem::o, kHeads, kDimV},          {"d_o", &lasp_problem::d_o, kHeads, kDimV},
    {"dq", &lasp_problem::dq, kHeadsQ, kDimK},       {"dk", &lasp_problem::dk, kHeadsK, kDimK},
    {"dv", &lasp_problem::dv, kHeadsV, kDimV},       {"d_decay", &lasp_problem::d_decay_layout, kHeads, kDimK},
    {"beta", &lasp_problem::beta_layout, kHeads, 1}, {"d_beta", &lasp_problem::d_beta_layout, kHeads, 1}};

// Of both writes.
class LeastBytes : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    lasp_problem problem = LASP_PROBLEM_INIT;
    problem.batch = kBatch, problem.tokens = kTokens;
    problem.heads_q = kHeadsQ, problem.heads_k = kHeadsK, problem.heads_v = kHeadsV;
    problem.head_dim_k = kDimK, problem.head_dim_v = kDimV;
    problem.decay = LASP_DECAY_CHANNEL;
    if (GetParam()) problem.write = LASP_WRITE_DELTA;
    int64_t gap = 0;  // between a tensor's heads, tokens and batch rows, in elements
    for (const Tensor &t : kTensors) {
      if (!GetParam() && std::string(t.name).find("beta") != std::string::npos) continue;
      lasp_layout &s = problem.*t.layout;
      s.flags = LASP_LAYOUT_STRIDED;
      gap += 8, s.head = t.dim + gap, s.token = s.head * t.heads + gap, s.batch = s.token * kTokens + gap;
      const int64_t last = (kBatch - 1) * s.batch + (kTokens - 1) * s.token + (t.heads - 1) * s.head + t.dim - 1;
      take(t.name, 4 * static_cast<size_t>(last + 1));
    }
    for (const char *state : {"initial_state", "final_state", "d_initial_state", "d_final_state", "state"})
      take(state, 4 * kBatch * kHeads * kDimK * kDimV);
    Rig::must(lasp_comm_create_self(&comm));
    Rig::must(lasp_context_create(LASP_ABI, comm, nullptr, &context));
    Rig::must(lasp_plan_create(context, &problem, &plan));
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    Rig::must(lasp_plan_get_info(plan, &info));
    take("state_cache", info.state_cache_bytes);
    take("workspace", std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
    buffers["workspace"].bytes = info.workspace_forward_bytes;
    workspace_backward = info.workspace_backward_bytes;
  }
  void TearDown() override {
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_context_destroy(context), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
  }

  void take(const char *name, size_t bytes) {
    buffers[name] = arena.take(bytes);
    std::memset(buffers[name].data, 0, bytes);
  }
  // As small as may be, or a byte less.
  lasp_buffer out(const std::string &name) {
    asked.push_back(name);
    lasp_buffer b = buffers.at(name);
    if (name == short_of_one) --b.bytes;
    return b;
  }
  lasp_const_buffer in(const std::string &name) {
    const lasp_buffer b = out(name);
    return {b.data, b.bytes};
  }

  template <class Args>
  void inputs(Args &a) {
    a.q = in("q"), a.k = in("k"), a.v = in("v"), a.decay = in("decay");
    if (GetParam()) a.beta = in("beta");
  }
  lasp_status forward() {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    inputs(a);
    a.initial_state = in("initial_state"), a.o = out("o"), a.final_state = out("final_state");
    a.state_cache = out("state_cache"), a.workspace = out("workspace");
    return lasp_forward(plan, &a, nullptr);
  }
  lasp_status backward() {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    inputs(a);
    a.initial_state = in("initial_state"), a.d_o = in("d_o"), a.d_final_state = in("d_final_state");
    a.state_cache = in("state_cache"), a.dq = out("dq"), a.dk = out("dk"), a.dv = out("dv");
    a.d_decay = out("d_decay"), a.d_initial_state = out("d_initial_state"), a.workspace = out("workspace");
    if (GetParam()) a.d_beta = out("d_beta");
    return lasp_backward(plan, &a, nullptr);
  }
  lasp_status step() {
    lasp_step_args a = LASP_STEP_ARGS_INIT;
    inputs(a);
    a.state = out("state"), a.o = out("o");
    return lasp_step(plan, &a, nullptr);
  }

  void expect_each_needs_its_last_byte(const std::function<lasp_status()> &call) {
    asked.clear();
    ASSERT_EQ(call(), LASP_OK) << lasp_last_error();
    for (const std::string &name : std::vector<std::string>(asked)) {
      short_of_one = name;
      EXPECT_EQ(call(), LASP_ERROR_BUFFER_TOO_SMALL) << name;
      EXPECT_EQ(std::string(lasp_last_error()).find(name + " holds "), 0u) << name << ": " << lasp_last_error();
    }
    short_of_one.clear();
  }

  Arena arena{size_t{2} << 20};
  std::map<std::string, lasp_buffer> buffers;
  std::vector<std::string> asked;
  std::string short_of_one;
  uint64_t workspace_backward = 0;
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
};

TEST_P(LeastBytes, OfForward) {
  expect_each_needs_its_last_byte([&] { return forward(); });
}

TEST_P(LeastBytes, OfBackward) {
  ASSERT_EQ(forward(), LASP_OK) << lasp_last_error();
  buffers["workspace"].bytes = workspace_backward;
  expect_each_needs_its_last_byte([&] { return backward(); });
}

TEST_P(LeastBytes, OfStep) {
  expect_each_needs_its_last_byte([&] { return step(); });
}

INSTANTIATE_TEST_SUITE_P(Writes, LeastBytes, testing::Bool(),
                         [](const auto &test) { return test.param ? "Delta" : "Additive"; });

}  // namespace
