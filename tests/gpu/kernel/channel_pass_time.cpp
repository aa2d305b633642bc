// Times of o and dv where decay is per channel, by wgmma and by mma.sync in turns, over strengths of decay, beside
// a device copy of the same run.
#include "channel_pass_time.h"

#include <algorithm>

#include "../../../kernels/hopper/channel_pass.h"
#include "../../../kernels/mma/linear_pass.h"
#include "device_memory.h"
#include "device_time.h"

namespace lasp::gpu {
namespace {

struct TimedSize {
  int32_t heads, dim, pieces;
  DType decay_dtype;
};

void time_case(const TimedSize &size, float strongest, double bytes_per_ms) {
  constexpr int64_t kTokens = 16384;
  const auto [heads, dim, pieces, decay_dtype] = size;
  const bool wide = decay_dtype == DType::kFloat32;
  const size_t unit = size_t(kTokens * heads) * dim * 2;
  DeviceMemory a(unit), b(unit), c(unit), y(unit), g(2 * unit);
  fill_random(a), fill_random(b), fill_random(c);
  check(cudaMemset(y.data, 0, unit), "clear");
  std::vector<float> decays(unit / 2);
  for (size_t i = 0; i < decays.size(); ++i) decays[i] = -strongest * 0.01f * float(1 + i * 7919 % 100);
  if (wide) {
    g.put(decays);
  } else {
    std::vector<uint16_t> narrow(decays.size());
    for (size_t i = 0; i < decays.size(); ++i) narrow[i] = round_to(decay_dtype, decays[i]);
    check(cudaMemcpy(g.data, narrow.data(), narrow.size() * 2, cudaMemcpyHostToDevice), "fill");
  }
  std::vector<Run> runs;
  const int64_t step = (kTokens + pieces - 1) / pieces;
  for (int64_t begin = 0; begin < kTokens; begin += step)
    runs.push_back(make_run(0, begin, int32_t(std::min(step, kTokens - begin)), int64_t(runs.size())));
  DeviceMemory list(runs.size() * sizeof(Run)), states(runs.size() * heads * dim * dim * 4);
  list.put(runs);
  check(cudaMemset(states.data, 0, states.bytes), "clear");
  LinearPass pass;
  const Strides strides = {kTokens * heads * dim, int64_t(heads) * dim, dim};
  pass.a = {a.data, strides, heads, dim}, pass.b = {b.data, strides, heads, dim};
  pass.c = {c.data, strides, heads, dim}, pass.y = {y.data, strides, heads, dim};
  pass.batch = 1, pass.tokens = kTokens, pass.heads = heads, pass.dtype = DType::kBFloat16;
  pass.decay = Decay::kChannel, pass.decay_dtype = decay_dtype;
  pass.g = g.data, pass.g_strides = strides, pass.scale = 0.088f;
  pass.runs = static_cast<const Run *>(list.data), pass.num_runs = int64_t(runs.size());
  pass.state_in = static_cast<const float *>(states.data);
  std::printf("B1 H%d T16384 K=V=%d, %d runs, decay in %s, log decays from -%g:\n", heads, dim, int(runs.size()),
              wide ? "float32" : "bfloat16", double(strongest));
  for (const bool reversed : {false, true}) {
    pass.reversed = reversed;
    std::printf("  %-4s", reversed ? "dv" : "o");
    for (int turn = 0; turn < 2; ++turn) {
      const double before = median_ms([&] { check(mma::launch_linear_pass(pass, nullptr), "launch"); }),
                   now = median_ms([&] { check(hopper::launch_channel_pass(pass, nullptr), "launch"); });
      const double floor = double(unit) * (wide ? 6 : 5) / bytes_per_ms;
      std::printf("  mma %.3f  wgmma %.3f (%.0f%%)", before, now, 100 * floor / now);
    }
    std::printf("\n");
  }
}

}  // namespace

void time_channel_pass() {
  check(mma::load_linear_pass_kernels(), "loading kernels");
  const double bytes_per_ms = copy_bytes_per_ms();
  for (const float strongest : {0.1f, 3.0f, 10.0f, 100.0f})
    time_case({32, 128, 4, DType::kFloat32}, strongest, bytes_per_ms);
  time_case({32, 128, 8, DType::kFloat32}, 0.1f, bytes_per_ms);
  time_case({32, 128, 4, DType::kBFloat16}, 0.1f, bytes_per_ms);
  time_case({16, 256, 4, DType::kFloat32}, 0.1f, bytes_per_ms);
  time_case({8, 128, 16, DType::kFloat32}, 0.1f, bytes_per_ms);
}

}  // namespace lasp::gpu
