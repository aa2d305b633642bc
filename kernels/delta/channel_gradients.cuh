// What the walk of a stretch leaves of each chunk for its gradients, where decay is per channel: with R the state's
// gradient over `scale` after the chunk and S the state before it, [64 tokens, 128 channels]
//
//   X = scale do S^T        Y = -dv S^T        W = scale beta E R^T
//
// in 16 bits, transposed, in 8 x 8 matrices by two tokens' rows: of 8 channels, 16 tokens, lane, two halves. Then
// the scores, without decays, as tiles of layout.cuh, high and low: scale lower(do E^T) diag(beta) and -strictly
// lower(dv E^T) diag(beta). Then of each channel scale 2^G_C <S, R>. Last, of each 64 channels, whether they wait
// for channel_finish.cu.
#pragma once

#include "channel_layout.cuh"

namespace lasp::gpu::delta_hopper::channel {

struct Left {
  static constexpr int kX = 0, kY = kImage, kW = 2 * kImage, kScoresQ = 3 * kImage, kScoresK = kScoresQ + 2 * kTile,
                       kShare = kScoresK + 2 * kTile, kWide = kShare + 4 * kDim, kBytes = kWide + 16;
  char *data = nullptr;
  int32_t of_stretch = 4;  // chunks
  // `half`: of the channels.
  __device__ int32_t &wide(int64_t item, int chunk, int half) const {
    return reinterpret_cast<int32_t *>(of(item, chunk) + kWide)[half];
  }
  __device__ char *of(int64_t item, int chunk) const { return data + (item * of_stretch + chunk) * kBytes; }
  // Of X, Y or W: 8 channels from 8 tile, 16 tokens from 16 block; two registers of this lane.
  static __device__ __forceinline__ int at(int tile, int block) {
    return ((tile * 4 + block) * 32 + int(threadIdx.x) % 32) * 8;
  }
};

int launch_walk_back(const DeltaGradients &p, const Slots &slots, const Stretches &kept, const Left &left,
                     Stream stream);
// The gradients of q, k and g: of chunks and channels whose decays are narrow; then of the others.
int launch_narrow(const DeltaGradients &p, const Left &left, Stream stream);
int launch_finish(const DeltaGradients &p, const Left &left, Stream stream);
int load_walk_back();
int load_narrow();
int load_finish();

}  // namespace lasp::gpu::delta_hopper::channel
