// Linear attention whose sequence is split over four ranks, here threads of this process, in C++: handles that
// destroy themselves, errors as exceptions. A few steps of gradient descent on q, k and v, compared with the same
// on one rank.
//
//     c++ -std=c++17 attention.cpp $(pkg-config --cflags --libs lasp) -pthread
#include <lasp/lasp.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 4, kSteps = 20, kHeads = 2, kDim = 32, kRow = kHeads * kDim;
constexpr float kRate = 0.01f;
constexpr int64_t kTokens = 600, kTokensOfRank[kRanks] = {50, 250, 0, 300};

// ---- The whole of a wrapper: a status becomes an exception, a handle has an owner -------------------------------

void check(lasp_status status) {
  if (status != LASP_OK) throw std::runtime_error(std::string(lasp_status_name(status)) + ": " + lasp_last_error());
}

template <auto destroy>
struct Destroy {
  template <class Handle>
  void operator()(Handle *handle) const {
    destroy(handle);
  }
};
using Comm = std::unique_ptr<lasp_comm, Destroy<lasp_comm_destroy>>;
using Context = std::unique_ptr<lasp_context, Destroy<lasp_context_destroy>>;
using Plan = std::unique_ptr<lasp_plan, Destroy<lasp_plan_destroy>>;

Context make_context(lasp_comm *comm) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.time_limit_ms = 30000;  // a rank that fails by itself does not keep the others for ever
  lasp_context *context = nullptr;
  check(lasp_context_create(LASP_ABI, comm, &options, &context));
  return Context(context);
}

Plan make_plan(lasp_context *context, const lasp_problem &problem) {
  lasp_plan *plan = nullptr;
  check(lasp_plan_create(context, &problem, &plan));
  return Plan(plan);
}

// ---- The program ------------------------------------------------------------------------------------------------

struct Model {  // global tensors [tokens, heads, dim]; a rank works in place on its run of tokens
  std::vector<float> q, k, v, o, target;
  Model() : q(kTokens * kRow), k(q), v(q), o(q), target(q) {
    for (size_t i = 0; i < q.size(); ++i) {
      const auto x = static_cast<double>(i);
      q[i] = static_cast<float>(0.3 * std::sin(0.37 * x)), k[i] = static_cast<float>(0.3 * std::sin(0.73 * x + 1));
      v[i] = static_cast<float>(std::sin(0.11 * x + 2)), target[i] = static_cast<float>(std::sin(0.05 * x));
    }
  }
};

// Workspace and state cache, aligned as a plan asks (to 64 bytes at most on a CPU).
struct alignas(64) Line {
  unsigned char bytes[64];
};
std::vector<Line> lines(uint64_t bytes) { return std::vector<Line>(bytes / sizeof(Line) + 1); }
lasp_buffer buffer(std::vector<Line> &memory) { return {memory.data(), memory.size() * sizeof(Line)}; }

void train_rank(Comm comm, int64_t tokens, int steps, Model &model) {
  const Context context = make_context(comm.get());
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = tokens;
  problem.heads_q = problem.heads_k = problem.heads_v = kHeads;
  problem.head_dim_k = problem.head_dim_v = kDim;
  problem.decay = LASP_DECAY_HEAD;
  const Plan plan = make_plan(context.get(), problem);
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  check(lasp_plan_get_info(plan.get(), &info));

  const auto begin = static_cast<size_t>(info.token_begin) * kRow, count = static_cast<size_t>(tokens) * kRow;
  const auto in = [&](const std::vector<float> &x) { return lasp_const_buffer{x.data() + begin, 4 * count}; };
  const auto own = [&](std::vector<float> &x) { return lasp_buffer{x.data(), 4 * count}; };
  std::vector<Line> cache = lines(info.state_cache_bytes), forward_work = lines(info.workspace_forward_bytes),
                    backward_work = lines(info.workspace_backward_bytes);
  std::vector<float> d_o(count), dq(count), dk(count), dv(count);
  const float decay[kHeads] = {-0.1f, -0.5f};

  lasp_forward_args forward = LASP_FORWARD_ARGS_INIT;
  forward.q = in(model.q), forward.k = in(model.k), forward.v = in(model.v), forward.decay = {decay, sizeof decay};
  forward.o = {model.o.data() + begin, 4 * count};
  forward.state_cache = buffer(cache), forward.workspace = buffer(forward_work);
  lasp_backward_args backward = LASP_BACKWARD_ARGS_INIT;
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v, backward.decay = forward.decay;
  backward.d_o = {d_o.data(), 4 * count}, backward.state_cache = {cache.data(), forward.state_cache.bytes};
  backward.dq = own(dq), backward.dk = own(dk), backward.dv = own(dv), backward.workspace = buffer(backward_work);

  for (int step = 0;; ++step) {
    check(lasp_forward(plan.get(), &forward, nullptr));
    if (step == steps) return;
    for (size_t i = 0; i < count; ++i) d_o[i] = model.o[begin + i] - model.target[begin + i];
    check(lasp_backward(plan.get(), &backward, nullptr));
    for (size_t i = 0; i < count; ++i) {
      model.q[begin + i] -= kRate * dq[i];
      model.k[begin + i] -= kRate * dk[i];
      model.v[begin + i] -= kRate * dv[i];
    }
  }
}

Model train_alone(int steps) {
  lasp_comm *comm = nullptr;
  check(lasp_comm_create_self(&comm));
  Model model;
  train_rank(Comm(comm), kTokens, steps, model);
  return model;
}

Model train_split() {
  lasp_comm *comms[kRanks];
  check(lasp_comm_create_threads(kRanks, comms));
  Model model;
  std::exception_ptr errors[kRanks];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        train_rank(Comm(comms[rank]), kTokensOfRank[rank], kSteps, model);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  for (const std::exception_ptr &error : errors)
    if (error) std::rethrow_exception(error);
  return model;
}

double squared(const std::vector<float> &a, const std::vector<float> &b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return sum;
}

}  // namespace

int main() try {
  const Model start = train_alone(0), one = train_alone(kSteps), four = train_split();
  const auto loss = [](const Model &model) { return squared(model.o, model.target) / 2; };
  std::printf(
      "half the squared distance to the target: %.1f at first, after %d steps %.4f on one rank, %.4f on four\n",
      loss(start), kSteps, loss(one), loss(four));
  const double moved = squared(start.q, one.q), apart = squared(one.q, four.q);
  std::printf("q moved by %.3g; one rank and four are %.2g apart\n", std::sqrt(moved), std::sqrt(apart));
  // Each step's gradients are right to 2e-6 of their size, whichever way they were computed.
  const bool right = loss(one) < 0.9 * loss(start) && std::sqrt(apart) <= 4e-6 * kSteps * std::sqrt(moved);
  std::puts(right ? "the split sequence trains as one rank does" : "FAILED");
  return right ? 0 : 1;
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
