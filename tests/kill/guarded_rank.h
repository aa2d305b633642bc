// One rank that makes plans, forwards and backwards until a call fails, in buffers with guards around them; and
// what it saw. Used by the ranks of killed_peer.cpp (processes) and threads_test.cpp (threads).
#pragma once

#include <lasp/lasp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace lasp_kill {

using Clock = std::chrono::steady_clock;

// In place of how long a process is stopped.
constexpr int64_t kDies = -1, kOtherCall = -2;

inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// splitmix64: the same numbers on every machine.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int below(int limit) { return static_cast<int>(next() % static_cast<uint64_t>(limit)); }
};

// What all ranks of a group have in common.
struct Shape {
  int32_t schedule = LASP_SCHEDULE_RING;
  int32_t heads = 2, dim = 8;
  int64_t tokens = 20;
  bool broadcast = false, bidirectional = false;
};

inline const char *schedule_name(int32_t schedule) {
  const char *const names[] = {"auto", "ring", "all-gather", "all-scan", "doubling", "head-scatter", "relay"};
  return names[schedule];
}

// Memory with 256 known bytes on both sides.
class Guarded {
 public:
  void resize(size_t bytes) {
    bytes_ = bytes;
    memory_.assign(bytes + 2 * kGuard + 64, kCanary);
    const auto at = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    front_ = kGuard + (64 - at % 64) % 64;
    std::memset(data(), 0, bytes);
  }
  uint8_t *data() { return memory_.data() + front_; }
  lasp_buffer out() { return {data(), bytes_}; }
  lasp_const_buffer in() { return {data(), bytes_}; }
  bool intact() const {
    for (size_t i = 0; i < memory_.size(); ++i)
      if ((i < front_ || i >= front_ + bytes_) && memory_[i] != kCanary) return false;
    return true;
  }
  // FNV-1a of everything, guards included.
  uint64_t hash(uint64_t h) const {
    for (const uint8_t byte : memory_) h = (h ^ byte) * 0x100000001b3;
    return h;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kCanary = 0xa5;
  std::vector<uint8_t> memory_;
  size_t bytes_ = 0, front_ = 0;
};

enum class Call { kPlan, kForward, kBackward };
inline const char *call_name(Call call) {
  return call == Call::kPlan ? "plan" : call == Call::kForward ? "forward" : "backward";
}

// How a call ended.
struct Outcome {
  Call call = Call::kPlan;
  lasp_status status = LASP_OK;
  double ms = 0;
  std::string sentence;
};

class GuardedRank {
 public:
  // Takes the comm over.
  GuardedRank(lasp_comm *comm, int64_t limit_ms, lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT)
      : comm_(comm) {
    options.time_limit_ms = limit_ms;
    options.cpu_threads = 1;
    if (lasp_context_create(LASP_ABI, comm, &options, &context_) != LASP_OK) defect(lasp_last_error());
  }
  ~GuardedRank() { destroy(); }
  GuardedRank(const GuardedRank &) = delete;
  GuardedRank &operator=(const GuardedRank &) = delete;

  // Replaces the plan; a refused one leaves none.
  Outcome plan(const Shape &shape) {
    if (lasp_plan_destroy(plan_) != LASP_OK) defect("a plan cannot be destroyed");
    plan_ = nullptr;
    lasp_problem p = LASP_PROBLEM_INIT;
    p.tokens = shape.tokens;
    p.heads_q = p.heads_k = p.heads_v = shape.heads;
    p.head_dim_k = p.head_dim_v = shape.dim;
    p.schedule = shape.schedule;
    p.pieces = shape.schedule == LASP_SCHEDULE_ALL_SCAN ? 3 : 0;
    p.broadcast_final_state = shape.broadcast;
    p.mask = shape.bidirectional ? LASP_MASK_BIDIRECTIONAL : LASP_MASK_CAUSAL;
    const Outcome made = timed(Call::kPlan, [&] { return lasp_plan_create(context_, &p, &plan_); });
    if (made.status == LASP_OK) size_buffers(shape);
    return made;
  }
  Outcome forward() {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    a.q = a.k = a.v = input_.in();
    a.o = o_.out();
    a.final_state = final_state_.out();
    a.state_cache = cache_.out();
    a.workspace = work_.out();
    return timed(Call::kForward, [&] { return lasp_forward(plan_, &a, nullptr); });
  }
  Outcome backward() {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    a.q = a.k = a.v = a.d_o = input_.in();
    a.state_cache = cache_.in();
    a.dq = dq_.out();
    a.dk = dk_.out();
    a.dv = dv_.out();
    a.workspace = work_.out();
    return timed(Call::kBackward, [&] { return lasp_backward(plan_, &a, nullptr); });
  }
  Outcome pass(bool forward_pass) { return forward_pass ? forward() : backward(); }

  // After a call that failed with 5xx: what must hold from now on.
  void check_broken() {
    lasp_status async = LASP_OK;
    lasp_context_get_async_error(context_, &async, nullptr, 0);
    if (async < 500) defect("the context does not say that its group is broken");
    if (plan_ == nullptr) return;
    const Outcome again = forward();
    if (again.status < 500) defect("a call after the failure did not fail");
    if (again.ms > 1000) defect("a call after the failure waited again");
  }
  void destroy() {
    const auto start = Clock::now();
    if (lasp_plan_destroy(plan_) != LASP_OK) defect("the plan cannot be destroyed");
    if (lasp_context_destroy(context_) != LASP_OK) defect("the context cannot be destroyed");
    if (lasp_comm_destroy(comm_) != LASP_OK) defect("the comm cannot be destroyed");
    if (ms_since(start) > 2000) defect("destroying took over two seconds");
    plan_ = nullptr, context_ = nullptr, comm_ = nullptr;
  }
  // Whether all guards stand; and a number that changes with any byte of the buffers.
  uint64_t check_memory() {
    uint64_t h = 0xcbf29ce484222325;
    for (Guarded *buffer : {&input_, &o_, &dq_, &dk_, &dv_, &final_state_, &cache_, &work_}) {
      if (!buffer->intact()) defect("a byte outside the buffers was written");
      h = buffer->hash(h);
    }
    return h;
  }
  void defect(const std::string &what) { defects_ += defects_.empty() ? what : "; " + what; }
  const std::string &defects() const { return defects_; }

  template <class Body>
  static Outcome timed(Call call, Body body) {
    const auto start = Clock::now();
    const lasp_status status = body();
    return {call, status, ms_since(start), status == LASP_OK ? "" : lasp_last_error()};
  }
  lasp_plan *made_plan() const { return plan_; }

 private:
  void size_buffers(const Shape &shape) {
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    lasp_plan_get_info(plan_, &info);
    check_memory();  // of the plan before
    const auto floats = static_cast<size_t>(shape.tokens * shape.heads * shape.dim);
    for (Guarded *buffer : {&input_, &o_, &dq_, &dk_, &dv_}) buffer->resize(floats * 4);
    for (size_t i = 0; i < floats; ++i) {
      const float value = 0.125f * static_cast<float>(i % 7);
      std::memcpy(input_.data() + 4 * i, &value, 4);
    }
    final_state_.resize(static_cast<size_t>(shape.heads * shape.dim) * static_cast<size_t>(shape.dim) * 4);
    cache_.resize(info.state_cache_bytes);
    work_.resize(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
  }

  lasp_comm *comm_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  Guarded input_, o_, dq_, dk_, dv_, final_state_, cache_, work_;
  std::string defects_;
};

}  // namespace lasp_kill
