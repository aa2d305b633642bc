// The calls, and what the process uses.
#include "worker.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace endurance {
namespace {

lasp_const_buffer in(const std::vector<float> &x) { return {x.data(), x.size() * sizeof(float)}; }
lasp_buffer out(std::vector<float> &x) { return {x.data(), x.size() * sizeof(float)}; }

size_t lines(uint64_t bytes) { return static_cast<size_t>((bytes + 63) / 64) + 1; }

int64_t entries(const char *folder) {
  int64_t count = 0;
  for (const auto &entry : std::filesystem::directory_iterator(folder)) count += entry.path().empty() ? 0 : 1;
  return count;
}

}  // namespace

Answer Worker::open(int64_t time_limit_ms, int32_t threads, bool check_values) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.time_limit_ms = time_limit_ms;
  options.cpu_threads = threads;
  options.check_values = check_values ? 1 : 0;
  return answer([&] { return lasp_context_create(LASP_ABI, comm_, &options, &context_); });
}

Answer Worker::plan(const Shape &shape) {
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = shape.tokens;
  problem.heads_q = problem.heads_k = problem.heads_v = shape.heads;
  problem.head_dim_k = problem.head_dim_v = shape.dim;
  problem.decay = shape.decay;
  problem.schedule = shape.schedule;
  problem.pieces = shape.schedule == LASP_SCHEDULE_ALL_SCAN ? 2 : 0;
  problem.cache = shape.cache;
  problem.chunk = 16;
  problem.segment = shape.segment;
  problem.max_sequences = shape.max_sequences;
  problem.scale_given = 1, problem.scale = 1;
  problem.broadcast_final_state = shape.broadcast;
  const Answer made = answer([&] { return lasp_plan_create(context_, &problem, &plan_); });
  if (made.status != LASP_OK) return made;
  info_ = LASP_PLAN_INFO_INIT;
  const Answer told = answer([&] { return lasp_plan_get_info(plan_, &info_); });
  for (std::vector<float> *x : {&q, &k, &v, &d_o, &o, &dq, &dk, &dv}) x->assign(shape.floats(), 1.0f);
  const size_t decays = shape.decay == LASP_DECAY_HEAD      ? static_cast<size_t>(shape.heads)
                        : shape.decay == LASP_DECAY_SCALAR  ? static_cast<size_t>(shape.tokens * shape.heads)
                        : shape.decay == LASP_DECAY_CHANNEL ? shape.floats()
                                                            : 0;
  decay.assign(decays, -0.125f);
  d_decay.assign(decays, 0.0f);
  final_state.assign(shape.state_floats(), 0.0f);
  cache_.resize(lines(info_.state_cache_bytes));
  workspace_.resize(lines(std::max(info_.workspace_forward_bytes, info_.workspace_backward_bytes)));
  return told;
}

Answer Worker::forward() {
  lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
  a.q = in(q), a.k = in(k), a.v = in(v);
  if (!decay.empty()) a.decay = in(decay);
  a.o = out(o);
  a.final_state = out(final_state);
  a.state_cache = {cache_.data(), info_.state_cache_bytes};
  a.workspace = {workspace_.data(), info_.workspace_forward_bytes};
  a.packing = packing;
  return answer([&] { return lasp_forward(plan_, &a, nullptr); });
}

Answer Worker::backward() {
  lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
  a.q = in(q), a.k = in(k), a.v = in(v), a.d_o = in(d_o);
  if (!decay.empty()) a.decay = in(decay), a.d_decay = out(d_decay);
  a.dq = out(dq), a.dk = out(dk), a.dv = out(dv);
  a.state_cache = {cache_.data(), info_.state_cache_bytes};
  a.workspace = {workspace_.data(), info_.workspace_backward_bytes};
  a.packing = packing;
  return answer([&] { return lasp_backward(plan_, &a, nullptr); });
}

Answer Worker::close() {
  Answer first;
  const auto note = [&](const Answer &a) {
    if (first.status == LASP_OK) first = a;
  };
  note(answer([&] { return lasp_plan_destroy(plan_); }));
  note(answer([&] { return lasp_context_destroy(context_); }));
  note(answer([&] { return lasp_comm_destroy(comm_); }));
  plan_ = nullptr, context_ = nullptr, comm_ = nullptr;
  return first;
}

Answer Worker::pass(const Shape &shape) {
  Answer a = plan(shape);
  if (a.status == LASP_OK) a = forward();
  if (a.status == LASP_OK) a = backward();
  return a;
}

lasp_status Worker::async_error() const {
  lasp_status status = -1;
  lasp_context_get_async_error(context_, &status, nullptr, 0);
  return status;
}

Usage usage() {
  Usage u;
  if (std::FILE *file = std::fopen("/proc/self/statm", "r")) {
    long long pages = 0, resident = 0;
    if (std::fscanf(file, "%lld %lld", &pages, &resident) == 2) u.resident = resident * sysconf(_SC_PAGESIZE);
    std::fclose(file);
  }
  u.descriptors = entries("/proc/self/fd");
  u.threads = entries("/proc/self/task");
  return u;
}

Usage usage_settled(int64_t threads) {
  Usage u = usage();
  for (int i = 0; i < 5000 && u.threads > threads; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    u = usage();
  }
  return u;
}

bool resident_memory_is_telling() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

bool quick() { return std::getenv("LASP_TEST_QUICK") != nullptr; }

}  // namespace endurance
