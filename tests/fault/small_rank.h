// One rank of a small problem through the public interface: its context, plan, buffers, and what each call
// answered.
#pragma once

#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <cstddef>
#include <string>
#include <vector>

namespace lasp_test {

constexpr int64_t kTokens = 20;
constexpr int32_t kHeads = 2, kDim = 8;

struct Result {
  lasp_status status = -1;
  std::string sentence;
};

class Rank {
 public:
  Rank(lasp_comm *comm, int64_t time_limit_ms, lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT)
      : comm_(comm) {
    options.time_limit_ms = time_limit_ms;
    options.cpu_threads = 1;
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &options, &context_), LASP_OK) << lasp_last_error();
  }
  ~Rank() {
    lasp_halo_destroy(halo_);
    lasp_plan_destroy(plan_);
    lasp_context_destroy(context_);
    lasp_comm_destroy(comm_);
  }
  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

  Result plan(int32_t schedule, bool broadcast = false, int64_t tokens = kTokens) {
    lasp_problem problem = LASP_PROBLEM_INIT;
    problem.tokens = tokens;
    problem.heads_q = problem.heads_k = problem.heads_v = kHeads;
    problem.head_dim_k = problem.head_dim_v = kDim;
    problem.schedule = schedule;
    problem.pieces = 2;
    problem.broadcast_final_state = broadcast;
    return result(lasp_plan_create(context_, &problem, &plan_));
  }
  Result forward() {
    const lasp_forward_args a = forward_args();
    return result(lasp_forward(plan_, &a, nullptr));
  }
  Result backward() {
    const lasp_backward_args a = backward_args();
    return result(lasp_backward(plan_, &a, nullptr));
  }
  // On the plan; `rows` say how many.
  Result halo(int64_t rows, int32_t dtype = LASP_DTYPE_DEFAULT) {
    lasp_halo_options options = LASP_HALO_OPTIONS_INIT;
    options.rows = rows;
    options.channels = kHeads * kDim;
    options.x.dtype = dtype;
    lasp_halo *made = nullptr;
    const Result made_or_not = result(lasp_halo_create(plan_, &options, &made));
    if (made == nullptr) return made_or_not;
    lasp_halo_destroy(halo_);
    halo_ = made;
    return made_or_not;
  }
  lasp_halo_args halo_args() {
    lasp_halo_info info = LASP_HALO_INFO_INIT;
    lasp_halo_get_info(halo_, &info);
    before_.resize(info.before_bytes / 4);
    halo_memory_.resize(info.workspace_bytes / 64 + 1);
    lasp_halo_args a = LASP_HALO_ARGS_INIT;
    a.x = {input_.data(), input_.size() * 4};
    a.d_x = {output_.data(), output_.size() * 4};
    a.before = {before_.data(), before_.size() * 4};
    a.d_before = {before_.data(), before_.size() * 4};
    a.workspace = {halo_memory_.data(), halo_memory_.size() * 64};
    return a;
  }
  Result halo_forward() {
    const lasp_halo_args a = halo_args();
    return result(lasp_halo_forward(halo_, &a, nullptr));
  }
  Result halo_backward() {
    const lasp_halo_args a = halo_args();
    return result(lasp_halo_backward(halo_, &a, nullptr));
  }
  lasp_halo *made_halo() const { return halo_; }
  // What these calls are given, for a test that wants one of them wrong.
  lasp_forward_args forward_args() {
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    lasp_plan_get_info(plan_, &info);
    memory_.resize((info.state_cache_bytes + info.workspace_forward_bytes + info.workspace_backward_bytes) / 64 +
                   4);
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    a.q = a.k = a.v = {input_.data(), input_.size() * 4};
    a.o = {output_.data(), output_.size() * 4};
    a.final_state = {states_.data(), states_.size() * 4};
    a.state_cache = {memory_.data(), info.state_cache_bytes};
    a.workspace = {memory_.data() + (info.state_cache_bytes + 63) / 64, info.workspace_forward_bytes};
    return a;
  }
  lasp_backward_args backward_args() {
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    lasp_plan_get_info(plan_, &info);
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    a.q = a.k = a.v = a.d_o = {input_.data(), input_.size() * 4};
    a.dq = {output_.data(), output_.size() * 4};
    a.dk = {dk_.data(), dk_.size() * 4};
    a.dv = {dv_.data(), dv_.size() * 4};
    a.state_cache = {memory_.data(), info.state_cache_bytes};
    a.workspace = {memory_.data() + (info.state_cache_bytes + 63) / 64, info.workspace_backward_bytes};
    return a;
  }
  lasp_comm *comm() const { return comm_; }
  lasp_context *context() const { return context_; }
  lasp_plan *made_plan() const { return plan_; }
  lasp_status async_error() const {
    lasp_status status = -1;
    lasp_context_get_async_error(context_, &status, nullptr, 0);
    return status;
  }

  static Result result(lasp_status status) { return {status, status == LASP_OK ? "" : lasp_last_error()}; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  lasp_comm *comm_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  lasp_halo *halo_ = nullptr;
  std::vector<float> input_ = std::vector<float>(kTokens * kHeads * kDim, 1), output_ = input_, dk_ = input_,
                     dv_ = input_;
  std::vector<float> states_ = std::vector<float>(kHeads * kDim * kDim);
  std::vector<Line> memory_, halo_memory_;
  std::vector<float> before_;
};

}  // namespace lasp_test
