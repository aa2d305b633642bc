// Outputs and states under the delta rule for any shape and type: the recurrence itself, token by token, in IEEE
// float32 (delta_walk.cuh says how a block holds its state). With A the decay of the token:
//
//   e = v - (A S)^T k     u = beta e     S = A S + k u^T     o = scale S^T q
//
// The state is rounded once for each token: what a weak decay takes away and what is written are added up before
// they join it.
#include "delta_general.h"
#include "delta_walk.cuh"

namespace lasp::gpu::delta {
namespace {

// A lane's share of the last token's output, which is added up over lanes together with the next token's reading:
// one chain of shuffles waits for the other.
using Pending = float[kOwnColumns];

template <int kLanes>
__device__ void put_output(const Place<kLanes> &place, const ForwardWalk &p, float o, int64_t token, int64_t row,
                           int head, int first_column, int columns) {
  const int column = first_column + place.own_column();
  if (p.o.data != nullptr && place.speaks() && column < columns)
    store_element(p.o.data, p.dtype, offset_of(p.o.strides, row, token, head) + column, p.scale * o);
}

template <int kLanes, Apply kApply>
__device__ void take_token(State &s, Pending &pending, const Place<kLanes> &place, const ForwardWalk &p,
                           const float *stage, int t, bool first, int64_t token, int64_t row, int head,
                           int first_column, int columns) {
  using B = Block<kLanes, kApply>;
  const Codes<kLanes, kApply> codes(place, stage + B::kCode, t);
  float k[kOwnRows], missing[2][kOwnColumns] = {};
  place.load(k, stage + B::kB + t * B::kRows);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const float x = kApply == Apply::kRows ? decayed(s[i][j], codes.of(i)) : s[i][j];
      missing[i % 2][j] = fmaf(k[i], x, missing[i % 2][j]);
    }
  float read = place.sum(missing[0][0] + missing[1][0], missing[0][1] + missing[1][1]);
  if constexpr (kApply == Apply::kAll) read = decayed(read, codes.of(0));
  const float last_o = place.sum(pending[0], pending[1]);
  const float error = stage[B::kC + t * B::kColumns + place.own_column()] - read;
  const float2 written = place.both(stage[B::kBeta + t] * error);
  if (!first) put_output(place, p, last_o, token - 1, row, head, first_column, columns);
  const int column = first_column + place.own_column();
  if (p.errors != nullptr && place.speaks() && column < columns)
    p.errors[((row * p.tokens + token) * p.heads + head) * columns + column] = error;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const float before = s[i][j], u = j == 0 ? written.x : written.y;
      if constexpr (kApply == Apply::kNothing) {
        s[i][j] = fmaf(k[i], u, before);
      } else {
        const float code = codes.of(i);
        const float kept = signbit(code) ? 1.0f : 0.0f;  // for all rows one number, or for each its own
        s[i][j] = fmaf(kept, before, fmaf(before, code, k[i] * u));
      }
    }
  if (p.o.data == nullptr) return;
  float q[kOwnRows], sums[kOwnColumns] = {};
  place.load(q, stage + B::kA + t * B::kRows);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) sums[j] = fmaf(q[i], s[i][j], sums[j]);
#pragma unroll
  for (int j = 0; j < kOwnColumns; ++j) pending[j] = sums[j];
}

// Whether every run has to be walked.
__device__ bool walks_for_tokens(const ForwardWalk &p) {
  return p.o.data != nullptr || p.errors != nullptr || p.checkpoints != nullptr || p.state_out != nullptr;
}

template <int kLanes, Apply kApply>
__global__ void __launch_bounds__(Block<kLanes, kApply>::kThreads, Block<kLanes, kApply>::kBlocks)
    forward_kernel(int64_t first, ForwardWalk p) {
  using B = Block<kLanes, kApply>;
  extern __shared__ float4 memory[];
  float *const stages = reinterpret_cast<float *>(memory);
  const bool of_transition = p.transition != nullptr;
  const int keys = p.k.dim, columns = of_transition ? keys : p.v.dim;
  const auto [run, head, column] = item_of(first + blockIdx.x, p, p.filter, columns, B::kColumns);
  if (run == nullptr) return;
  const Segment &segment = p.segments[run->segment];
  const bool leaves = p.leaving != nullptr && segment.produces[0];
  const bool wanted = of_transition ? !segment.begins[0] && !segment.begins[1]
                                    : walks_for_tokens(p) || leaves || (p.edge_state != nullptr && run->ends >= 0);
  if (!wanted) return;
  // A step may have fewer tokens than the rows that its runs are made of.
  const int length = static_cast<int>(min(int64_t{run->length}, p.tokens - run->begin)),
            blocks = (length + B::kStage - 1) / B::kStage;
  const int64_t row = run->row, begin = run->begin, size = int64_t{keys} * columns;
  const auto fetch_block = [&](int n) {
    const int at = n * B::kStage, count = min(B::kStage, length - at);
    const Tensor q = p.o.data != nullptr ? p.q : Tensor{}, v = of_transition ? Tensor{} : p.v;
    fetch_stage<kLanes, kApply>(stages + n % 2 * B::kStageFloats, p,
                                slice_of(q, p.dtype, *run, at, head, p.heads, count),
                                slice_of(p.k, p.dtype, *run, at, head, p.heads, count),
                                slice_of(v, p.dtype, *run, at, head, p.heads, count, column), *run, at, head);
  };
  const bool works = threadIdx.x < 32 * B::kWorkers;
  const Place<kLanes> place;
  State s = {};
  Pending pending = {};
  if (!works) {
    fetch_block(0);
  } else if (of_transition) {
    each_element(s, place, keys, column, columns,
                 [&](float &x, int at) { x = at / columns == at % columns ? 1.0f : 0.0f; });
  } else if (p.state_in != nullptr) {
    const float *state = p.state_in + (run->state * p.heads + head) * size;
    each_element(s, place, keys, column, columns, [&](float &x, int at) { x = state[at]; });
  }
  __syncthreads();
  for (int n = 0; n < blocks; ++n) {
    const int at = n * B::kStage, count = min(B::kStage, length - at);
    if (!works) {
      if (n + 1 < blocks) fetch_block(n + 1);
    } else {
      constexpr int kSpacing = delta_checkpoint_tokens(KernelSet::kGeneric);
      if (p.checkpoints != nullptr && at % kSpacing == 0) {
        const int64_t to = (run->checkpoint + at / kSpacing) * p.heads + head;
        store_state(s, place, keys, column, columns, static_cast<float *>(p.checkpoints) + to * size);
      }
#pragma unroll 1
      for (int t = 0; t < count; ++t)
        take_token<kLanes, kApply>(s, pending, place, p, stages + n % 2 * B::kStageFloats, t, at + t == 0,
                                   begin + at + t, row, head, column, columns);
    }
    __syncthreads();
  }
  if (!works) return;
  put_output(place, p, place.sum(pending[0], pending[1]), begin + length - 1, row, head, column, columns);
  const auto put = [&](float *states, int64_t index) {
    if (states != nullptr && index >= 0)
      store_state(s, place, keys, column, columns, states + (index * p.heads + head) * size);
  };
  if (of_transition) return put(p.transition, run->path);
  put(p.state_out, run->state);
  put(p.edge_state, run->ends);
  if (leaves) put(p.leaving, run->path);
}

struct Launch {
  const ForwardWalk &p;
  Stream stream;
  template <int kLanes, Apply kApply>
  int operator()() const {
    using B = Block<kLanes, kApply>;
    const int columns = p.transition != nullptr ? p.k.dim : p.v.dim;
    return launch_blocks(forward_kernel<kLanes, kApply>, p.num_runs * p.heads * ceil_div(columns, B::kColumns),
                         B::kThreads, B::kBytes, stream, p);
  }
};

struct Load {
  template <int kLanes, Apply kApply>
  int operator()() const {
    return load_kernel(forward_kernel<kLanes, kApply>, Block<kLanes, kApply>::kBytes);
  }
};

}  // namespace

int launch_forward(const ForwardWalk &p, Stream stream) { return with_block(p.k.dim, p.decay, Launch{p, stream}); }

int load_forward() { return with_every_block(Load{}); }

}  // namespace lasp::gpu::delta
