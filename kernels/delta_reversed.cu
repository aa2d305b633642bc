// The gradients of states under the delta rule for any shape and type: the recurrence back along a run, token by
// token, in IEEE float32 (delta_walk.cuh). With A the decay of the token and R the gradient of the state after it:
//
//   D = R + scale q do^T     z = D^T k     dv = beta z     R = A (D - k dv^T)
//
// R is rounded once for each token, like the state.
#include "delta_general.h"
#include "delta_walk.cuh"

namespace lasp::gpu::delta {
namespace {

template <int kLanes, Apply kApply>
__device__ void take_token(State &s, const Place<kLanes> &place, const ReversedWalk &p, const float *stage, int t,
                           int64_t token, int64_t row, int head, int first_column, int columns) {
  using B = Block<kLanes, kApply>;
  const Codes<kLanes, kApply> codes(place, stage + B::kCode, t);
  float k[kOwnRows], q[kOwnRows], sums[2][kOwnColumns] = {}, d_o[kOwnColumns];
  place.load(k, stage + B::kB + t * B::kRows);
  place.load(q, stage + B::kA + t * B::kRows);
#pragma unroll
  for (int j = 0; j < kOwnColumns; ++j) d_o[j] = p.scale * stage[B::kC + t * B::kColumns + place.first_column + j];
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) sums[i % 2][j] = fmaf(k[i], fmaf(q[i], d_o[j], s[i][j]), sums[i % 2][j]);
  const float z = place.sum(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]);
  const int column = first_column + place.own_column();
  if (p.d_written != nullptr && place.speaks() && column < columns)
    p.d_written[((row * p.tokens + token) * p.heads + head) * columns + column] = z;
  const float2 d_v = place.both(stage[B::kBeta + t] * z);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const float before = s[i][j], more = fmaf(q[i], d_o[j], -k[i] * (j == 0 ? d_v.x : d_v.y));
      s[i][j] = before + more;
      if constexpr (kApply != Apply::kNothing) {
        const float code = codes.of(i);
        s[i][j] = signbit(code) ? before + fmaf(s[i][j], code, more) : s[i][j] * code;
      }
    }
}

template <int kLanes, Apply kApply>
__global__ void __launch_bounds__(Block<kLanes, kApply>::kThreads, Block<kLanes, kApply>::kBlocks)
    reversed_kernel(int64_t first, ReversedWalk p) {
  using B = Block<kLanes, kApply>;
  extern __shared__ float4 memory[];
  float *const stages = reinterpret_cast<float *>(memory);
  const int keys = p.k.dim, columns = p.d_o.dim;
  const auto [run, head, column] = item_of(first + blockIdx.x, p, p.filter, columns, B::kColumns);
  if (run == nullptr) return;
  const bool leaves = p.d_leaving != nullptr && p.segments[run->segment].produces[1];
  const bool wanted = p.d_written != nullptr || p.d_checkpoints != nullptr || p.d_state_out != nullptr || leaves ||
                      (p.d_edge_state != nullptr && run->starts >= 0);
  if (!wanted) return;
  const int length = run->length, blocks = (length + B::kStage - 1) / B::kStage;
  const int64_t row = run->row, begin = run->begin, size = int64_t{keys} * columns;
  const auto fetch_block = [&](int n) {
    const int at = n * B::kStage, count = min(B::kStage, length - at);
    fetch_stage<kLanes, kApply>(stages + n % 2 * B::kStageFloats, p,
                                slice_of(p.q, p.dtype, *run, at, head, p.heads, count),
                                slice_of(p.k, p.dtype, *run, at, head, p.heads, count),
                                slice_of(p.d_o, p.dtype, *run, at, head, p.heads, count, column), *run, at, head);
  };
  const bool works = threadIdx.x < 32 * B::kWorkers;
  const Place<kLanes> place;
  State s = {};
  if (!works) {
    fetch_block(blocks - 1);
  } else if (p.d_state_in != nullptr) {
    const float *state = p.d_state_in + (run->state * p.heads + head) * size;
    each_element(s, place, keys, column, columns, [&](float &x, int at) { x = state[at]; });
  }
  __syncthreads();
  for (int n = blocks - 1; n >= 0; --n) {
    const int at = n * B::kStage, count = min(B::kStage, length - at);
    if (!works) {
      if (n > 0) fetch_block(n - 1);
    } else {
      constexpr int kSpacing = delta_checkpoint_tokens(KernelSet::kGeneric);
      if (p.d_checkpoints != nullptr && (n == blocks - 1 || (at + B::kStage) % kSpacing == 0)) {
        const int64_t to = (run->checkpoint + at / kSpacing) * p.heads + head;
        store_state(s, place, keys, column, columns, static_cast<float *>(p.d_checkpoints) + to * size);
      }
#pragma unroll 1
      for (int t = count - 1; t >= 0; --t)
        take_token<kLanes, kApply>(s, place, p, stages + n % 2 * B::kStageFloats, t, begin + at + t, row, head,
                                   column, columns);
    }
    __syncthreads();
  }
  if (!works) return;
  const auto put = [&](float *states, int64_t index, bool adds) {
    if (states == nullptr || index < 0) return;
    float *const to = states + (index * p.heads + head) * size;
    each_element(s, place, keys, column, columns,
                 [&](float &x, int at) { put_element(to, DType::kFloat32, at, x, adds); });
  };
  put(p.d_state_out, run->state, false);
  put(p.d_edge_state, run->starts, p.edge_adds);
  if (leaves) put(p.d_leaving, run->path, false);
}

struct Launch {
  const ReversedWalk &p;
  Stream stream;
  template <int kLanes, Apply kApply>
  int operator()() const {
    using B = Block<kLanes, kApply>;
    return launch_blocks(reversed_kernel<kLanes, kApply>, p.num_runs * p.heads * ceil_div(p.d_o.dim, B::kColumns),
                         B::kThreads, B::kBytes, stream, p);
  }
};

struct Load {
  template <int kLanes, Apply kApply>
  int operator()() const {
    return load_kernel(reversed_kernel<kLanes, kApply>, Block<kLanes, kApply>::kBytes);
  }
};

}  // namespace

int launch_reversed(const ReversedWalk &p, Stream stream) {
  return with_block(p.k.dim, p.decay, Launch{p, stream});
}

int load_reversed() { return with_every_block(Load{}); }

}  // namespace lasp::gpu::delta
