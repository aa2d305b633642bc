#include "cuda/choice/kernel_table.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

namespace lasp::cuda {
namespace {

constexpr uint32_t bit(Decay decay) { return 1U << static_cast<uint32_t>(decay); }
constexpr uint32_t bit(DType type) { return 1U << static_cast<uint32_t>(type); }

using enum KernelPass;
using enum gpu::KernelSet;

constexpr uint32_t kNoDecay = bit(Decay::kNone), kPerToken = bit(Decay::kHead) | bit(Decay::kScalar),
                   kPerChannel = bit(Decay::kChannel), kNotPerChannel = kNoDecay | kPerToken,
                   kAnyDecay = kNotPerChannel | kPerChannel;
constexpr uint32_t k16Bit = bit(DType::kBFloat16) | bit(DType::kFloat16), kAnyType = k16Bit | bit(DType::kFloat32);
constexpr Dims kAny{}, k64{64, 64, 64}, k128{128, 128, 128}, k32s{32, 32, 512}, k32Or64{32, 32, 64},
    k32sTo256{32, 32, 256}, k32sFrom128{32, 128, 512}, k32sFrom128To256{32, 128, 256}, k64s{64, 64, 512},
    k64sTo256{64, 64, 256}, k128s{128, 128, 512}, k64sFrom128To256{64, 128, 256}, k8s{8, 8, 512}, k8sTo64{8, 8, 64},
    k8sTo128{8, 72, 128}, k8sFrom136{8, 136, 512}, k16sFrom32{16, 32, 512}, k16sFrom32To128{16, 32, 128},
    k16s{16, 16, 512}, k16sTo128{16, 16, 128}, k16sTo256{16, 16, 256}, k16sFrom144To256{16, 144, 256};
constexpr int32_t kNewest = std::numeric_limits<int32_t>::max();

// Rows of a pass stand in the order in which they are tried.
constexpr KernelRow kRows[] = {
    // pass, set, decays, K, V, types, capability from, to,
    //     file, kernel, grid, threads, shared from, to, registers
    {kOutputs, kHopper, kNotPerChannel, k32sTo256, k32s, k16Bit, 90, 90,  //
     "hopper/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 32, or V / 64", "640, or 512", 116.2, "203.4",
     128},
    {kOutputs, kMma, kNotPerChannel, k8s, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128; from K = 136 on V / 64",
     "128 + 32 for 16 columns of V", 77.7, "115.2", 216},
    {kOutputs, kHopper, kPerChannel, k64, k64s, k16Bit, 90, 90,  //
     "hopper/channel_pass.cu", "channel_pass_kernel", "runs x H x V / 128", "512", 190.2, "190.2", 128},
    {kOutputs, kHopper, kPerChannel, k64sFrom128To256, k64s, k16Bit, 90, 90,  //
     "hopper/channel_pass.cu", "channel_pass_kernel", "runs x H x V / 128; twice for K above 128", "512", 225.2,
     "225.2", 128},
    {kOutputs, kMma, kPerChannel, k8sTo64, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128", "128 + 32 for 16 columns of V", 52.6,
     "78.1", 166},
    {kOutputs, kMma, kPerChannel, k8sTo128, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128", "128 + 32 for 16 columns of V", 82.6,
     "124.1", 168},
    {kOutputs, kMma, kPerChannel, k8sFrom136, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128, twice; beyond K = 256 V / 64",
     "128 + 32 for 16 columns of V", 133.6, "203.1", 227},
    {kOutputs, kGeneric, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "generic_pass.cu", "pass_kernel", "runs x H x V / 32", "K", 0, "99", 128},

    {kTransposed, kHopper, kNotPerChannel, k32sTo256, k32s, k16Bit, 90, 90,  //
     "hopper/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 32, or V / 64", "640, or 512", 116.2, "203.4",
     128},
    {kTransposed, kMma, kNotPerChannel, k8s, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128; from K = 136 on V / 64",
     "128 + 32 for 16 columns of V", 77.7, "115.2", 216},
    {kTransposed, kMma, kPerChannel, k8sTo64, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128", "128 + 32 for 16 columns of V", 88, "121.5",
     166},
    {kTransposed, kMma, kPerChannel, k8sTo128, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 128", "128 + 32 for 16 columns of V", 100,
     "141.5", 168},
    {kTransposed, kMma, kPerChannel, k8sFrom136, k8s, k16Bit, 80, kNewest,  //
     "mma/linear_pass.cuh", "linear_pass_kernel", "runs x H x V / 64", "128 + 32 for 16 columns of V", 89, "134.5",
     227},
    {kTransposed, kGeneric, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "generic_pass.cu", "pass_kernel", "runs x H x V / 32", "K", 0, "99", 128},

    {kStates, kMma, kPerChannel, k64s, k64s, k16Bit, 80, kNewest,  //
     "mma/channel_states.cuh", "channel_states_kernel", "runs x H x tiles of 64 or 128", "128 or 256", 85.3, "85.3",
     122},

    {kStateScan, kGeneric, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "states.cu", "scan_kernel", "segments x H x K x V / 1024", "256", 0, "0", 64},

    {kFusedBackward, kHopper, kNotPerChannel, k128, k128, k16Bit, 90, 90,  //
     "hopper/fused_backward.cuh", "fused_backward_kernel", "runs x H", "384", 226.7, "226.7", 168},
    {kFusedBackward, kHopper, kNoDecay, k32Or64, k32Or64, k16Bit, 90, 90,  //
     "hopper/fused_backward.cuh", "fused_backward_kernel", "runs x H / 2; runs x H for odd H", "384", 226.7,
     "226.7", 168},
    {kFusedBackward, kHopper, kNoDecay, k64sTo256, k64, k16Bit, 90, 90,  //
     "hopper/fused_backward.cuh", "fused_backward_kernel", "runs x H", "384", 226.7, "226.7", 168},
    {kFusedBackward, kHopper, kNoDecay, k32sFrom128To256, k32sFrom128, k16Bit, 90, 90,  //
     "hopper/fused_backward.cuh", "fused_backward_kernel", "runs x H x tiles of a diagonal", "384", 226.7, "226.7",
     168},
    {kFusedBackward, kHopper, kPerToken, k32sTo256, k32s, k16Bit, 90, 90,  //
     "hopper/fused_backward.cuh", "fused_backward_kernel", "runs x H, or H / 2, x tiles of a diagonal", "384",
     226.7, "226.7", 168},

    {kChannelBackward, kHopper, kPerChannel, k64, k64, k16Bit, 90, 90,  //
     "hopper/channel_backward.cuh", "channel_backward_kernel", "runs x H / 2, rounded up", "384", 194.2, "226.2",
     168},
    {kChannelBackward, kHopper, kPerChannel, k128s, k64s, k16Bit, 90, 90,  //
     "hopper/channel_backward.cuh", "channel_backward_kernel", "runs x H x K / 128", "384", 180.2, "220.2", 168},
    {kChannelBackward, kMma, kPerChannel, k64, k64s, k16Bit, 80, kNewest,  //
     "mma/channel_kernel.cuh", "channel_walk_kernel", "runs x H, twice for 128 of V", "128", 94.6, "94.6", 155},
    {kChannelBackward, kMma, kPerChannel, k128s, k64s, k16Bit, 80, kNewest,  //
     "mma/channel_kernel.cuh", "channel_walk_kernel", "runs x H x K / 128, twice for 128 of V", "256", 112.6,
     "112.6", 128},

    {kDecayGradient, kMma, kPerToken, k8s, k8s, k16Bit, 80, kNewest,  //
     "decay_products.cuh", "decay_products_kernel", "runs of 256 tokens x H x 4", "128", 41.9, "41.9", 167},
    {kDecayGradient, kMma, kPerChannel, k8s, k8s, k16Bit, 80, kNewest,  //
     "channel_products.cuh", "channel_products_kernel", "runs of 64 tokens x H x K / 64", "128", 70, "70", 168},
    {kDecayGradient, kGeneric, kPerToken, kAny, kAny, kAnyType, 0, kNewest,  //
     "decay_products.cuh", "decay_products_kernel", "runs of 256 tokens x H x 4", "128", 20.8, "20.8", 165},
    {kDecayGradient, kGeneric, kPerChannel, kAny, kAny, kAnyType, 0, kNewest,  //
     "channel_products.cuh", "channel_products_kernel", "runs of 64 tokens x H x K / 64", "128", 70, "70", 168},

    {kBidirectional, kGeneric, kNoDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "generic_pass.cu", "pass_kernel", "chunks x H x V / 32", "K", 0, "99", 128},
    {kStep, kGeneric, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "generic_pass.cu", "pass_kernel", "sequences x H x V / 32", "K", 0, "99", 128},
    {kGroupSums, kGeneric, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "states.cu", "sum_groups_kernel", "gradient's elements / 256", "256", 0, "0", 32},

    {kDeltaForward, kHopper, kNotPerChannel, k16sFrom32To128, k16sFrom32, k16Bit, 90, 90,  //
     "delta/forward.cu", "forward", "segments x H", "384", 216.1, "216.1", 168},
    {kDeltaForward, kHopper, kPerChannel, k16sFrom32To128, k16sFrom32, k16Bit, 90, 90,  //
     "delta/channel_forward.cu", "forward_channel", "segments x H x V / 64", "384", 191.1, "191.1", 168},
    {kDeltaForward, kMma, kNotPerChannel, k16sTo256, k16s, k16Bit, 80, kNewest,  //
     "mma/delta_forward.cuh", "forward", "segments x H x V / 64, or V / 32", "128 or 384", 97.75, "219.5", 255},
    {kDeltaForward, kGeneric, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "delta_forward.cu", "forward_kernel", "segments x H x V / 32; from K = 257 on V / 16", "64 to 384", 24.3,
     "56.3", 199},
    {kDeltaReversed, kHopper, kNotPerChannel, k16sFrom32To128, k16sFrom32, k16Bit, 90, 90,  //
     "delta/reversed.cu", "reversed", "segments x H", "384", 213, "213", 168},
    {kDeltaReversed, kHopper, kPerChannel, k16sFrom32To128, k16sFrom32, k16Bit, 90, 90,  //
     "delta/channel_reversed.cu", "reversed_channel", "segments x H x V / 64", "256", 175, "175", 246},
    {kDeltaReversed, kMma, kNotPerChannel, k16sTo256, k16s, k16Bit, 80, kNewest,  //
     "mma/delta_reversed.cuh", "reversed", "segments x H x V / 64, or V / 32", "128 or 384", 97.75, "219.5", 254},
    {kDeltaReversed, kGeneric, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "delta_reversed.cu", "reversed_kernel", "segments x H x V / 32; from K = 257 on V / 16", "64 to 384", 24.3,
     "56.3", 186},
    {kDeltaGradients, kHopper, kNotPerChannel, k16sFrom32To128, k16sFrom32, k16Bit, 90, 90,  //
     "delta/gradients_kernel.cuh", "gradients", "stretches of 256 or 512 tokens x H", "384", 205.6, "205.6", 168},
    {kDeltaGradients, kHopper, kPerChannel, k16sFrom32To128, k16sFrom32, k16Bit, 90, 90,  //
     "delta/channel_walk_back.cu", "walk_back", "stretches of 256 or 512 tokens x H", "384", 205.6, "205.6", 168},
    {kDeltaGradients, kMma, kNotPerChannel, k16sTo128, k16s, k16Bit, 80, kNewest,  //
     "mma/delta_gradients.cuh", "gradients", "stretches of 64 tokens x H", "256", 89.53, "116.3", 217},
    {kDeltaGradients, kMma, kNotPerChannel, k16sFrom144To256, k16s, k16Bit, 80, kNewest,  //
     "mma/delta_gradients.cuh", "gradients", "stretches of 64 tokens x H", "256", 127.3, "184.3", 225},
    {kDeltaGradients, kGeneric, kAnyDecay, kAny, kAny, kAnyType, 0, kNewest,  //
     "delta_stretches.cu", "stretches_kernel", "stretches of 64 tokens x H", "256", 77, "92.5", 176},
};

// KiB that a block may have.
double shared_limit(int32_t capability) {
  switch (capability) {
    case 80:
    case 87: return 163;
    case 86:
    case 89: return 99;
    default: return capability < 120 ? 227 : 99;
  }
}

const char *name_of(KernelPass pass) {
  switch (pass) {
    case kOutputs: return "outputs; gradient of v";
    case kTransposed: return "gradients of q and k";
    case kStates: return "states of runs";
    case kStateScan: return "states that enter runs";
    case kFusedBackward: return "backward, fused";
    case kChannelBackward: return "backward, per channel";
    case kDecayGradient: return "gradient of the decay";
    case kBidirectional: return "bidirectional form";
    case kStep: return "step";
    case kGroupSums: return "sums over groups of heads";
    case kDeltaForward: return "delta rule: outputs and states";
    case kDeltaReversed: return "delta rule: gradients of states";
    default: return "delta rule: all gradients";
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
  const std::string from = dims.least == dims.step ? "" : ", " + std::to_string(dims.least);
  return std::to_string(dims.step) + " n" + from + " to " + std::to_string(dims.most);
}

std::string number_of(int32_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

std::string capability_of(const KernelRow &row) {
  if (row.least_capability == 0) return "any";
  const std::string least = number_of(row.least_capability);
  return row.most_capability == kNewest ? least + " on" : least;
}

std::string words_of(const Dims &dims) {
  if (dims.least == dims.most) return std::to_string(dims.least);
  if (dims.most == 2 * dims.step) return std::to_string(dims.least) + " or " + std::to_string(dims.most);
  const std::string from = dims.least == dims.step ? "" : " from " + std::to_string(dims.least);
  return "a multiple of " + std::to_string(dims.step) + from + " up to " + std::to_string(dims.most);
}

// The first column in which a row does not serve a shape of its decay: how far to the right it is, and in words.
struct Mismatch {
  int column = 0;
  std::string text;
};
std::optional<Mismatch> mismatch(const KernelRow &row, const KernelShape &shape) {
  if (shape.capability < row.least_capability || shape.capability > row.most_capability)
    return Mismatch{0, "are for compute capability " + capability_of(row)};
  if ((row.types & bit(shape.type)) == 0) return Mismatch{1, "compute bfloat16 and float16"};
  if (!row.k.has(shape.dim_k)) return Mismatch{2, "want K to be " + words_of(row.k)};
  if (!row.v.has(shape.dim_v)) return Mismatch{3, "want V to be " + words_of(row.v)};
  if (row.shared > shared_limit(shape.capability))
    return Mismatch{4, "need more shared memory for these dimensions than the device has"};
  return {};
}

std::string shared_of(const KernelRow &row) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", row.shared);
  const std::string least = text, most = row.shared_most;
  return least == most ? most : row.shared == 0 ? "to " + most : least + " to " + most;
}

}  // namespace

bool KernelRow::serves(const KernelShape &shape) const {
  return (decays & bit(shape.decay)) != 0 && !mismatch(*this, shape);
}

std::span<const KernelRow> kernel_table() { return kRows; }

const KernelRow *find_kernel(KernelPass pass, const KernelShape &shape) {
  const auto *row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const KernelRow &r) { return r.pass == pass && r.serves(shape); });
  return row == std::end(kRows) ? nullptr : row;
}

// What the row says that comes nearest; of equals the last, which serves most.
std::string why_no_tensor_cores(KernelPass pass, const KernelShape &shape) {
  Mismatch nearest = {-1, "are not for this decay"};
  for (const KernelRow &row : kRows) {
    if (row.pass != pass || !row.on_tensor_cores() || (row.decays & bit(shape.decay)) == 0) continue;
    const std::optional<Mismatch> of_row = mismatch(row, shape);
    if (!of_row) return "";
    if (of_row->column >= nearest.column) nearest = *of_row;
  }
  return "the tensor-core kernels " + nearest.text;
}

std::string kernel_table_markdown() {
  std::string text =
      "# Which kernel runs when\n\n"
      "Made from `src/cuda/choice/kernel_table.cpp`, where it is decided: of the rows of a pass the first\n"
      "runs that serves the shape and whose kernel takes the tensors' pointers and strides (`refusal` in\n"
      "each kernel's file). Unfit strides of one tensor send all linear passes of a plan to the general\n"
      "kernel, an unfit pointer its own pass. Without a row of their own, states of runs are found by the\n"
      "kernels of the outputs, and on 9.0 with K above 64 and V a multiple of 64 by `own_states_kernel`\n"
      "(hopper/own_states.cuh: runs x H x V / 128 or V / 64 blocks of 384 threads, with 197.7 or 149.7 KiB,\n"
      "168 registers). The gradients of q and k see the state transposed: K stands for V there,\n"
      "and V for K. `n` is any whole number; shared memory is in KiB, and the device must have the least\n"
      "of it; registers are the most of all instances, as compiled for 9.0.\n\n"
      "| pass | decay | K | V | type | capability | kernel, in `kernels/` | blocks | threads | shared | registers "
      "|\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  KernelPass before = kDeltaGradients;
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
