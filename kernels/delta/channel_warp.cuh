// What the kernels of the gradients of q, k and g share, where decay is per channel (channel_finish.cu,
// channel_narrow.cu). A block has a chunk, a head and 64 channels; a warp of it 16 channels of all 64 tokens, in
// registers, as rows of the tensor cores' operands.
#pragma once

#include "channel_gradients.cuh"
#include "channel_sums.cuh"

namespace lasp::gpu::delta_hopper::channel {

constexpr int kChannels = 64, kFinishThreads = 128;
constexpr int kRow = 2 * kChannels + 16, kSumRow = kChannels + 4;  // bytes of a row of k and q; floats of one of G
// k, q, G, scores. All warps read tokens and G again and again, which costs less than their registers. Then sums of
// 16 tokens.
constexpr int kResultBytes = 4 * kChunk * kSumRow, kOfQ = kChunk * kRow, kOfSums = 2 * kChunk * kRow,
              kOfScores = kOfSums + kResultBytes, kOfTotals = kOfScores + 4 * kTile;

// Which chunk of which (stretch, head) a block has.
struct Chunk {
  Run run;
  int64_t item, token;
  int32_t head;
  int chunk, count;  // count: of its tokens, at most 0 where there is none or the pass has another filter

  __device__ __forceinline__ Chunk(const DeltaGradients &p, const Left &left, int64_t b) {
    chunk = int(b % left.of_stretch);
    item = b / left.of_stretch;
    head = int32_t(item % p.heads);
    run = p.runs[item / p.heads];
    token = run.begin + chunk * kChunk;
    count = takes(p.filter, run) ? min(kChunk, run.length - chunk * kChunk) : 0;
  }
  __device__ __forceinline__ int64_t at(const Tensor &t, int32_t heads) const {
    return offset_of(t, run.row, token, head, heads) + kChannels * blockIdx.y;
  }
  // Whether the tensor has the channel, of this block's 64.
  __device__ __forceinline__ bool has(const Tensor &t, int channel) const {
    return kChannels * int(blockIdx.y) + channel < t.dim;
  }
  // k, q and scores, by all threads; not waited for.
  __device__ __forceinline__ void copy(const DeltaGradients &p, const char *left, uint32_t shared) const {
    const int thread = threadIdx.x, piece = thread % 8, row = thread / 8;
    const bool slow = !begins_on_piece(p.k.data) || !begins_on_piece(p.q.data);
    const auto load = [&](const Tensor &t, uint32_t to) {
      const char *const rows =
          static_cast<const char *>(t.data) + 2 * (at(t, p.heads) + row * t.strides.token + 8 * piece);
      to += row * kRow + 16 * piece;
      copy_pieces<4>(slow, [&](int i, auto copy) {
        const bool there = row + 16 * i < count && has(t, 8 * piece);
        copy(to + 16 * i * kRow, there ? rows + 32 * i * t.strides.token : t.data, there);
      });
    };
    load(p.k, shared), load(p.q, shared + kOfQ);
#pragma unroll
    for (int i = 0; i < 4 * kTile / 16 / kFinishThreads; ++i) {
      const int at = 16 * (thread + i * kFinishThreads);
      copy_16(shared + kOfScores + at, left + Left::kScoresQ + at, true);
    }
    copies_commit();
  }
  // A matrix [64 tokens, 64 channels] of float32, number by number: what there is of `channels`.
  __device__ __forceinline__ void store(const float *from, void *to, DType type, bool adds, int64_t at,
                                        int64_t stride, const Tensor &channels) const {
    const int channel = threadIdx.x % kChannels;
    if (!has(channels, channel)) return;
    for (int t = threadIdx.x / kChannels; t < count; t += kFinishThreads / kChannels)
      put_element(to, type, at + t * stride + channel, from[t * kSumRow + channel], adds);
  }
  __device__ __forceinline__ void store_decay(const DeltaGradients &p, const float *from) const {
    if (p.d_g)
      store(from, p.d_g, p.d_g_float32 ? DType::kFloat32 : p.decay_dtype, p.d_g_adds,
            offset_of(p.d_g_strides, run.row, token, head) + kChannels * blockIdx.y, p.d_g_strides.token, p.k);
  }
};

// A block of 16 tokens, of this lane: two channels, r and r + 8 of the warp's, and tokens 2q, 2q + 1 of each half.
// Pairs by 2 half + channel, which is how a left operand has them; numbers by [half][2 channel + token], which is
// how accumulators have them.
using Pairs = uint32_t[4];
using Numbers = float[2][4];
struct Tokens {
  Numbers g;
  Pairs k, q;
};

template <typename T>
struct Channels {
  const uint32_t shared;
  const int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4, warp = threadIdx.x / 32;

  // Of the quad's lanes: all; those after this one, those before.
  struct Quad {
    float all, after, before;
  };
  __device__ __forceinline__ Quad sums_of(float x) const {
    const float next = __shfl_xor_sync(~0u, x, 1), pair = x + next, others = __shfl_xor_sync(~0u, pair, 2);
    return {pair + others, (q % 2 ? 0 : next) + (q / 2 ? 0 : others), (q % 2 ? next : 0) + (q / 2 ? others : 0)};
  }

  __device__ __forceinline__ void scale(Pairs &to, const Pairs &x, const Numbers &f) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i] = mma::scale_pair<T>(x[i], float2{f[i / 2][i % 2 * 2], f[i / 2][i % 2 * 2 + 1]}, nullptr);
  }
  // G at the last token of block b.
  __device__ __forceinline__ float last_of(int b, int c) const {
    return load_float(shared + kOfSums + 4 * ((16 * b + 15) * kSumRow + 16 * warp + 8 * c + r));
  }

  // One of four tiles of scores: Aq high and low, Ak high and low.
  __device__ __forceinline__ uint32_t scores(int which, int row, int column) const {
    return shared + kOfScores + which * kTile + tile_block(row, column) * 512 + 16 * lane;
  }
  // d += x A^T: what rows `row` take of the block of columns `column`, of a tile's two parts.
  __device__ __forceinline__ void rows(Numbers &d, const Pairs &x, int tile, int row, int column) const {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t a[4];
      load_matrices(a, scores(tile + part, row, column));
#pragma unroll
      for (int h = 0; h < 2; ++h) mma::multiply<T>(d[h], x, a[2 * h], a[2 * h + 1]);
    }
  }
  // d += x A: what columns `column` take of the block of rows `row`.
  __device__ __forceinline__ void columns(Numbers &d, const Pairs &x, int tile, int row, int column) const {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t a[4];
      load_matrices_transposed(a, scores(tile + part, row, column));
#pragma unroll
      for (int h = 0; h < 2; ++h) mma::multiply<T>(d[h], x, a[h], a[2 + h]);
    }
  }
  // X, Y or W of block b, as pairs.
  __device__ __forceinline__ void load(Pairs &to, const char *image, int tile, int b) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"  // here, and not long before
                   : "=r"(to[c]), "=r"(to[2 + c])
                   : "l"(image + Left::at(tile + c, b))
                   : "memory");
    }
  }
  // d_g += sums over the block's tokens from each on, or before each.
  __device__ __forceinline__ void count_from(Numbers &d_g, const Numbers &x) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float after = 0;
#pragma unroll
      for (int h = 1; h >= 0; --h) {
        const float a = x[h][2 * c], b = x[h][2 * c + 1];
        const Quad sums = sums_of(a + b);
        const float rest = after + sums.after;
        d_g[h][2 * c] += a + b + rest, d_g[h][2 * c + 1] += b + rest;
        after += sums.all;
      }
    }
  }
  // Of a matrix [64 tokens, 64 channels] of float32.
  __device__ __forceinline__ uint32_t place(int of, int b, int h, int i) const {
    return shared + of + 4 * ((16 * b + 8 * h + 2 * q + i % 2) * kSumRow + 16 * warp + i / 2 * 8 + r);
  }
  static __device__ __forceinline__ void store_float(uint32_t to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
  }
  // This lane's address of four 8 x 8 matrices of block b, in a tile of k or q.
  __device__ __forceinline__ uint32_t tokens_at(int b) const {
    return uint32_t((16 * b + lane / 16 * 8 + lane % 8) * kRow + 2 * (16 * warp + lane / 8 % 2 * 8));
  }
  __device__ __forceinline__ void load_tokens(Tokens &t, int b) const {
    const uint32_t from = shared + tokens_at(b);
    load_matrices_transposed(t.k, from), load_matrices_transposed(t.q, from + kOfQ);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) t.g[h][i] = load_float(place(kOfSums, b, h, i));
  }
};

}  // namespace lasp::gpu::delta_hopper::channel
