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
  int32_t heads, dim_k, dim_v, pieces;
  DType decay_dtype;
};

void time_case(const TimedSize &size, float strongest, double bytes_per_ms) {
  constexpr int64_t kTokens = 16384;
  const auto [heads, dim_k, dim_v, pieces, decay_dtype] = size;
  const bool wide = decay_dtype == DType::kFloat32;
  const size_t of_k = size_t(kTokens * heads) * dim_k * 2, of_v = size_t(kTokens * heads) * dim_v * 2;
  DeviceMemory a(of_k), b(of_k), c(of_v), y(of_v), g(2 * of_k);
  fill_random(a), fill_random(b), fill_random(c);
  check(cudaMemset(y.data, 0, of_v), "clear");
  std::vector<float> decays(of_k / 2);
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
  DeviceMemory list(runs.size() * sizeof(Run)), states(runs.size() * heads * dim_k * dim_v * 4);
  list.put(runs);
  check(cudaMemset(states.data, 0, states.bytes), "clear");
  LinearPass pass;
  const auto strides = [&](int32_t dim) { return Strides{kTokens * heads * dim, int64_t(heads) * dim, dim}; };
  pass.a = {a.data, strides(dim_k), heads, dim_k}, pass.b = {b.data, strides(dim_k), heads, dim_k};
  pass.c = {c.data, strides(dim_v), heads, dim_v}, pass.y = {y.data, strides(dim_v), heads, dim_v};
  pass.batch = 1, pass.tokens = kTokens, pass.heads = heads, pass.dtype = DType::kBFloat16;
  pass.decay = Decay::kChannel, pass.decay_dtype = decay_dtype;
  pass.g = g.data, pass.g_strides = strides(dim_k), pass.scale = 0.088f;
  pass.runs = static_cast<const Run *>(list.data), pass.num_runs = int64_t(runs.size());
  pass.state_in = static_cast<const float *>(states.data);
  std::printf("B1 H%d T16384 K=%d V=%d, %d runs, decay in %s, log decays from -%g:\n", heads, dim_k, dim_v,
              int(runs.size()), wide ? "float32" : "bfloat16", double(strongest));
  for (const bool reversed : {false, true}) {
    pass.reversed = reversed;
    std::printf("  %-4s", reversed ? "dv" : "o");
    for (int turn = 0; turn < 2; ++turn) {
      const double before = median_ms([&] { check(mma::launch_linear_pass(pass, nullptr), "launch"); }),
                   now = median_ms([&] { check(hopper::launch_channel_pass(pass, nullptr), "launch"); });
      const double floor = double(of_k * (wide ? 4 : 3) + 2 * of_v) / bytes_per_ms;
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
    time_case({32, 128, 128, 4, DType::kFloat32}, strongest, bytes_per_ms);
  time_case({32, 128, 128, 4, DType::kBFloat16}, 0.1f, bytes_per_ms);
  for (const TimedSize &size : {TimedSize{32, 128, 128, 8, DType::kFloat32},
                                {16, 256, 256, 4, DType::kFloat32},
                                {8, 128, 128, 16, DType::kFloat32},
                                {32, 64, 64, 8, DType::kFloat32},
                                {32, 128, 64, 8, DType::kFloat32},
                                {32, 64, 128, 8, DType::kFloat32},
                                {16, 192, 192, 4, DType::kFloat32}})
    time_case(size, 0.1f, bytes_per_ms);
}

}  // namespace lasp::gpu
