#include "delta_fast_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../../../kernels/delta/passes.h"
#include "device_time.h"

namespace lasp::gpu {
namespace {

constexpr int64_t kDim = 128, kState = kDim * kDim;

void time_shape(int64_t batch, int32_t heads, int64_t tokens, Decay decay, bool with_gradients) {
  const size_t bytes = size_t(batch * heads * tokens * kDim) * 2;
  const int32_t every = delta_spacing(KernelSet::kHopper, batch * tokens, heads);
  const int64_t each = decay == Decay::kChannel ? kDim : 1;
  DeviceMemory q(bytes), k(bytes), v(bytes), o(bytes), g(bytes / kDim * 2 * size_t(each)), beta(bytes / kDim * 2);
  for (const DeviceMemory *x : {&q, &k, &v}) fill_random(*x);
  // Keys have 128 as the square of their length, so beta has its inverse.
  beta.put(std::vector<float>(beta.bytes / 4, 1.0f / 128));
  // Slopes as RetNet has them and lasp-bench: some heads forget soon, some late.
  std::vector<float> decays(g.bytes / 4);
  for (size_t i = 0; i < decays.size(); ++i)
    decays[i] = -std::exp2(-8.0f * float(i / size_t(each) % size_t(heads) + 1) / float(heads));
  g.put(decays);
  std::vector<Run> runs;
  for (int64_t b = 0; b < batch; ++b) {
    runs.push_back(make_run(b, 0, int32_t(tokens), b));
    runs.back().checkpoint = int32_t(b * ((tokens + every - 1) / every));
  }
  const DeviceCopy on_device(runs), segments(std::vector<Segment>(runs.size()));
  DeltaForward f;
  const auto tensor = [&](const DeviceMemory &m) {
    return Tensor{m.data, {tokens * heads * kDim, heads * kDim, kDim}, heads, int32_t(kDim)};
  };
  f.q = tensor(q), f.k = tensor(k), f.v = tensor(v), f.o = tensor(o);
  f.batch = batch, f.tokens = tokens, f.heads = heads, f.dtype = DType::kBFloat16, f.decay = decay;
  f.g = g.data, f.beta = beta.data, f.spacing = every;
  f.g_strides = {tokens * heads * each, heads * each, each}, f.beta_strides = {tokens * heads, heads, 1};
  f.runs = static_cast<const Run *>(on_device.data), f.num_runs = int64_t(runs.size());
  f.segments = static_cast<const Segment *>(segments.data);
  DeviceMemory workspace(size_t(delta_hopper::forward_workspace(f)) * 4);
  f.workspace = static_cast<float *>(workspace.data);
  DeviceMemory maps(size_t(delta_hopper::maps_floats(f)) * 4 + 4);
  f.maps = static_cast<float *>(maps.data);
  const double copy = median_ms([&] {
    check(cudaMemcpyAsync(o.data, q.data, bytes, cudaMemcpyDeviceToDevice, nullptr), "copy");
    check(cudaMemcpyAsync(o.data, k.data, bytes, cudaMemcpyDeviceToDevice, nullptr), "copy");
  });
  const double forward = median_ms([&] { check(delta_hopper::run_forward(f, nullptr), "forward"); });
  DeviceMemory kept(size_t(batch * ((tokens + every - 1) / every)) * size_t(heads) * kState * 2);
  DeltaReversed b;
  static_cast<DeltaInputs &>(b) = f;
  b.d_o = tensor(v), b.d_checkpoints = kept.data;
  b.maps = f.maps, b.maps_runs = delta_hopper::maps_floats(f) > 0 ? f.num_runs : 0;
  DeviceMemory reversed_workspace(size_t(delta_hopper::reversed_workspace(b)) * 4);
  b.workspace = static_cast<float *>(reversed_workspace.data);
  const double reversed = median_ms([&] { check(delta_hopper::run_reversed(b, nullptr), "reversed"); });
  std::vector<Run> stretches;
  for (int64_t r = 0; r < batch; ++r)
    for (int64_t t = 0; t < tokens; t += every) {
      stretches.push_back(make_run(r, t, every));
      stretches.back().checkpoint = int32_t(stretches.size() - 1);
    }
  const DeviceCopy of_stretches(stretches);
  DeviceMemory d_q(bytes), d_k(bytes), d_v(bytes), d_g(g.bytes), d_beta(beta.bytes);
  fill_random(kept);
  DeltaGradients x;
  static_cast<DeltaInputs &>(x) = f;
  x.runs = static_cast<const Run *>(of_stretches.data), x.num_runs = int64_t(stretches.size());
  x.d_o = tensor(v), x.d_q = tensor(d_q), x.d_k = tensor(d_k), x.d_v = tensor(d_v);
  x.d_g = decay == Decay::kNone ? nullptr : d_g.data, x.d_beta = d_beta.data;
  x.d_g_strides = f.g_strides, x.d_beta_strides = f.beta_strides;
  x.checkpoints = x.d_checkpoints = kept.data;
  x.prepared = b.workspace, x.prepared_runs = b.num_runs;
  DeviceMemory gradients_workspace(size_t(delta_hopper::gradients_workspace(x)) * 4);
  x.workspace = static_cast<float *>(gradients_workspace.data);
  const double gradients =
      !with_gradients ? 0 : median_ms([&] { check(delta_hopper::run_gradients(x, nullptr), "gradients"); });
  b.gradients = &x;
  const bool once = with_gradients && delta_hopper::can_walk_once(b, x);
  const double walk =
      !once ? 0 : median_ms([&] { check(delta_hopper::run_reversed(b, nullptr), "one walk back"); });
  f.o.data = nullptr, f.checkpoints = kept.data;
  const double states = median_ms([&] { check(delta_hopper::run_forward(f, nullptr), "states"); });
  std::printf(
      "B%lld H%d T%lld decay %d: forward %.3f ms (states and checkpoints %.3f), reversed %.3f, "
      "gradients %.3f (%.2f units), all in one walk %.3f, copy of 4 units %.3f; workspace %.2f units\n",
      (long long)batch, heads, (long long)tokens, int(decay), forward, states, reversed, gradients,
      double(gradients_workspace.bytes) / double(bytes), walk, copy,
      double(std::max(workspace.bytes, reversed_workspace.bytes)) / double(bytes));
  std::fflush(stdout);
}

}  // namespace

void time_delta_fast(bool with_gradients, bool only_channel) {
  for (const Decay decay : {Decay::kNone, Decay::kScalar, Decay::kChannel}) {
    if (only_channel && decay != Decay::kChannel) continue;
    time_shape(1, 32, 16384, decay, with_gradients);
    time_shape(8, 32, 2048, decay, with_gradients);
    time_shape(1, 8, 131072, decay, with_gradients);
  }
}

}  // namespace lasp::gpu
