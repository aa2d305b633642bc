#include "fold_speed.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "device_mirror.h"
#include "failure.h"
#include "memory.h"

namespace bench {
namespace {

constexpr int kCalls = 20, kMeans = 7;
constexpr int kCpuCalls = 4;

// The least mean of `call`, in microseconds.
double least_us(const std::function<void()> &call) {
  double least = 0;
  for (int mean = 0; mean < kMeans; ++mean) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCpuCalls; ++i) call();
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
    if (mean == 0 || spent.count() / kCpuCalls < least) least = spent.count() / kCpuCalls;
  }
  return least;
}

// On a GPU from a graph: what the host needs for a call is not counted.
double least_gpu_us(lasp_stream stream, const std::function<void()> &call) {
  call();
  gpu::wait(stream);
  gpu::Graph graph;
  graph.begin(stream);
  for (int i = 0; i < kCalls; ++i) call();
  graph.end(stream);
  graph.launch(stream);
  double least = 0;
  for (int mean = 0; mean < kMeans; ++mean) {
    gpu::Event begin, end;
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    end.wait();
    const double us = 1e3 * end.milliseconds_since(begin) / kCalls;
    if (mean == 0 || us < least) least = us;
  }
  return least;
}

// Composing maps of a rank that has others before and behind it.
double compose_us(int32_t device, int32_t threads, bool dense, int32_t heads, int32_t dim) {
  lasp_comm *comm = nullptr;
  check(lasp_comm_create_detached(1, 3, &comm), "lasp_comm_create_detached");
  const CommHandle comm_handle(comm);
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = device;
  options.cpu_threads = threads;
  lasp_context *context = nullptr;
  check(lasp_context_create(LASP_ABI, comm, &options, &context), "lasp_context_create");
  const ContextHandle context_handle(context);
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = 1;
  problem.heads_q = problem.heads_k = problem.heads_v = heads;
  problem.head_dim_k = problem.head_dim_v = dim;
  problem.write = dense ? LASP_WRITE_DELTA : LASP_WRITE_ADDITIVE;
  lasp_plan *plan = nullptr;
  check(lasp_plan_create(context, &problem, &plan), "lasp_plan_create");
  const PlanHandle plan_handle(plan);
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  check(lasp_plan_get_info(plan, &info), "lasp_plan_get_info");

  constexpr int kPattern = 0x3c;  // numbers of 0.01; what they become does not matter
  lasp_maps_args args = LASP_MAPS_ARGS_INIT;
  const auto compose = [&](lasp_stream stream) {
    check(lasp_maps_compose(plan, &args, stream), "lasp_maps_compose");
  };
  if (device == LASP_DEVICE_CUDA) {
    const DeviceMemory later(info.map_bytes), earlier(info.map_bytes);
    const lasp_stream stream = gpu::make_stream();
    for (const DeviceMemory *map : {&later, &earlier}) gpu::fill(map->data(), kPattern, map->bytes(), stream);
    args.later = {later.data(), later.bytes()}, args.earlier = {earlier.data(), earlier.bytes()};
    args.to = {later.data(), later.bytes()};
    const double us = least_gpu_us(stream, [&] { compose(stream); });
    gpu::destroy_stream(stream);
    return us;
  }
  Memory later(info.map_bytes, info.alignment), earlier(info.map_bytes, info.alignment);
  for (Memory *map : {&later, &earlier}) std::memset(map->data(), kPattern, map->bytes());
  args.later = {later.data(), later.bytes()}, args.earlier = {earlier.data(), earlier.bytes()};
  args.to = later.buffer();
  compose(nullptr);
  return least_us([&] { compose(nullptr); });
}

}  // namespace

FoldSpeed measure_fold(int32_t device, int32_t threads, bool dense) {
  constexpr int32_t kHeads = 32, kDim = 128;
  const double launches = dense ? 2 : 1;
  const double small = compose_us(device, threads, dense, 1, 8);
  const double large = compose_us(device, threads, dense, kHeads, kDim);
  const double floats = double{kHeads} * kDim * kDim;
  const double work = dense ? 2 * floats * 2 * kDim : floats * sizeof(float);
  return {small / launches, work / std::max(large - small, 1e-3)};
}

}  // namespace bench
