// What decay per channel adds: keys and queries that the preparation has scaled, so that the walks need no factor
// of a token but beta. With G the running sums of the log2 decays in a chunk, by channel:
//
//   read = k 2^G          the keys that read the state before the chunk, and that dv leaves by in a walk back
//   write = k 2^(G_C - G)    the keys that write to the state after it, and that read the gradient of that state
//   query = q 2^G
//
// All factors are at most 1. Rounded to 16 bits, read and write would be what a state is wrong by (docs/history),
// so they have a high and a low part.
#pragma once

#include "bulk.cuh"

namespace lasp::gpu::delta_hopper::channel {

// An image: [64 tokens, 128] as it lies in shared memory, two panels of 64 columns with rows of 128 swizzled bytes.
constexpr int kImage = 2 * kPanel;
// In a slot, after what it has of every decay; of the factors there are beta and 2^G_C of 128 channels.
constexpr int kReadHigh = kSlotBytes, kReadLow = kReadHigh + kImage, kWriteHigh = kReadLow + kImage,
              kWriteLow = kWriteHigh + kImage, kQuery = kWriteLow + kImage, kBytes = kQuery + kImage;
constexpr int kWholeBytes = 4 * kDim;
static_assert(kWhole + kWholeBytes <= kFactorBytes && kSlotBytes % 16 == 0);

// 64 columns of a tensor's rows, zeros where a run has no tokens.
template <int kFlip>
__device__ __forceinline__ void copy_slice(uint32_t to, const Tensor &t, const Place &place, int32_t heads,
                                           int chunk, const void *nothing, bool slow) {
  const int thread = threadIdx.x % 128, row = thread / 8, piece = thread % 8;
  const bool column = t.data && place.slice * kSlice + 8 * piece < t.dim;
  const int count = column ? place.run.length - chunk * kChunk : 0;
  const char *const from =
      static_cast<const char *>(t.data) +
      2 * (offset_of(t, place.run.row, place.run.begin + chunk * kChunk + row, place.head, heads) +
           place.slice * kSlice + 8 * piece);
  to += swizzled(row, piece);
  copy_pieces<4>(slow, [&](int i, auto copy) {
    const bool there = row + 16 * i < count;
    copy(to + ((16 * i) ^ kFlip) * 128, there ? from + 32 * i * t.strides.token : nothing, there);
  });
}

// The rows of an image that step `step` of a product with the state reads: 16 of the state's rows.
__device__ __forceinline__ uint64_t state_rows(uint32_t image, int step) {
  return hopper::advance(hopper::tile_descriptor<128>(image + step / 4 * kPanel), step % 4 * 32);
}
// y (64 tokens) = state times the rows of an image in two parts; the rounded state stays in `high`. also(step, 16
// rows of that): other products with it.
template <typename T, typename Also>
__device__ __forceinline__ void multiply_state(float (&y)[32], const float (&state)[64], uint32_t (&high)[32],
                                               uint32_t images, Also also) {
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    uint32_t low[4];
    split<T, 8>(state + 8 * s, high + 4 * s, low);
    hopper::wgmma_begin();
    const uint64_t b = state_rows(images, s);
    multiply<T, 64, false>(y, high + 4 * s, b, s > 0);
    multiply<T, 64, false>(y, low, b, true);
    multiply<T, 64, false>(y, high + 4 * s, hopper::advance(b, kImage), true);
    also(s, high + 4 * s);
  }
}
// first and second (64 rows of K each) += or = x times an image in two parts, over tokens. x is left in two parts.
// kFlip = 48: x by tokens in flipped order.
template <typename T, bool kAdd, int kFlip = 0>
__device__ __forceinline__ void multiply_tokens(float (&first)[32], float (&second)[32], const float (&x)[32],
                                                uint32_t (&high)[16], uint32_t (&low)[16], uint32_t images) {
  delta_hopper::multiply_tokens<T, kAdd, kFlip>(first, second, x, high, low, images);
  delta_hopper::multiply_tokens<T, kFlip>(first, high, images + kImage, true);
  delta_hopper::multiply_tokens<T, kFlip>(second, high, images + kImage + kPanel, true);
}
// A state after a chunk; in IEEE float32, which sums over chunks need.
__device__ __forceinline__ void add_chunk(float (&s)[64], const float (&first)[32], const float (&second)[32],
                                          uint32_t whole) {
  const auto add = [&](float *to, const float(&sum)[32], uint32_t factors) {
    by_token(factors, [&](int i, float2 f) {
      to[i] = fmaf(f.x, to[i], sum[i]), to[i + 1] = fmaf(f.y, to[i + 1], sum[i + 1]);
      to[i + 2] = fmaf(f.x, to[i + 2], sum[i + 2]), to[i + 3] = fmaf(f.y, to[i + 3], sum[i + 3]);
    });
  };
  add(s, first, whole), add(s + 32, second, whole + 4 * kDim / 2);
}

}  // namespace lasp::gpu::delta_hopper::channel
