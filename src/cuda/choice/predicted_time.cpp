#include "cuda/choice/predicted_time.h"

#include <algorithm>
#include <cstdio>

namespace lasp::cuda {
namespace {

enum class Family {
  kHopperForward,
  kHopperThree,
  kFused,
  kMmaForward,
  kMmaThree,
  kChannelForward,
  kChannelWhole,  // of sequences that are one run each: without the states of runs
  kMmaWalks,
  kChannelWalks
};

// Shares of the floor as lasp-bench measured them on one H200, bfloat16, where the device is full (docs/reference/
// performance.md): states of at most so many elements, and their share without decay, per head, per token, per
// channel.
struct Measured {
  Family family;
  int32_t most_elements;
  double share[4];
};
constexpr Measured kMeasured[] = {
    {Family::kHopperForward, 64 * 64 - 1, {}},  // not measured
    {Family::kHopperForward, 64 * 64, {0.53, 0.51, 0.48, 0}},
    {Family::kHopperForward, 128 * 64, {0.60, 0.53, 0.45, 0}},
    {Family::kHopperForward, 128 * 128 - 1, {}},
    {Family::kHopperForward, 128 * 128, {0.66, 0.55, 0.47, 0}},
    {Family::kHopperForward, 128 * 256, {0.50, 0.43, 0.37, 0}},
    {Family::kHopperForward, 256 * 256, {0.24, 0.22, 0.21, 0}},
    {Family::kHopperForward, 256 * 512, {0.12, 0.11, 0.10, 0}},
    {Family::kHopperThree, 64 * 64, {0.40, 0.10, 0.10, 0}},
    {Family::kHopperThree, 128 * 128, {0.30, 0.10, 0.09, 0}},
    {Family::kFused, 64 * 64 - 1, {}},
    {Family::kFused, 64 * 64, {0.50, 0.42, 0.42, 0}},
    {Family::kFused, 128 * 64, {0.50, 0.40, 0.40, 0}},
    {Family::kFused, 128 * 128 - 1, {}},
    {Family::kFused, 128 * 128, {0.47, 0.40, 0.39, 0}},
    {Family::kFused, 128 * 256, {0.30, 0.26, 0.24, 0}},
    {Family::kFused, 256 * 256, {0.22, 0.19, 0.18, 0}},
    {Family::kFused, 256 * 512, {0.14, 0.11, 0.11, 0}},
    {Family::kMmaForward, 96 * 96, {0.25, 0.22, 0.17, 0}},
    {Family::kMmaThree, 96 * 96, {0.15, 0.05, 0.05, 0}},
    {Family::kChannelForward, 64 * 64 - 1, {}},
    {Family::kChannelForward, 64 * 64, {0, 0, 0, 0.47}},
    {Family::kChannelForward, 128 * 64 - 1, {}},
    {Family::kChannelForward, 128 * 64, {0, 0, 0, 0.41}},
    {Family::kChannelForward, 128 * 128 - 1, {}},
    {Family::kChannelForward, 128 * 128, {0, 0, 0, 0.43}},
    {Family::kChannelForward, 128 * 256, {0, 0, 0, 0.30}},
    {Family::kChannelForward, 256 * 256, {0, 0, 0, 0.22}},
    {Family::kChannelWhole, 128 * 128 - 1, {}},
    {Family::kChannelWhole, 128 * 128, {0, 0, 0, 0.82}},
    {Family::kMmaWalks, 64 * 64, {0, 0, 0, 0.25}},
    {Family::kMmaWalks, 128 * 128, {0, 0, 0, 0.23}},
    {Family::kMmaWalks, 128 * 256, {0, 0, 0, 0.13}},
    {Family::kMmaWalks, 256 * 256, {0, 0, 0, 0.12}},
    {Family::kChannelWalks, 64 * 64, {0, 0, 0, 0.32}},
    {Family::kChannelWalks, 128 * 128, {0, 0, 0, 0.30}},
    {Family::kChannelWalks, 128 * 256, {0, 0, 0, 0.18}},
    {Family::kChannelWalks, 256 * 256, {0, 0, 0, 0.15}},
};
// Launches, tables and the first tiles: what a pass over few tokens takes.
constexpr double kForwardStart = 8, kBackwardStart = 20;  // us

// Each input read once and each output written once.
double floor_bytes(const Problem &p, bool backward) {
  const auto of = [](int64_t heads, int64_t dim, DType type) {
    return static_cast<double>(heads * dim * size_of(type));
  };
  const double q = of(p.heads_q, p.head_dim_k, p.dtype), k = of(p.heads_k, p.head_dim_k, p.dtype),
               v = of(p.heads_v, p.head_dim_v, p.dtype), o = of(p.heads, p.head_dim_v, p.dtype);
  const int64_t decays = p.decay == Decay::kChannel ? p.head_dim_k : p.decay == Decay::kScalar ? 1 : 0;
  double bytes = q + k + v + o + of(p.heads, decays, p.decay_dtype);
  if (backward)
    bytes += of(p.heads_q, p.head_dim_k, p.dq_dtype) + of(p.heads_k, p.head_dim_k, p.dk_dtype) +
             of(p.heads_v, p.head_dim_v, p.dv_dtype) + of(p.heads, decays, p.d_decay_dtype);
  return bytes * static_cast<double>(p.batch) * static_cast<double>(p.tokens);
}

Family family_of(const PlanInputs &inputs, const Choices &choices, const KernelFinder &kernels, bool backward) {
  const bool channel = inputs.problem().decay == Decay::kChannel;
  gpu::LinearPass pass = inputs.base_pass({}, nullptr);
  pass.a = inputs.q_of(nullptr), pass.b = inputs.k_of(nullptr), pass.c = inputs.v_of(nullptr);
  pass.y = inputs.o_of(nullptr);
  const bool hopper = kernels.linear_pass(pass) == gpu::KernelSet::kHopper;
  if (channel && !hopper) return backward ? Family::kMmaThree : Family::kMmaForward;  // not measured
  if (!backward && channel)
    return inputs.longest_segment() <= choices.run_tokens && !inputs.waits() ? Family::kChannelWhole
                                                                             : Family::kChannelForward;
  if (!backward) return hopper ? Family::kHopperForward : Family::kMmaForward;
  if (choices.fused) return Family::kFused;
  if (choices.channel) {
    const gpu::ChannelBackward walks = channel_pass(inputs, {}, PlanInputs::aligned_buffers(), nullptr, nullptr);
    const bool by_wgmma = kernels.channel_backward(walks) == gpu::KernelSet::kHopper;
    return by_wgmma ? Family::kChannelWalks : Family::kMmaWalks;
  }
  return hopper ? Family::kHopperThree : Family::kMmaThree;
}

}  // namespace

PredictedTime predict(const PlanInputs &inputs, const Choices &choices, const KernelFinder &kernels, bool backward,
                      double bytes_per_us) {
  const Problem &p = inputs.problem();
  if (!choices.tensor_cores || bytes_per_us <= 0 || p.tokens == 0) return {};
  // Where heads are shared the floor is lower than what the kernels move.
  if (p.heads_q != p.heads || p.heads_k != p.heads || p.heads_v != p.heads) return {};
  const Family family = family_of(inputs, choices, kernels, backward);
  const auto *row = std::find_if(std::begin(kMeasured), std::end(kMeasured), [&](const Measured &measured) {
    return measured.family == family && p.state_size() <= measured.most_elements;
  });
  const double share = row == std::end(kMeasured) ? 0 : row->share[static_cast<int32_t>(p.decay)];
  if (share == 0) return {};
  const double floor_us = floor_bytes(p, backward) / bytes_per_us;
  return {(backward ? kBackwardStart : kForwardStart) + floor_us / share, floor_us};
}

std::string predicted_times(const PlanInputs &inputs, const Choices &choices, const KernelFinder &kernels,
                            double bytes_per_us) {
  std::string text;
  for (const bool backward : {false, true}) {
    if (backward && !inputs.problem().backward) break;
    const PredictedTime time = predict(inputs, choices, kernels, backward, bytes_per_us);
    if (time.us <= 0) continue;
    char part[96];
    std::snprintf(part, sizeof part, "%s %s %.3f ms, %.0f%% of the copy floor", text.empty() ? "; predicted" : ",",
                  backward ? "backward" : "forward", time.us * 1e-3, 100 * time.share());
    text += part;
  }
  return text;
}

}  // namespace lasp::cuda
