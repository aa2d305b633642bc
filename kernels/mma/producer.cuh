// What the producer warps of the mma linear pass share: where they are, and the decays of kinds that have one for a
// token.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::mma {

template <typename T, int kDim, Kind kKind>
struct Producer {
  using L = Layout<kDim, kKind>;
  const PassParams &p;
  const Part &part;
  char *const memory;
  const int thread;       // of the producer warps
  const bool wide_decay;  // g is float32
  Ring ring;
  float token_decay = 0;  // of row `thread` of the next chunk
  float head_decay = 0;

  __device__ __forceinline__ Producer(const PassParams &params, const Part &its, char *shared)
      : p(params),
        part(its),
        memory(shared),
        thread(int(threadIdx.x) - 32 * params.slice_warps),
        wide_decay(params.decay_dtype == DType::kFloat32) {
    if (p.decay == Decay::kHead) head_decay = log2_decay(static_cast<const float *>(p.g)[part.head]);
  }

  __device__ __forceinline__ char *stage() const { return memory + L::kFirstStage + ring.stage * L::kStageBytes; }

  // A row's log2 decay, of kinds that have one for a token: read early, put late.
  __device__ __forceinline__ void read_token_decay(int chunk) {
    const int at = chunk * kChunk + thread;
    token_decay = 0;
    if (thread >= kChunk || chunk >= part.chunks || !part.has_decay(at) || p.decay == Decay::kNone) return;
    token_decay = head_decay;
    if (p.decay == Decay::kScalar)
      token_decay = log2_decay(
          load_element(p.g, p.decay_dtype, offset_of(p.g_strides, part.run.row, part.decay_token(at), part.head)));
  }
  __device__ __forceinline__ void put_token_decay(int chunk) const {
    if (thread < kChunk)
      reinterpret_cast<float *>(memory + L::kTokens)[copy_of(chunk) * kChunk + thread] = token_decay;
  }
};

}  // namespace lasp::gpu::mma
