// The time of the fused backward kernel, beside a device copy.
#include "fused_backward_time.h"

#include <cstdio>
#include <vector>

#include "../../../kernels/launch.h"
#include "device_memory.h"
#include "device_time.h"

namespace {

using namespace lasp::gpu;

struct TimedCase {
  int64_t batch, tokens;
  int32_t heads, pieces;  // runs that each row is cut into
  int32_t members = 1;
  int64_t k_dim = 128, v_dim = 128;
  int32_t queries = 1;  // that share a head of q and k
};

void time_case(const TimedCase &t, double bytes_per_ms) {
  const size_t of_k = size_t(t.batch * t.tokens * t.heads * t.k_dim) * 2,
               of_v = of_k / size_t(t.k_dim) * size_t(t.v_dim);
  const int32_t shared = t.heads / t.members, keys = shared / t.queries;
  const int64_t state = t.k_dim * t.v_dim;
  DeviceMemory q(of_k), k(of_k), v(of_v), d_o(of_v), d_q(of_k), d_k(of_k), d_v(of_v);
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
  DeviceMemory d_g(decays.size() * 4), ends(runs.size() * size_t(t.heads * state) * 4);
  DeviceCopy g(decays), list(runs), states(std::vector<float>(runs.size() * size_t(t.heads * state))),
      checkpoints(std::vector<uint16_t>(size_t(kept * t.heads * state) * runs.size(), 0x3f00));
  FusedBackward pass;
  const auto tensor = [&](const DeviceMemory &memory, int32_t heads, int64_t dim) {
    return Tensor{memory.data, {t.tokens * heads * dim, heads * dim, dim}, heads, int32_t(dim)};
  };
  pass.q = tensor(q, t.heads / t.queries, t.k_dim), pass.k = tensor(k, keys, t.k_dim);
  pass.v = tensor(v, shared, t.v_dim), pass.d_o = tensor(d_o, t.heads, t.v_dim);
  pass.d_q = tensor(d_q, t.heads, t.k_dim), pass.d_k = tensor(d_k, shared, t.k_dim);
  pass.d_v = tensor(d_v, shared, t.v_dim);
  pass.batch = t.batch, pass.tokens = t.tokens, pass.heads = t.heads, pass.dtype = DType::kBFloat16;
  pass.g = g.data, pass.g_strides = pass.d_g_strides = {t.tokens * t.heads, t.heads, 1}, pass.scale = 0.088f;
  pass.runs = static_cast<const Run *>(list.data), pass.num_runs = int64_t(runs.size());
  pass.checkpoints = checkpoints.data;
  pass.d_state_in = static_cast<const float *>(states.data), pass.d_edge_state = static_cast<float *>(ends.data);
  pass.num_checkpoints = int64_t(runs.size()) * kept;
  DeviceMemory workspace(size_t(fused_backward_workspace(pass)) * 4);
  pass.workspace = static_cast<float *>(workspace.data);
  // Of a dq and dk that wait for their sums nothing counts.
  const double bytes =
      (t.queries > 1 ? 2.0 / t.queries : 2 + 2.0 / t.members) * double(of_k) + (1 + 2.0 / t.members) * double(of_v);
  const double floor = bytes / bytes_per_ms;
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
  const int64_t blocks = fused_backward_blocks(pass, multiprocessors);
  std::printf("B%lld H%d (%d of k, %d of v) T%lld K %lld V %lld, %d runs a row, %lld at once: floor %.3f ms\n",
              static_cast<long long>(t.batch), t.heads, keys, shared, static_cast<long long>(t.tokens),
              static_cast<long long>(t.k_dim), static_cast<long long>(t.v_dim), t.pieces,
              static_cast<long long>(blocks), floor);
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
        TimedCase{1, 16384, 32, 7, 4}, TimedCase{1, 16384, 32, 3, 8}, TimedCase{1, 16384, 32, 7, 8},
        TimedCase{1, 16384, 32, 4, 1, 128, 64}, TimedCase{1, 16384, 32, 4, 1, 128, 64, 32},
        TimedCase{1, 16384, 33, 4, 1, 64, 64}, TimedCase{1, 16384, 32, 4, 1, 64, 64},
        TimedCase{1, 16384, 32, 8, 1, 64, 64}, TimedCase{1, 16384, 16, 4, 1, 256, 256}})
    time_case(t, bytes_per_ms);
}
