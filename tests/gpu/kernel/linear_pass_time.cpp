// Times of the tensor-core linear pass in every shape, beside a device copy of the same run.
#include "linear_pass_time.h"

#include <algorithm>
#include <random>

#include "../../../kernels/hopper/linear_pass.h"
#include "device_memory.h"
#include "device_time.h"

namespace lasp::gpu {
namespace {

using hopper::PassShape;

struct TimedCase {
  int64_t batch, tokens;
  int32_t heads, pieces;  // runs that each row is cut into
  int32_t dim = 128;      // K and V
};

void time_case(const TimedCase &t, double bytes_per_ms) {
  const size_t unit = size_t(t.batch * t.tokens * t.heads * t.dim) * 2;
  DeviceMemory a(unit), b(unit), c(unit), y(unit), g(size_t(t.batch * t.tokens * t.heads) * 4);
  fill_random(a), fill_random(b), fill_random(c);
  check(cudaMemset(y.data, 0, unit), "clear");
  std::vector<float> decays(g.bytes / 4);
  for (size_t i = 0; i < decays.size(); ++i) decays[i] = -0.001f * float(1 + i * 7919 % 100);
  g.put(decays);
  std::vector<Run> runs;
  for (int64_t row = 0; row < t.batch; ++row)
    for (int64_t i = 0; i < t.pieces; ++i)
      runs.push_back(make_run(row, i * (t.tokens / t.pieces), int32_t(t.tokens / t.pieces), int64_t(runs.size())));
  int64_t checkpoints = 0;
  for (Run &run : runs) {
    run.checkpoint = int32_t(checkpoints);
    checkpoints += (run.length + kFusedCheckpoint - 1) / kFusedCheckpoint;
  }
  const int64_t state = int64_t{t.dim} * t.dim;
  DeviceMemory kept(size_t(checkpoints * t.heads * state) * 2);
  DeviceMemory list(runs.size() * sizeof(Run)), states(runs.size() * size_t(t.heads * state) * 4);
  list.put(runs);
  check(cudaMemset(states.data, 0, states.bytes), "clear");
  LinearPass pass;
  const Strides strides = {t.tokens * t.heads * t.dim, int64_t(t.heads) * t.dim, t.dim};
  pass.a = {a.data, strides, t.heads, t.dim}, pass.b = {b.data, strides, t.heads, t.dim};
  pass.c = {c.data, strides, t.heads, t.dim}, pass.y = {y.data, strides, t.heads, t.dim};
  pass.batch = t.batch, pass.tokens = t.tokens, pass.heads = t.heads, pass.dtype = DType::kBFloat16;
  pass.g = g.data, pass.g_strides = {t.tokens * t.heads, t.heads, 1}, pass.scale = 0.088f;
  pass.runs = static_cast<const Run *>(list.data), pass.num_runs = int64_t(runs.size());
  pass.state_in = static_cast<const float *>(states.data), pass.state_out = static_cast<float *>(states.data);
  const double floor = 4.0 * double(unit) / bytes_per_ms;
  std::printf("B%lld H%d T%lld K = V = %d, %d runs a row: floor of 4 units %.3f ms\n",
              static_cast<long long>(t.batch), t.heads, static_cast<long long>(t.tokens), t.dim, t.pieces, floor);
  for (const PassShape shape : {PassShape{32, 1}, PassShape{32, 2}, PassShape{64, 1}, PassShape{64, 2}}) {
    if (!hopper::shape_fits(pass, shape)) continue;
    std::printf("  slice %d cluster %d (%3d fit):", shape.slice, shape.cluster,
                hopper::active_clusters(pass, shape));
    const auto measure = [&](const char *name, double units) {
      check(hopper::launch_linear_pass(pass, shape, nullptr), "launch");
      check(cudaDeviceSynchronize(), "first");
      const double ms = median_ms([&] { check(hopper::launch_linear_pass(pass, shape, nullptr), "launch"); });
      std::printf("  %s %.3f (%.0f%%)", name, ms, 100 * floor * units / 4 / ms);
      std::fflush(stdout);
    };
    pass.reversed = false, pass.y.data = y.data;
    pass.decay = Decay::kNone, measure("none", 4);
    pass.decay = Decay::kHead, measure("head", 4);
    pass.decay = Decay::kScalar, measure("token", 4);
    pass.reversed = true, measure("reversed", 4);
    pass.decay = Decay::kHead, measure("head reversed", 4);
    pass.reversed = false, pass.y.data = nullptr, measure("head, states", 2);
    pass.checkpoints = kept.data, measure("states kept", 2);
    pass.y.data = y.data, measure("head kept", 4);
    pass.decay = Decay::kScalar, measure("token kept", 4);
    pass.checkpoints = nullptr;
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

void time_linear_pass() {
  const double bytes_per_ms = copy_bytes_per_ms();
  for (const TimedCase &t :
       {TimedCase{1, 16384, 32, 1}, TimedCase{8, 2048, 32, 1}, TimedCase{1, 131072, 8, 4},
        TimedCase{1, 2048, 32, 1}, TimedCase{1, 16384, 32, 2, 64}, TimedCase{1, 16384, 32, 4, 64}})
    time_case(t, bytes_per_ms);
}

}  // namespace lasp::gpu
