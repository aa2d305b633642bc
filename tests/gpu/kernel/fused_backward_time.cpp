// The time of the fused backward kernel of K = V = 128, beside a device copy.
#include "fused_backward_time.h"

#include <cstdio>
#include <vector>

#include "../../../kernels/launch.h"
#include "device_memory.h"
#include "device_time.h"

namespace {

using namespace lasp::gpu;

constexpr int64_t kDim = 128, kState = kDim * kDim;

struct TimedCase {
  int64_t batch, tokens;
  int32_t heads, pieces;  // runs that each row is cut into
  int32_t members = 1;
};

void time_case(const TimedCase &t, double bytes_per_ms) {
  const size_t unit = size_t(t.batch * t.tokens * t.heads) * kDim * 2;
  const int32_t shared = t.heads / t.members;
  DeviceMemory q(unit), k(unit), v(unit), d_o(unit), d_q(unit), d_k(unit), d_v(unit);
  for (const auto *x : {&q, &k, &v, &d_o}) fill_random(*x);
  std::vector<float> decays(size_t(t.batch * t.tokens * t.heads));
  for (size_t i = 0; i < decays.size(); ++i) decays[i] = -0.001f * float(1 + i * 7919 % 100);
  std::vector<Run> runs;
  const int64_t length = t.tokens / t.pieces, kept = (length + kFusedCheckpoint - 1) / kFusedCheckpoint;
  for (int64_t row = 0; row < t.batch; ++row)
    for (int64_t i = 0; i < t.pieces; ++i) {
      runs.push_back(make_run(row, i * length, int32_t(length), int64_t(runs.size())));
      runs.back().checkpoint = int32_t((runs.size() - 1) * size_t(kept));
      runs.back().starts = runs.back().state;
    }
  DeviceMemory d_g(decays.size() * 4), ends(runs.size() * size_t(t.heads * kState) * 4);
  DeviceCopy g(decays), list(runs), states(std::vector<float>(runs.size() * size_t(t.heads * kState))),
      checkpoints(std::vector<uint16_t>(size_t(kept * t.heads * kState) * runs.size(), 0x3f00));
  FusedBackward pass;
  const auto tensor = [&](const DeviceMemory &memory, int32_t heads) {
    return Tensor{memory.data, {t.tokens * heads * kDim, heads * kDim, kDim}, heads, int32_t(kDim)};
  };
  pass.q = tensor(q, t.heads), pass.k = tensor(k, shared), pass.v = tensor(v, shared),
  pass.d_o = tensor(d_o, t.heads);
  pass.d_q = tensor(d_q, t.heads), pass.d_k = tensor(d_k, shared), pass.d_v = tensor(d_v, shared);
  pass.batch = t.batch, pass.tokens = t.tokens, pass.heads = t.heads, pass.dtype = DType::kBFloat16;
  pass.g = g.data, pass.g_strides = pass.d_g_strides = {t.tokens * t.heads, t.heads, 1}, pass.scale = 0.088f;
  pass.runs = static_cast<const Run *>(list.data), pass.num_runs = int64_t(runs.size());
  pass.checkpoints = checkpoints.data;
  pass.d_state_in = static_cast<const float *>(states.data), pass.d_edge_state = static_cast<float *>(ends.data);
  pass.num_checkpoints = int64_t(runs.size()) * kept;
  DeviceMemory workspace(size_t(fused_backward_workspace(pass)) * 4);
  pass.workspace = static_cast<float *>(workspace.data);
  const double units = 3 + 4.0 / t.members, floor = units * double(unit) / bytes_per_ms;
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
  const int64_t blocks = fused_backward_blocks(pass, multiprocessors);
  std::printf("B%lld H%d (%d of k, v) T%lld, %d runs a row, %lld blocks at once: floor of %g units %.3f ms\n",
              static_cast<long long>(t.batch), t.heads, shared, static_cast<long long>(t.tokens), t.pieces,
              static_cast<long long>(blocks), units, floor);
  const auto measure = [&](const char *name) {
    const double ms = median_ms([&] { check(launch_fused_backward(pass, nullptr), "launch"); });
    std::printf("  %s %.3f (%.0f%%)", name, ms, 100 * floor / ms);
  };
  pass.d_g = nullptr;
  pass.decay = Decay::kNone, measure("none");
  pass.decay = Decay::kHead, measure("head");
  pass.decay = Decay::kScalar, measure("token");
  pass.d_g = d_g.data;
  pass.decay = Decay::kScalar, measure("token, with d_g");
  pass.decay = Decay::kHead, measure("head, with d_g");
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

void time_fused_backward() {
  const double bytes_per_ms = copy_bytes_per_ms();
  for (const TimedCase &t :
       {TimedCase{1, 16384, 32, 1}, TimedCase{1, 16384, 32, 4}, TimedCase{8, 2048, 32, 1},
        TimedCase{1, 131072, 8, 4}, TimedCase{1, 131072, 8, 16}, TimedCase{1, 2048, 32, 1},
        TimedCase{1, 2048, 32, 4}, TimedCase{1, 16384, 32, 4, 2}, TimedCase{1, 16384, 32, 3, 4},
        TimedCase{1, 16384, 32, 7, 4}, TimedCase{1, 16384, 32, 3, 8}, TimedCase{1, 16384, 32, 7, 8}})
    time_case(t, bytes_per_ms);
}
