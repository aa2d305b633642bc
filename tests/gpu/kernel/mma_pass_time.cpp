// Times of the linear pass by mma.sync at one size, every kind of decay, beside a device copy of the same run.
#include "mma_pass_time.h"

#include <algorithm>
#include <random>

#include "../../../kernels/mma/linear_pass.h"
#include "device_memory.h"
#include "device_time.h"

namespace lasp::gpu {
namespace {

// The decay of a pass: what there is of it, its bytes in units of one tensor [B, T, H, 128] of 16 bits.
struct TimedPass {
  const char *name;
  Decay decay;
  bool reversed, transposed, output;
  double units;
};

void time_case(int64_t tokens, int32_t heads, int64_t pieces, double bytes_per_ms) {
  const size_t unit = size_t(tokens * heads) * 128 * 2;
  DeviceMemory a(unit), b(unit), c(unit), y(unit), g(2 * unit);
  fill_random(a), fill_random(b), fill_random(c);
  check(cudaMemset(y.data, 0, unit), "clear");
  std::vector<float> decays(g.bytes / 4);
  for (size_t i = 0; i < decays.size(); ++i) decays[i] = -0.001f * float(1 + i * 7919 % 100);
  g.put(decays);
  std::vector<Run> runs;
  const int64_t step = (tokens + pieces - 1) / pieces;
  for (int64_t begin = 0; begin < tokens; begin += step)
    runs.push_back(make_run(0, begin, int32_t(std::min(step, tokens - begin)), int64_t(runs.size())));
  DeviceMemory list(runs.size() * sizeof(Run)), states(runs.size() * heads * 128 * 128 * 4);
  list.put(runs);
  check(cudaMemset(states.data, 0, states.bytes), "clear");
  LinearPass pass;
  const Strides strides = {tokens * heads * 128, int64_t(heads) * 128, 128};
  pass.a = {a.data, strides, heads, 128}, pass.b = {b.data, strides, heads, 128};
  pass.c = {c.data, strides, heads, 128}, pass.y = {y.data, strides, heads, 128};
  pass.batch = 1, pass.tokens = tokens, pass.heads = heads, pass.dtype = DType::kBFloat16;
  pass.g = g.data, pass.scale = 0.088f;
  pass.runs = static_cast<const Run *>(list.data), pass.num_runs = int64_t(runs.size());
  pass.state_in = static_cast<const float *>(states.data), pass.state_out = static_cast<float *>(states.data);
  std::printf("B1 H%d T%lld, %d runs: ms (share of what copying its bytes takes), by chunks in shared memory\n",
              heads, static_cast<long long>(tokens), int(runs.size()));
  for (const TimedPass &t : {TimedPass{"none", Decay::kNone, false, false, true, 4},
                             TimedPass{"per head", Decay::kHead, false, false, true, 4},
                             TimedPass{"per token", Decay::kScalar, false, false, true, 4},
                             TimedPass{"per token, reversed", Decay::kScalar, true, false, true, 4},
                             TimedPass{"per channel: states", Decay::kChannel, false, false, false, 4},
                             TimedPass{"per channel: o", Decay::kChannel, false, false, true, 6},
                             TimedPass{"per channel: dq", Decay::kChannel, false, true, true, 6},
                             TimedPass{"per channel: dv", Decay::kChannel, true, false, true, 6},
                             TimedPass{"per channel: dk", Decay::kChannel, true, true, true, 6}}) {
    pass.decay = t.decay, pass.reversed = t.reversed, pass.state_transposed = t.transposed;
    pass.y.data = t.output ? y.data : nullptr;
    pass.g_strides = t.decay == Decay::kChannel ? strides : Strides{tokens * heads, heads, 1};
    std::printf("  %-20s", t.name);
    for (const int32_t stages : {3, 4, 5}) {
      check(mma::launch_linear_pass(pass, stages, nullptr), "launch");
      check(cudaDeviceSynchronize(), t.name);
      const double ms = median_ms([&] { check(mma::launch_linear_pass(pass, stages, nullptr), "launch"); });
      std::printf("  %d: %.3f (%.0f%%)", stages, ms, 100 * t.units * double(unit) / bytes_per_ms / ms);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

void time_mma_pass() {
  const double bytes_per_ms = copy_bytes_per_ms();
  time_case(16384, 32, 4, bytes_per_ms);
  time_case(16384, 32, 8, bytes_per_ms);
}

}  // namespace lasp::gpu
