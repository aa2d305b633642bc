// Prints what the library predicts, takes and sends for a grid of problems and links: model.js compares the site's
// picture with it. A line each:
//   time  W B H K V decay latency bandwidth round fold fold_gbs dense tflops
//         ring all-gather all-scan doubling head-scatter chosen                                      (microseconds)
//   sent  W B H K V decay schedule bytes                                                             (of all ranks)
#include <lasp/lasp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

constexpr const char *kNames[] = {"auto", "ring", "all-gather", "all-scan", "doubling", "head-scatter"};

void check(lasp_status status, const char *call) {
  if (status == LASP_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", call, lasp_status_name(status), lasp_last_error());
  std::exit(1);
}
#define CHECK(call) check(call, #call)

struct Shape {
  int64_t batch;
  int32_t heads, keys, values;
};

struct Kind {
  const char *name;
  int32_t decay, write;
};
constexpr Kind kKinds[] = {{"head", LASP_DECAY_HEAD, LASP_WRITE_ADDITIVE},
                           {"token", LASP_DECAY_SCALAR, LASP_WRITE_ADDITIVE},
                           {"channel", LASP_DECAY_CHANNEL, LASP_WRITE_ADDITIVE},
                           {"delta", LASP_DECAY_NONE, LASP_WRITE_DELTA}};

lasp_problem problem_of(const Shape &shape, const Kind &kind) {
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.batch = shape.batch;
  problem.tokens = 64;
  problem.heads_q = problem.heads_k = problem.heads_v = shape.heads;
  problem.head_dim_k = shape.keys;
  problem.head_dim_v = shape.values;
  problem.decay = kind.decay;
  problem.write = kind.write;
  return problem;
}

void print_shape(const char *what, int32_t ranks, const Shape &shape, const Kind &kind) {
  std::printf("%s %d %lld %d %d %d %s", what, ranks, static_cast<long long>(shape.batch), shape.heads, shape.keys,
              shape.values, kind.name);
}

// Costs beside messages, as LASP_LINK gives them.
struct Costs {
  double round, fold, fold_gbs, dense, tflops;
};

void print_times(int32_t ranks, const Shape &shape, const Kind &kind, double latency, double bandwidth,
                 const Costs &costs) {
  char setting[200];
  std::snprintf(setting, sizeof setting, "round_us=%g,fold_us=%g,fold_gbs=%g,dense_us=%g,dense_tflops=%g",
                costs.round, costs.fold, costs.fold_gbs, costs.dense, costs.tflops);
  setenv("LASP_LINK", setting, 1);
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.cpu_threads = 1;
  options.latency_us = latency;
  options.bandwidth_gbs = bandwidth;
  const lasp_problem problem = problem_of(shape, kind);
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  CHECK(lasp_comm_create_detached(0, ranks, &comm));
  CHECK(lasp_context_create(LASP_ABI, comm, &options, &context));
  CHECK(lasp_plan_create(context, &problem, &plan));
  CHECK(lasp_plan_get_info(plan, &info));
  print_shape("time", ranks, shape, kind);
  std::printf(" %.17g %.17g %g %g %g %g %g", latency, bandwidth, costs.round, costs.fold, costs.fold_gbs,
              costs.dense, costs.tflops);
  for (int schedule = LASP_SCHEDULE_RING; schedule <= LASP_SCHEDULE_HEAD_SCATTER; ++schedule)
    std::printf(" %.17g", info.predicted_us[schedule]);
  std::printf(" %s\n", kNames[info.schedule]);
  CHECK(lasp_plan_destroy(plan));
  CHECK(lasp_context_destroy(context));
  CHECK(lasp_comm_destroy(comm));
}

void print_sent(int32_t ranks, const Shape &shape, const Kind &kind, int32_t schedule) {
  lasp_problem problem = problem_of(shape, kind);
  problem.schedule = schedule;
  uint64_t sent = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    lasp_placement placement = LASP_PLACEMENT_INIT;
    placement.rank = rank;
    placement.nranks = ranks;
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    CHECK(lasp_problem_get_info(&problem, &placement, &info));
    sent += info.forward_bytes_sent;
  }
  print_shape("sent", ranks, shape, kind);
  std::printf(" %s %llu\n", kNames[schedule], static_cast<unsigned long long>(sent));
}

}  // namespace

int main() {
  constexpr Shape kShapes[] = {{1, 32, 128, 128}, {2, 4, 64, 32}, {1, 3, 16, 8}};
  constexpr double kLinks[][2] = {{15, 250}, {25, 45}, {0.5, 10}, {200, 1}};
  constexpr Costs kCosts[] = {{0, 0, 0, 0, 0}, {30.5, 3, 0, 15, 0}, {8, 0.5, 40, 2, 0.01}};
  for (const Shape &shape : kShapes) {
    for (const Kind &kind : kKinds) {
      for (const int32_t ranks : {2, 3, 4, 7, 8, 16, 17, 33, 64})
        for (const auto &link : kLinks)
          for (const Costs &costs : kCosts) print_times(ranks, shape, kind, link[0], link[1], costs);
      for (const int32_t ranks : {2, 3, 5, 8})
        for (int schedule = LASP_SCHEDULE_RING; schedule <= LASP_SCHEDULE_HEAD_SCATTER; ++schedule)
          print_sent(ranks, shape, kind, schedule);
    }
  }
  return 0;
}
