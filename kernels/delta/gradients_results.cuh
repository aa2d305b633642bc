// What a walker of the gradients' kernel writes: tiles of shared memory, and results from them.
#pragma once

#include "gradients_layout.cuh"

namespace lasp::gpu::delta_hopper::gradients {

using hopper::advance, hopper::tile_descriptor, hopper::wgmma_begin, hopper::wgmma_commit, hopper::wgmma_wait;

__device__ __forceinline__ void sync_walkers() { mma::sync_some<kWalkers>(1); }
// A warp's products are done when it has waited for them; those of the others of its half may still read the tile.
__device__ __forceinline__ void sync_half(int half) { mma::sync_some<kWalkers / 2>(2 + half); }
__device__ __forceinline__ void store_float(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ void store_transposed(uint32_t to, const uint32_t *x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
__device__ __forceinline__ float sum_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

inline bool writes_directly(const DeltaGradients &p) {
  return p.exact || p.adds[0] || p.adds[1] || p.adds[2] || p.d_beta_adds || p.d_g_adds ||
         (p.d_g_float32 && p.decay_dtype != DType::kFloat32);
}

// Without `inputs`.
inline GradientMaps encode_results(const DeltaGradients &p) {
  GradientMaps to{};
  const Tensor *const tensors[] = {&p.d_q, &p.d_k, &p.d_v};
  for (int i = 0; i < 3; ++i)
    to.fits[i] = !writes_directly(p) && !p.staged[i] && encode_boxes(to.maps[i], *tensors[i], p, kChunk);
  return to;
}

// What of a place its results need.
__device__ __forceinline__ void place_results(const DeltaGradients &p, const Slots &slots, bool boxes,
                                              Place &place) {
  place.boxed = place.run.length / kChunk;
  place.by_threads = place.chunks - (boxes ? place.boxed : 0);
  place.log2_of_stretch = slots.log2_of_stretch();
  place.head_left = int32_t(int64_t{place.head} * p.d_q.heads / p.heads);
}

// The gradient of the state after a stretch, over `scale`: a slice of states with as many columns in memory.
template <typename T>
__device__ __forceinline__ void load_over_scale(float (&s)[64], const DeltaGradients &p, const Place &place,
                                                int32_t columns, int32_t slice) {
  const int64_t index = int64_t{place.run.checkpoint} * p.heads + place.head;
  const float factor = 1 / p.scale;
  load_slice(s, static_cast<const T *>(p.d_checkpoints) + index * p.k.dim * columns, {p.k.dim, p.v.dim, columns},
             slice);
#pragma unroll
  for (float &x : s) x *= factor;
}

// kDirect: gradients that are added to what is there, or may not be rounded on their way, from registers.
template <typename T, bool kDecay, bool kDirect>
struct Results {
  const DeltaGradients &p;
  const Place &place;
  const Block &block;
  const GradientMaps &maps;
  const int half, warp, lane;  // half: of V's columns, then of K's

  __device__ __forceinline__ uint32_t shared(int at) const { return block.shared + at; }
  // The tokens of this lane's two rows of accumulators whose rows are tokens; and its first column of eight.
  __device__ __forceinline__ int row() const { return 16 * warp + lane_again() / 4; }
  __device__ __forceinline__ int column() const { return lane_again() % 4 * 2; }

  // This lane in a way that keeps the compiler from holding addresses in registers from chunk to chunk.
  static __device__ __forceinline__ int lane_again() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }

  __device__ __forceinline__ void store_pairs(const uint32_t (&x)[16], uint32_t panel) {
    const int again = lane_again();
#pragma unroll
    for (int j = 0; j < 4; ++j)
      hopper::store_matrices(panel + swizzled(16 * warp + again % 16, 2 * j + again / 16), x[4 * j], x[4 * j + 1],
                             x[4 * j + 2], x[4 * j + 3]);
  }
  // Of a panel this lane's pairs of the columns 16 j and on, as accumulators have them: of row() and row() + 8,
  // then of the eight columns after them.
  __device__ __forceinline__ void load_rows(uint32_t (&x)[4], uint32_t panel, int j) const {
    const int again = lane_again();
    load_matrices(x, panel + swizzled(16 * warp + again % 16, 2 * j + again / 16));
  }
  // Accumulators whose rows are tokens into a panel, rounded.
  __device__ __forceinline__ void store_rows(const float (&y)[32], uint32_t panel) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack<T>(y[8 * j + 2 * i], y[8 * j + 2 * i + 1]);
      hopper::store_matrices(panel + swizzled(16 * warp + lane % 16, 2 * j + lane / 16), x[0], x[1], x[2], x[3]);
    }
  }
  // An element of a gradient.
  __device__ __forceinline__ void put(const Tensor &t, int which, int64_t at, float x) const {
    if (p.staged[which]) {
      float *const to = static_cast<float *>(t.data) + at;
      *to = p.adds[which] ? *to + x : x;
    } else {
      T *const to = static_cast<T *>(t.data) + at;
      *to = T(p.adds[which] ? float(*to) + x : x);
    }
  }
  // One thread of a half: sends a panel that the half has written, as a group of bulk copies of its own.
  __device__ __forceinline__ void send(int which, uint32_t panel, int chunk) const {
    if (threadIdx.x % 128 > 0) return;
    hopper::tma_store_box(&maps.maps[which], panel, int32_t(place.run.begin) + chunk * kChunk, 0,
                          which < 2 ? place.head_left : place.head, int32_t(place.run.row), hopper::Keep::kBriefly,
                          which < 2 ? 64 * half : own_column());
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  // The first column of v that this half has.
  __device__ __forceinline__ int own_column() const { return (place.slice + half) * kSlice; }
  __device__ __forceinline__ bool is_sent(int which, int chunk) const {
    return maps.fits[which] && chunk < place.boxed;
  }
  // A panel of a gradient, by way of one in shared memory that nobody reads any more.
  __device__ __forceinline__ void store(const Tensor &t, int which, const float (&y)[32], uint32_t panel,
                                        int chunk) {
    if constexpr (!kDirect) {
      if (__builtin_expect(is_sent(which, chunk), true)) {
        store_rows(y, panel);
        hopper::fence_async_proxy();
        sync_half(half);
        return send(which, panel, chunk);
      }
    }
    // The direct way asks here whether there are such columns, the other before: either where it costs no register.
    const int count = kDirect && 64 * half >= t.dim ? 0 : place.run.length - chunk * kChunk;
    const int64_t at =
        offset_of(t, place.run.row, place.run.begin + chunk * kChunk + 16 * warp, place.head, p.heads) + 64 * half;
    const int again = lane_again(), first = again % 4 * 2;
    if constexpr (kDirect) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int r = again / 4 + i / 2 % 2 * 8;
        if (16 * warp + r < count && 64 * half + i / 4 * 8 < t.dim)
          put(t, which, at + r * t.strides.token + i / 4 * 8 + first + i % 2, y[i]);
      }
      return;
    }
    if (p.staged[which]) {
      float *const to = static_cast<float *>(t.data) + at;
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const int r = lane / 4 + i / 2 % 2 * 8;
        if (16 * warp + r < count && 64 * half + i / 4 * 8 < t.dim)
          *reinterpret_cast<float2 *>(to + r * t.strides.token + i / 4 * 8 + first) = float2{y[i], y[i + 1]};
      }
      return;
    }
    store_rows(y, panel);
    __syncwarp();
    T *const to = static_cast<T *>(t.data) + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 4 * i + lane / 8;
      const uint4 x = load_shared_16(panel + swizzled(16 * warp + r, lane % 8));
      if (16 * warp + r < count && 64 * half + lane % 8 * 8 < t.dim)
        store_piece(to + r * t.strides.token + lane % 8 * 8, x);
    }
    __syncwarp();
  }
  // dv over `scale` of this half, rows columns of V and columns tokens.
  __device__ __forceinline__ void put_d_v(const float (&y)[32], int n) const {
    const int chunk = place.chunks - 1 - n, count = place.run.length - chunk * kChunk;
    const Tensor &t = p.d_v;
    const int64_t at = offset_of(t, place.run.row, place.run.begin + chunk * kChunk, place.head, p.heads) +
                       64 * half + 16 * warp + lane_again() / 4;
    const int first = column();
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int token = i / 4 * 8 + first + i % 2;
      if (token < count && 64 * half + 16 * warp < t.dim)
        put(t, 2, at + token * t.strides.token + i / 2 % 2 * 8, p.scale * y[i]);
    }
  }
  // By token, the sum of Z E over this warp's columns of V.
  __device__ __forceinline__ void add_beta_gradient(const float (&z)[32], int n) {
    const uint32_t to = block.sums(n) + (4 * half + warp) * 256 + 4 * column();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t e[4];
      load_matrices_transposed(e, transposed_at(shared(kE) + half * kPanel, j));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 upper = unpack<T>(e[2 * i]), lower = unpack<T>(e[2 * i + 1]);
        const float *const at = z + 8 * j + 4 * i;
        float a = at[0] * upper.x + at[2] * lower.x, b = at[1] * upper.y + at[3] * lower.y;
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          a += __shfl_xor_sync(~0u, a, step), b += __shfl_xor_sync(~0u, b, step);
        if (lane < 4) {
          store_float(to + 4 * (16 * j + 8 * i), a);
          store_float(to + 4 * (16 * j + 8 * i + 1), b);
        }
      }
    }
  }

  // dv, which lies in two panels.
  __device__ __forceinline__ void store_d_v(int n, uint32_t panels) {
    const int chunk = place.chunks - 1 - n, count = place.run.length - chunk * kChunk;
    const Tensor &t = p.d_v;
    if (__builtin_expect(is_sent(2, chunk), true)) {
      if (own_column() < t.dim) send(2, panels + half * kPanel, chunk);
      return;
    }
    const int64_t at =
        offset_of(t, place.run.row, place.run.begin + chunk * kChunk, place.head, p.heads) + own_column();
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 16 * i + thread / 8, piece = thread % 8;
      const uint4 x = load_shared_16(panels + half * kPanel + swizzled(r, piece));
      if (r >= count || own_column() + 8 * piece >= t.dim) continue;
      const int64_t to = at + r * t.strides.token + 8 * piece;
      if (p.staged[2]) {
        const float2 a = unpack<T>(x.x), b = unpack<T>(x.y), c = unpack<T>(x.z), d = unpack<T>(x.w);
        float4 *const wide = reinterpret_cast<float4 *>(static_cast<float *>(t.data) + to);
        wide[0] = float4{a.x, a.y, b.x, b.y}, wide[1] = float4{c.x, c.y, d.x, d.y};
      } else {
        store_piece(static_cast<T *>(t.data) + to, x);
      }
    }
  }
};

}  // namespace lasp::gpu::delta_hopper::gradients
