// One linear pass of a kernel test: drawn numbers, the recurrence in float64, and the pass with its device memory.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "device_memory.h"

namespace lasp::gpu {

struct PassCase {
  const char *name = "";
  DType dtype = DType::kBFloat16;
  int32_t a_dim = 128, y_dim = 128, heads = 2, a_heads = 2, b_heads = 2, c_heads = 2;
  int64_t batch = 1, tokens = 256;
  std::vector<Run> runs;
  Decay decay = Decay::kNone;
  DType decay_dtype = DType::kFloat32;
  float strongest = 0.2f;  // log decays are drawn from [-strongest, 0]
  float constant = 0;      // not 0: all of them are this
  float forgotten = 0;     // how many of them are -infinity or -10,000 instead
  bool reversed = false, transposed = false, output = true, state_in = true, state_out = true, in_place = false;
  bool keep = false;       // checkpoints
  int32_t nan_token = -1;  // of head 0: its log decay, the first channel's, is NaN
  int64_t padding = 0;     // elements between tokens
};

// One tensor [B, T, heads, dim] with gaps of `padding` elements between tokens, which hold NaN, as do tokens of no
// run.
struct HostTensor {
  int64_t batch, tokens, padding;
  int32_t heads, dim;
  std::vector<uint16_t> data;
  Strides strides() const { return {tokens * token(), token(), dim}; }
  int64_t token() const { return int64_t(heads) * dim + padding; }
  int64_t at(int64_t b, int64_t t, int64_t h) const { return (b * tokens + t) * token() + h * dim; }
};

struct PassProblem {
  explicit PassProblem(const PassCase &);
  PassCase c;
  HostTensor a, b, v, y;  // v is the pass's c; y is all NaN
  std::vector<float> g, state_in;
  float scale = 0.09f, in_scale = 0.5f, out_scale = 1.5f;
  int64_t state_size() const { return int64_t(c.a_dim) * c.y_dim; }
  // Channels that have a decay of their own: of a (the state's rows [a.dim, y.dim]) or of y.
  int32_t channels() const { return c.decay != Decay::kChannel ? 1 : c.transposed ? c.y_dim : c.a_dim; }
  int64_t decay_token() const { return int64_t(c.heads) * channels() + (channels() > 1 ? c.padding : 0); }
  float decay(int64_t row, int64_t t, int32_t h, int32_t channel) const;
};

struct PassAnswer {
  std::vector<double> y, state, checkpoints;  // [length, y_dim], [a_dim, y_dim], and as many states as are kept
};
// The recurrence itself, for one run and head, in float64.
PassAnswer reference(const PassProblem &, size_t run, int32_t head);

// The pass on the device, and what it writes, which is NaN before.
struct DevicePass {
  explicit DevicePass(const PassProblem &);
  DeviceCopy a, b, v, y, runs, in;
  DeviceMemory g, out, keep;
  LinearPass pass;
};

// Where a kernel left y and the states, against the recurrence.
struct PassErrors {
  double y = 0, state = 0, checkpoint = 0;
  int64_t stray = 0;  // elements of y that are no run's and were written
};
PassErrors compare(const PassProblem &, const DevicePass &);
// Prints them. Whether they are within bounds, and `again`, a second launch, left the same bits.
//
// Bounds: y carries up to four roundings to 8 (11) bits in each of its two terms, each 2^-9 (2^-12) / sqrt(3) /
// 0.72 of its size: under 3.4e-3 (4.2e-4). The state is float32 but for products of the tensor cores, which cut off
// below the 24th bit, and factors of 16 (22) bits: a relative 2^-17 each.
bool report(const PassProblem &, const DevicePass &, const DevicePass &again);

int32_t checkpoints(const Run &);

// What both tests' cases begin from: one row of 256 tokens; or runs of odd lengths in two rows.
PassCase plain_case(const char *name);
void make_ragged(PassCase &);

}  // namespace lasp::gpu
