#include "cuda/choice/kernel_table.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace lasp::cuda {
namespace {

constexpr uint32_t bit(Decay decay) { return 1U << static_cast<uint32_t>(decay); }
constexpr uint32_t bit(DType type) { return 1U << static_cast<uint32_t>(type); }

using enum KernelPass;
using enum KernelFamily;

constexpr uint32_t kNoDecay = bit(Decay::kNone), kPerToken = bit(Decay::kHead) | bit(Decay::kScalar),
                   kPerChannel = bit(Decay::kChannel), kNotPerChannel = kNoDecay | kPerToken,
                   kAnyDecay = kNotPerChannel | kPerChannel;
constexpr uint32_t k16Bit = bit(DType::kBFloat16) | bit(DType::kFloat16), kAnyType = k16Bit | bit(DType::kFloat32);
constexpr Dims kAny{}, k64{64, 64, 64}, k128{128, 128, 128}, k64Or128{64, 64, 128}, k32s{32, 32, 512},
    k8s{8, 8, 512}, k8sTo64{8, 8, 64}, k8sTo128{8, 8, 128};
constexpr int32_t kNewest = std::numeric_limits<int32_t>::max();

// Rows of a pass stand in the order in which they are tried.
constexpr KernelRow kRows[] = {
    // pass, family, decays, K, V, types, capability from, to,
    //     file, kernel, grid, threads, shared from, to, registers
    {kOutputs, kTensorCores, kNotPerChannel, k64Or128, k32s, k16Bit, 90, 90,  //
     "hopper/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 32, or V / 64", "640, or 512", 116.2, "203.4",
     128},
    {kOutputs, kTensorCores, kNotPerChannel, k8s, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128; from K = 136 on V / 64",
     "128 + 32 for 16 columns of V", 77.7, "115.2", 216},
    {kOutputs, kTensorCores, kPerChannel, k8sTo64, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128", "128 + 32 for 16 columns of V", 52.6,
     "78.1", 166},
    {kOutputs, kTensorCores, kPerChannel, k8sTo128, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128", "128 + 32 for 16 columns of V", 82.6,
     "124.1", 168},
    {kOutputs, kTensorCores, kPerChannel, k8s, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 64", "128 + 32 for 16 columns of V", 133.6,
     "203.1", 226},
    {kOutputs, kRecurrent, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "generic_pass.cu", "pass_kernel", "runs x H x V / 32", "K", 0, "99", 128},

    {kStates, kTensorCores, kPerChannel, k64Or128, k64Or128, k16Bit, 80, kNewest,  //
     "mma/channel_states.cuh", "channel_states_kernel", "runs x H", "2 K", 85.3, "85.3", 120},
    // Else the kernel of the outputs, without y.

    {kStateScan, kRecurrent, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "states.cu", "scan_kernel", "segments x H x K x V / 1024", "256", 0, "0", 64},

    {kFusedBackward, kTensorCores, kNotPerChannel, k128, k128, k16Bit, 90, 90,  //
     "hopper/fused_backward.cuh", "fused_backward_kernel", "runs x H", "384", 226.7, "226.7", 168},

    {kChannelBackward, kTensorCores, kPerChannel, k64, k64Or128, k16Bit, 80, kNewest,  //
     "mma/channel_kernel.cuh", "channel_walk_kernel", "runs x H, twice", "2 K", 94.6, "94.6", 128},
    {kChannelBackward, kTensorCores, kPerChannel, k128, k64Or128, k16Bit, 80, kNewest,  //
     "mma/channel_kernel.cuh", "channel_walk_kernel", "runs x H, twice", "2 K", 112.6, "112.6", 128},

    {kDecayGradient, kTensorCores, kPerToken, k8s, k8s, k16Bit, 80, kNewest,  //
     "decay_products.cuh", "decay_products_kernel", "runs of 256 tokens x H x 4", "128", 41.9, "41.9", 167},
    {kDecayGradient, kTensorCores, kPerChannel, k8s, k8s, k16Bit, 80, kNewest,  //
     "channel_products.cuh", "channel_products_kernel", "runs of 64 tokens x H x K / 64", "128", 70, "70", 168},
    {kDecayGradient, kRecurrent, kPerToken, kAny, kAny, kAnyType, 0, kNewest,  //
     "decay_products.cuh", "decay_products_kernel", "runs of 256 tokens x H x 4", "128", 20.8, "20.8", 165},
    {kDecayGradient, kRecurrent, kPerChannel, kAny, kAny, kAnyType, 0, kNewest,  //
     "channel_products.cuh", "channel_products_kernel", "runs of 64 tokens x H x K / 64", "128", 70, "70", 168},

    {kBidirectional, kRecurrent, kNoDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "generic_pass.cu", "pass_kernel", "chunks x H x V / 32", "K", 0, "99", 128},
    {kStep, kRecurrent, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "generic_pass.cu", "pass_kernel", "sequences x H x V / 32", "K", 0, "99", 128},
    {kGroupSums, kRecurrent, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "states.cu", "sum_groups_kernel", "gradient's elements / 256", "256", 0, "0", 32},
};

// KiB that a block may have.
double shared_limit(int32_t capability) {
  switch (capability) {
    case 80:
    case 87: return 163;
    case 90:
    case 100:
    case 103: return 227;
    default: return 99;
  }
}

const char *name_of(KernelPass pass) {
  switch (pass) {
    case kOutputs: return "outputs; the three passes of backward";
    case kStates: return "states of runs";
    case kStateScan: return "states that enter runs";
    case kFusedBackward: return "backward, fused";
    case kChannelBackward: return "backward, per channel";
    case kDecayGradient: return "gradient of the decay";
    case kBidirectional: return "bidirectional form";
    case kStep: return "step";
    default: return "sums over groups of heads";
  }
}

const char *decays_of(uint32_t decays) {
  switch (decays) {
    case kNoDecay: return "none";
    case kPerToken: return "head, token";
    case kPerChannel: return "channel";
    case kNotPerChannel: return "none, head, token";
    default: return "any";
  }
}

std::string dims_of(const Dims &dims) {
  if (dims.most == Dims{}.most) return "any";
  if (dims.least == dims.most) return std::to_string(dims.least);
  if (dims.most == 2 * dims.step) return std::to_string(dims.least) + ", " + std::to_string(dims.most);
  return std::to_string(dims.step) + " n to " + std::to_string(dims.most);
}

std::string capability_of(const KernelRow &row) {
  if (row.least_capability == 0) return "any";
  std::string text = std::to_string(row.least_capability / 10) + "." + std::to_string(row.least_capability % 10);
  return row.most_capability == kNewest ? text + " on" : text;
}

std::string shared_of(const KernelRow &row) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", row.shared);
  const std::string least = text, most = row.shared_most;
  return least == most ? most : row.shared == 0 ? "to " + most : least + " to " + most;
}

}  // namespace

const char *sentence_of(KernelFamily family) {
  return family == kTensorCores ? "tensor-core kernels" : "recurrent kernels in float32";
}

bool KernelRow::serves(Decay decay, int32_t dim_k, int32_t dim_v, DType type, int32_t capability) const {
  return (decays & bit(decay)) != 0 && (types & bit(type)) != 0 && k.has(dim_k) && v.has(dim_v) &&
         capability >= least_capability && capability <= most_capability && shared <= shared_limit(capability);
}

std::span<const KernelRow> kernel_table() { return kRows; }

const KernelRow *find_kernel(KernelPass pass, Decay decay, int32_t dim_k, int32_t dim_v, DType type,
                             int32_t capability) {
  const auto *row = std::find_if(std::begin(kRows), std::end(kRows), [&](const KernelRow &r) {
    return r.pass == pass && r.serves(decay, dim_k, dim_v, type, capability);
  });
  return row == std::end(kRows) ? nullptr : row;
}

std::string kernel_table_markdown() {
  std::string text =
      "# Which kernel runs when\n\n"
      "Made from `src/cuda/choice/kernel_table.cpp`. The kernels decide (`refusal` in each), and a test compares "
      "this\n"
      "table with what they say. Of the rows of a pass the first that serves runs. Unfit strides of one tensor "
      "send all\n"
      "linear passes of a plan to the general kernel, an unfit pointer its own pass. The passes of backward that "
      "see the\n"
      "state transposed have K and V the other way round. `n` is any whole number; shared memory is in KiB, and "
      "the\n"
      "device must have the least of it; registers are the most of all instances, as compiled for 9.0.\n\n"
      "| pass | decay | K | V | type | capability | kernel, in `kernels/` | blocks | threads | shared | registers "
      "|\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  KernelPass before = kGroupSums;
  for (const KernelRow &row : kRows) {
    const std::string cells[] = {row.pass == before ? "" : name_of(row.pass),
                                 decays_of(row.decays),
                                 dims_of(row.k),
                                 dims_of(row.v),
                                 row.types == k16Bit ? "16-bit" : "any",
                                 capability_of(row),
                                 std::string("`") + row.kernel + "`, " + row.file,
                                 row.grid,
                                 row.threads,
                                 shared_of(row),
                                 std::to_string(row.registers)};
    for (const std::string &cell : cells) text += cell.empty() ? "| " : "| " + cell + ' ';
    text += "|\n";
    before = row.pass;
  }
  return text;
}

}  // namespace lasp::cuda
