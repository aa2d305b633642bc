// Which kernel runs when: pass x decay x K, V x type x compute capability, in one table that a reader takes in at
// once (docs/internals/kernel-table.md is made from it). It describes what is decided by make_choices and by each
// kernel (gpu::*_supported, which also look at pointers and strides): of the rows of a pass the first that serves
// runs. tests/unit/cuda/kernel_table_test.cpp compares both.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/problem.h"

namespace lasp::cuda {

// The strategies of cuda/backend, by what they launch.
enum class KernelPass : int32_t {
  kOutputs,          // o; and by three passes dq, dv, dk
  kStates,           // runs' own parts of the state and of its gradient
  kStateScan,        // states that enter runs
  kFusedBackward,    // all gradients at once
  kChannelBackward,  // dq, dk and the decay's gradient, per channel
  kDecayGradient,    // of the log decay, by itself
  kBidirectional,    // the unmasked form
  kStep,
  kGroupSums,  // gradients of shared heads
};

// What lasp_plan_describe says of a plan's passes.
enum class KernelFamily : int32_t { kTensorCores, kRecurrent };
const char *sentence_of(KernelFamily family);

// Head dimensions that a kernel takes: multiples of `step` from `least` to `most`.
struct Dims {
  int32_t step = 1, least = 1, most = INT32_MAX;
  bool has(int32_t dim) const { return dim % step == 0 && dim >= least && dim <= most; }
};

struct KernelRow {
  KernelPass pass;
  KernelFamily family;
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

  bool serves(Decay decay, int32_t dim_k, int32_t dim_v, DType type, int32_t capability) const;
};

std::span<const KernelRow> kernel_table();
// Null: no kernel of this pass serves.
const KernelRow *find_kernel(KernelPass pass, Decay decay, int32_t dim_k, int32_t dim_v, DType type,
                             int32_t capability);
// The page of the documentation.
std::string kernel_table_markdown();

}  // namespace lasp::cuda
