// Which kernel runs when: pass x decay x K, V x type x compute capability, in one table that a reader takes in at
// once (docs/internals/kernel-table.md is made from it). This is where it is decided: of the rows of a pass the
// first runs that serves the shape and whose kernel takes the tensors (kernel_finder.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/problem.h"
#include "kernels/launch.h"

namespace lasp::cuda {

// The strategies of cuda/backend, by what they launch.
enum class KernelPass : int32_t {
  kOutputs,          // o; and by three passes dv
  kTransposed,       // dq and dk by three passes, which see the state transposed
  kStates,           // runs' own parts of the state and of its gradient
  kStateScan,        // states that enter runs
  kFusedBackward,    // all gradients at once
  kChannelBackward,  // dq, dk and the decay's gradient, per channel
  kDecayGradient,    // of the log decay, by itself
  kBidirectional,    // the unmasked form
  kStep,
  kGroupSums,  // gradients of shared heads
  // The delta rule's launches (kernels/delta.h).
  kDeltaForward,
  kDeltaReversed,
  kDeltaGradients,
};

// Head dimensions that a kernel takes: multiples of `step` from `least` to `most`.
struct Dims {
  int32_t step = 1, least = 1, most = INT32_MAX;
  bool has(int32_t dim) const { return dim % step == 0 && dim >= least && dim <= most; }
};

// What the table decides by. K and V are the first and the second dimension of the states that a pass sees.
struct KernelShape {
  Decay decay;
  int32_t dim_k, dim_v;
  DType type;
  int32_t capability;  // 10 * major + minor
};

struct KernelRow {
  KernelPass pass;
  gpu::KernelSet set;
  uint32_t decays;  // bits, 1 << Decay
  Dims k, v;
  uint32_t types;            // bits, 1 << DType
  int32_t least_capability;  // 10 * major + minor
  int32_t most_capability;
  const char *file;         // in kernels/
  const char *kernel;       // the __global__ function
  const char *grid;         // blocks; "tiles" are blocks of so many rows, columns or tokens
  const char *threads;      // of a block
  double shared;            // KiB that a block of these dimensions needs at least
  const char *shared_most;  // and takes at most, with its dimensions and the device's memory
  int32_t registers;        // of a thread, the most of all instances, as compiled for 9.0

  bool on_tensor_cores() const { return set != gpu::KernelSet::kGeneric; }
  bool serves(const KernelShape &shape) const;
};

std::span<const KernelRow> kernel_table();
// Null: no kernel of this pass serves.
const KernelRow *find_kernel(KernelPass pass, const KernelShape &shape);
// Why no tensor cores serve this shape, for lasp_plan_describe; "" where they do.
std::string why_no_tensor_cores(KernelPass pass, const KernelShape &shape);
// The page of the documentation.
std::string kernel_table_markdown();

}  // namespace lasp::cuda
