// What the walkers of the backward walks with per-channel decay read and write: where their parts of a chunk lie in
// its stage, and results and x on their way to memory.
#pragma once

#include "../add_global.cuh"
#include "../mma/channel_parts.cuh"
#include "channel_backward_layout.cuh"

namespace lasp::gpu::hopper::channel_backward {

using mma::channel::Elements;
using mma::channel::read_shared;
using mma::channel::round;
using mma::channel::take_halves;
using mma::channel::token_of;
using Fragment = uint32_t[4];  // of a warp: 16 channels by 16 tokens

// Of a chunk: where it is, its first token in the run, and how many it has.
struct Place {
  uint32_t stage, beside;
  int32_t begin, tokens;
};

// kPlain: x is float32, and nothing is added to what is there.
template <typename T, int kHeads, int kColumns, bool kReversed, bool kPlain>
class WalkerMemory {
 protected:
  using L = Layout<kHeads, kColumns, kReversed>;
  using B = Block<kHeads, kColumns, kReversed>;

  __device__ __forceinline__ WalkerMemory(const Params &p, const B &block, int group, bool exists)
      : walk_(p.walk),
        block_(block),
        group_(group),
        channel_(int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4),
        head_(kHeads == 1 || group == 0 ? block.heads[0] : block.heads[kHeads - 1]),
        exists_(exists) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, q = lane % 4, r = lane / 4;
    const auto piece_of = [&](int row, int piece) { return row * 128 + (((2 * warp + piece) ^ (row % 8)) << 4); };
    keys_ = group * kBox + piece_of(lane % 8 + lane / 16 * 8, lane / 8 & 1);
    back_ = group * kBox + piece_of(lane / 2, lane % 2);
    const uint32_t from = (2 * group + warp / 2) * kBox + 2 * q * 128 + r % 4 * 4,
                   piece = ((4 * (warp % 2) + r / 4) ^ (2 * q)) << 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) full_[i] = from + i % 2 * 128 + (piece ^ (i / 2 << 5) ^ (i % 2 << 4));
    y_ = place_of(walk_.y.data, walk_.y.strides, 2), y_bytes_ = uint32_t(2 * walk_.y.strides.token);
    if (walk_.x) {
      const int bytes = x_is_float() ? 4 : 2;
      x_ = place_of(walk_.x, walk_.x_strides, bytes), x_bytes_ = uint32_t(bytes * walk_.x_strides.token);
      if (!kReversed && !x_is_float()) {
        char *const low = place_of(walk_.partner.data, walk_.partner.strides, 2);
        if (lane == 0) low_place() = {low, uint32_t(2 * walk_.partner.strides.token)};
        __syncwarp();
      }
    }
  }

  __device__ bool x_is_float() const { return kPlain || walk_.x_is_float; }
  __device__ bool adds() const { return !kPlain && walk_.adds; }

  // ---- In shared memory

  __device__ __forceinline__ uint32_t scores(const Place &at) const {
    return at.beside + (kHeads == 1 ? 0 : group_ * L::kHeadScores);
  }
  __device__ __forceinline__ uint32_t side(uint32_t tile) const {
    return tile + (kHeads == 1 ? 0 : group_ * L::kSidePanels * kBox);
  }
  // This lane's row of four matrices, 16 tokens by this warp's 16 channels, in this walker's panel of a tile of
  // keys.
  __device__ __forceinline__ uint32_t keys_at(uint32_t tile, int half) const {
    return tile + keys_ + half * (kHalf * 128);
  }
  // This lane's elements of 16 tokens in a tile of float32: two panels of 32 channels for a walker.
  __device__ __forceinline__ void read_full(Elements &to, uint32_t tile, int half) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        to[h][e] = read_shared(tile + full_[2 * h + e % 2] + e / 2 * (8 * 128) + half * (kHalf * 128));
  }
  // By channel: this lane's two.
  __device__ __forceinline__ float2 read_pair(uint32_t from) const {
    const uint32_t at = from + 4 * (kRows * group_ + channel_);
    return {read_shared(at), read_shared(at + 32)};
  }

  // ---- On the way to memory and back

  // A warp's 16 tokens of 16 channels, of 16 bits each: through its place in c, then 16 bytes a lane. They join
  // what is there where kMayAdd and the walk adds.
  template <bool kMayAdd>
  __device__ __forceinline__ void store_halves(const Fragment &pairs, char *to, uint32_t token_bytes,
                                               const Place &at, int half, int32_t token, int32_t count) const {
    __syncwarp();
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     keys_at(at.stage + L::kC, half)),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
    __syncwarp();
    const uint4 v = load_shared_16(at.stage + L::kC + back_ + half * (kHalf * 128));
    const int thread = mma::thread_again() % 128, row = thread % 32 / 2;
    if (row >= count) return;
    uint4 *const place = reinterpret_cast<uint4 *>(to + uint64_t{uint32_t(token + row)} * token_bytes +
                                                   thread / 32 * 32 + thread % 2 * 16);
    if (kMayAdd && adds()) return add_global<T>(place, v);
    *place = v;
  }
  // Of this walker's first channel, at the run's first token.
  __device__ __forceinline__ char *place_of(const void *data, const Strides &strides, int bytes) const {
    const int64_t at = block_.row * strides.batch + head_ * strides.head + block_.first * strides.token +
                       block_.tile * (kRows * kWalkers / kHeads) + (kHeads == 1 ? group_ * kRows : 0);
    return static_cast<char *>(const_cast<void *>(data)) + at * bytes;
  }

  // Where the low halves of x go. There is no register for it.
  struct RowPlace {
    char *first;  // see place_of()
    uint32_t token_bytes;
  };
  __device__ __forceinline__ RowPlace &low_place() const {
    return reinterpret_cast<RowPlace *>(block_.memory + L::kLowPlaces)[threadIdx.x / 32];
  }

  // x, or reversed d_g.
  __device__ __forceinline__ void store_x(const Elements &x, const Place &at, int half, int32_t token,
                                          int32_t count) const {
    if (!x_is_float()) return store_x_halves(x, at, half, token, count);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (token_of(e) < count) {
        float *const place =
            reinterpret_cast<float *>(x_ + uint64_t{uint32_t(token + token_of(e))} * x_bytes_) + channel_;
        if (adds()) {
          add_global(place, x[0][e]), add_global(place + 8, x[1][e]);
        } else {
          place[0] = x[0][e], place[8] = x[1][e];
        }
      }
  }
  __device__ __forceinline__ void store_x_halves(const Elements &x, const Place &at, int half, int32_t token,
                                                 int32_t count) const {
    Fragment pairs;
    if constexpr (kReversed) {
      round<T>(x, pairs);
      store_halves<false>(pairs, x_, x_bytes_, at, half, token, count);
    } else {
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        take_halves(x, low, pairs);
        const RowPlace to = low ? low_place() : RowPlace{x_, x_bytes_};
        store_halves<false>(pairs, to.first, to.token_bytes, at, half, token, count);
      }
    }
  }
  // What store_x has left.
  __device__ __forceinline__ void load_x(Elements &x, const Place &at, int half) const {
    if (adds()) {  // the first columns take all of x
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[h][e] = 0;
      return;
    }
    if (x_is_float()) return read_full(x, at.stage + L::kX, half);
    Fragment high, low;
    load_matrices_transposed(high, keys_at(at.stage + L::kX, half));
    load_matrices_transposed(low, keys_at(at.stage + L::kX + L::kKeys, half));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i % 2][i / 2 * 2] = __uint_as_float(high[i] << 16 | (low[i] & 0xffff));
      x[i % 2][i / 2 * 2 + 1] = __uint_as_float((high[i] & 0xffff0000) | low[i] >> 16);
    }
  }

  __device__ __forceinline__ int64_t state_at(int64_t state) const {
    return (state * walk_.heads + head_) * walk_.state_size +
           (block_.tile * int64_t{kRows * kWalkers / kHeads} + (kHeads == 1 ? group_ * kRows : 0) + channel_) *
               walk_.state_row +
           mma::thread_again() % 4 * 2;
  }
  __device__ __forceinline__ float *ends() const {
    return walk_.ends +
           (block_.index * walk_.heads + head_) * (int64_t{walk_.row_tiles} * kRows * kWalkers / kHeads) +
           block_.tile * (kRows * kWalkers / kHeads) + (kHeads == 1 ? group_ * kRows : 0) + channel_;
  }

  const Walk &walk_;
  const B &block_;
  const int group_, channel_;
  const int32_t head_;
  uint32_t keys_, back_;        // see keys_at(); of a row of 16 bytes that this lane takes to memory
  uint32_t full_[4];            // see read_full()
  const bool exists_;           // this walker's head
  char *y_, *x_;                // see place_of()
  uint32_t y_bytes_, x_bytes_;  // of a token
};

}  // namespace lasp::gpu::hopper::channel_backward
