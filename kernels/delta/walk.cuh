// What the walks share: a ring of chunks in shared memory that four producer warps fill, and the pieces of a
// consumer warpgroup's arithmetic. It holds its slice of the state transposed, [64 columns of V, 128 rows of K], as
// accumulators of the tensor cores, and rounded in place they are left operands: nothing on the chain from chunk to
// chunk passes through shared memory.
#pragma once

#include "layout.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::delta_hopper {

using mma::copies_commit, mma::copies_wait, mma::copy_16, mma::pack_rest;

constexpr int kConsumers = 128, kProducers = 128, kThreads = kConsumers + kProducers;
constexpr int kStages = 3;
// A stage: k and q as two panels of 64 columns, v (reversed: do) as one, then N and P, high and low, as squares
// whose upper blocks are not written. All rows have 128 swizzled bytes.
constexpr int kPanel = kChunk * 128;
constexpr int kK = 0, kQ = 2 * kPanel, kV = 4 * kPanel, kSquares = 5 * kPanel, kStageFactors = 9 * kPanel;
constexpr int kStageBytes = 9 * kPanel + 1024;
constexpr int kSharedBytes = kStages * kStageBytes + 64;

__device__ __forceinline__ uint32_t swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Where 16-byte piece x of a slot's tiles lies among four squares.
template <int kFlip = 0>
__device__ __forceinline__ uint32_t square_piece(int x) {
  const int tile = x / (kTile / 16), at = x % (kTile / 16), block = at / 32;
  const int block_row = (block >= 1) + (block >= 3) + (block >= 6), column = block - tile_block(block_row, 0);
  const int row = 16 * block_row + at % 32 / 16 * 8 + at % 8;
  return tile * kPanel + swizzled(row ^ kFlip, (2 * column + at % 16 / 8) ^ kFlip / 8);
}

// This thread arrives when the copies that it has begun are there. Slow ones are there at once, and are seen by who
// waits if it is this thread that arrives.
__device__ __forceinline__ void arrive_copies(uint32_t barrier, bool slow) {
  if (slow) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    return hopper::barrier_arrive(barrier);
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Which (run, part, head, slice) a block works on.
struct Place {
  Run run;
  int64_t index;  // of the run
  int32_t head, slice, chunks;
  bool after;  // whether the run has tokens after the part
  int32_t part;
};

// The rest of a place whose index is known, and of a run in parts its part. False: there is nothing to do.
__device__ __forceinline__ bool start_place(RunFilter filter, Place &place) {
  place.chunks = (place.run.length + kChunk - 1) / kChunk;
  return place.run.length > 0 && takes(filter, place.run);
}
__device__ __forceinline__ bool start_run(const DeltaInputs &p, RunFilter filter, Place &place) {
  place.run = p.runs[place.index];
  return start_place(filter, place);
}
__device__ __forceinline__ bool start_part(const DeltaInputs &p, const Slots &slots, RunFilter filter,
                                           Place &place) {
  place.run = p.runs[place.index];
  place.after = slots.cut(place.run, place.part);
  return start_place(filter, place);
}

struct Ring {
  uint32_t stages, barriers;
  __device__ uint32_t stage(int n) const { return stages + n * kStageBytes; }
  __device__ uint32_t full(int n) const { return barriers + 8 * n; }
  __device__ uint32_t empty(int n) const { return barriers + 8 * (kStages + n); }
  // By all threads.
  __device__ static Ring make(char *shared) {
    Ring ring;
    ring.stages = shared_address(shared), ring.barriers = ring.stages + kStages * kStageBytes;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i)
        hopper::barrier_init(ring.full(i), kProducers), hopper::barrier_init(ring.empty(i), kConsumers);
      hopper::barrier_init_fence();
    }
    __syncthreads();
    return ring;
  }
};

// Copies chunks to the ring: k, q, `wide` (v or do; null data: zeros) and the slot. By the producer warps. Forward,
// the blocks of 16 tokens lie in flipped order: token t is row t ^ 48.
template <bool kReversed>
__device__ __forceinline__ void produce(const Ring &ring, const DeltaInputs &p, const Slots &slots,
                                        const Tensor &wide, const Place &place, bool with_q) {
  constexpr int kFlip = kReversed ? 0 : 48;
  const int thread = threadIdx.x % kProducers;
  const char *k, *q = nullptr, *v = nullptr;
  const int row = thread / 16, piece = thread % 16, v_row = thread / 8, v_piece = thread % 8;
  const auto begin = [&](const Tensor &t, int r, int column) {
    return static_cast<const char *>(t.data) +
           2 * (offset_of(t, place.run.row, place.run.begin + r, place.head, p.heads) + column);
  };
  k = begin(p.k, row, 8 * piece);
  if (with_q) q = begin(p.q, row, 8 * piece);
  if (wide.data) v = begin(wide, v_row, place.slice * kSlice + 8 * v_piece);
  const uint32_t k_to = piece / 8 * kPanel + swizzled(row, piece % 8), v_to = swizzled(v_row, v_piece);
  const bool slow =
      !begins_on_piece(p.k.data) || (with_q && !begins_on_piece(p.q.data)) || !begins_on_piece(wide.data);
  const int64_t first_slot = slots.first_of(place.index, place.part);
  for (int n = 0; n <= place.chunks; ++n) {
    if (n < place.chunks) {
      const int c = kReversed ? place.chunks - 1 - n : n, s = n % kStages;
      if (n >= kStages) hopper::barrier_wait(ring.empty(s), (n / kStages + 1) & 1);
      const uint32_t to = ring.stage(s);
      const int count = place.run.length - c * kChunk;
      const int64_t token = int64_t(c) * kChunk;
      copy_pieces<8>(slow, [&](int i, auto copy) {
        const bool there = row + 8 * i < count && 8 * piece < p.k.dim;
        copy(to + kK + k_to + ((8 * i) ^ kFlip) * 128,
             there ? k + 2 * (token + 8 * i) * p.k.strides.token : p.k.data, there);
      });
      if (with_q)
        copy_pieces<8>(slow, [&](int i, auto copy) {
          const bool there = row + 8 * i < count && 8 * piece < p.k.dim;
          copy(to + kQ + k_to + ((8 * i) ^ kFlip) * 128,
               there ? q + 2 * (token + 8 * i) * p.q.strides.token : p.q.data, there);
        });
      copy_pieces<4>(slow, [&](int i, auto copy) {
        const bool there = v && v_row + 16 * i < count;
        copy(to + kV + v_to + ((16 * i) ^ kFlip) * 128,
             there ? v + 2 * (token + 16 * i) * wide.strides.token : p.k.data, there);
      });
      const char *const slot = slots.at(first_slot + c, p.heads, place.head);
#pragma unroll
      for (int i = 0; i < (kFactors / 16) / kProducers; ++i) {
        const int x = thread + i * kProducers;
        if (x >= 2 * kTile / 16 && !with_q) break;
        copy_16(to + kSquares + square_piece<kFlip>(x), slot + 16 * x, true);
      }
      if (thread < kSums / 16)
        copy_16(to + kStageFactors + (16 * thread ^ 4 * kFlip), slot + kFactors + 16 * thread, true);
      copies_commit();
    }
    if (n > 0) {
      if (n < place.chunks) {
        copies_wait<1>();
      } else {
        copies_wait<0>();
      }
      hopper::fence_async_proxy();
      hopper::barrier_arrive(ring.full((n - 1) % kStages));
    }
  }
}
static_assert(kFactors / 16 % kProducers == 0);

// ---- The consumer warpgroup. Accumulators as wgmma has them: element 4j + 2r + e of a lane is row 16 warp + 8r +
// lane / 4, column 8j + 2 (lane % 4) + e. Rows are columns of V; columns are tokens, or rows of K.

// Left operands of the columns 16 first / 8 .. of x: a high and a low part.
template <typename T, int kCount>
__device__ __forceinline__ void split(const float *x, uint32_t *high, uint32_t *low) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    high[i] = pack<T>(x[2 * i], x[2 * i + 1]);
    low[i] = pack_rest<T>(x[2 * i], x[2 * i + 1], high[i]);
  }
}

__device__ __forceinline__ float load_float(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ float2 load_pair(uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}
// f(i, factors of the columns of elements i and i + 1, as i + 2 and i + 3).
template <typename F>
__device__ __forceinline__ void by_token(uint32_t factors, F f) {
  const uint32_t from = factors + threadIdx.x % 4 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) f(4 * j, load_pair(from + 32 * j));
}

// y (64 tokens) += or = state times the rows of a tile of k or q.
template <typename T>
__device__ __forceinline__ void multiply_rows(float (&y)[32], const uint32_t (&state)[32], uint32_t tile,
                                              bool accumulate) {
#pragma unroll
  for (int s = 0; s < 8; ++s)
    multiply<T, 64, false>(y, state + 4 * s,
                           hopper::advance(hopper::tile_descriptor<128>(tile + s / 4 * kPanel), s % 4 * 32),
                           s > 0 || accumulate);
}
// y^T += L x^T: y and x by tokens in flipped order, L a lower triangular square. Accumulators of a part of y must
// be its first, which is what the flip is for.
template <typename T>
__device__ __forceinline__ void multiply_lower(float (&y)[32], const uint32_t (&x)[16], uint32_t square) {
  const uint64_t tile = hopper::tile_descriptor<128>(square);
  multiply<T, 64, false>(y, x + 12, hopper::advance(tile, 96), true);
  multiply<T, 48, false>(y, x + 8, hopper::advance(tile, 64), true);
  multiply<T, 32, false>(y, x + 4, hopper::advance(tile, 32), true);
  multiply<T, 16, false>(y, x, tile, true);
}
// y^T += L^T x^T; or =.
template <typename T>
__device__ __forceinline__ void multiply_upper(float (&y)[32], const uint32_t (&x)[16], uint32_t square,
                                               bool accumulate = true) {
  multiply<T, 64, true>(y, x + 12, hopper::tile_descriptor<128>(square + 6144), accumulate);
  multiply<T, 48, true>(y, x + 8, hopper::tile_descriptor<128>(square + 4096), true);
  multiply<T, 32, true>(y, x + 4, hopper::tile_descriptor<128>(square + 2048), true);
  multiply<T, 16, true>(y, x, hopper::tile_descriptor<128>(square), true);
}
// sum (64 rows of K: a panel of k or q) += or = x times it, over tokens.
template <typename T>
__device__ __forceinline__ void multiply_tokens(float (&sum)[32], const uint32_t (&x)[16], uint32_t panel,
                                                bool accumulate) {
#pragma unroll
  for (int s = 0; s < 4; ++s)
    multiply<T, 64, true>(sum, x + 4 * s, hopper::advance(hopper::tile_descriptor<128>(panel), s * 2048),
                          s > 0 || accumulate);
}

// The products below round their left operands piece by piece, between the tensor cores' work on the pieces before.
//
// y (64 tokens) = state times the rows of k; the rounded state stays in `high`.
template <typename T>
__device__ __forceinline__ void multiply_state(float (&y)[32], const float (&state)[64], uint32_t (&high)[32],
                                               uint32_t tile) {
  uint32_t low[32];
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    split<T, 8>(state + 8 * s, high + 4 * s, low + 4 * s);
    hopper::wgmma_begin();
    const uint64_t b = hopper::advance(hopper::tile_descriptor<128>(tile + s / 4 * kPanel), s % 4 * 32);
    multiply<T, 64, false>(y, high + 4 * s, b, s > 0);
    multiply<T, 64, false>(y, low + 4 * s, b, true);
  }
}
// first and second (64 rows of K each) += or = x times the panels of k, over tokens. x is left in two parts.
template <typename T, bool kAdd>
__device__ __forceinline__ void multiply_tokens(float (&first)[32], float (&second)[32], const float (&x)[32],
                                                uint32_t (&high)[16], uint32_t (&low)[16], uint32_t tile) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    split<T, 8>(x + 8 * s, high + 4 * s, low + 4 * s);
    hopper::wgmma_begin();
    const uint64_t b = hopper::advance(hopper::tile_descriptor<128>(tile), s * 2048);
    multiply<T, 64, true>(first, high + 4 * s, b, kAdd || s > 0);
    multiply<T, 64, true>(first, low + 4 * s, b, true);
    multiply<T, 64, true>(second, high + 4 * s, hopper::advance(b, kPanel), kAdd || s > 0);
    multiply<T, 64, true>(second, low + 4 * s, hopper::advance(b, kPanel), true);
  }
}

// This lane's address of four 8 x 8 matrices of a tile [64 tokens, 64 columns of V] whose transposes are elements
// 8j
// .. 8j + 7 of accumulators.
__device__ __forceinline__ uint32_t transposed_at(uint32_t tile, int j) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  return tile + swizzled(16 * j + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
}

// f(element, row of K, column of V) of a slice of a state.
template <typename F>
__device__ __forceinline__ void each_of_state(F f) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
  for (int i = 0; i < 64; ++i) f(i, 8 * (i / 4) + lane % 4 * 2 + i % 2, 16 * warp + i / 2 % 2 * 8 + lane / 4);
}

__device__ __forceinline__ uint32_t transpose_pairs(uint32_t pairs) {
  uint32_t to;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pairs));
  return to;
}
// What lies in memory of a slice of a state [rows, columns], 64 or 128 of each; the rest is zero.
template <typename T>
__device__ __forceinline__ void load_slice(float (&s)[64], const T *from, int rows, int columns, int32_t slice) {
  const bool there = slice * kSlice < columns;
  from += slice * kSlice;
  each_of_state([&](int i, int row, int v) {
    s[i] = (i < 32 || rows == kDim) && there ? float(from[row * columns + v]) : 0;
  });
}
template <typename F>
__device__ __forceinline__ void store_slice(float *to, int rows, int columns, int32_t slice, F value) {
  to += slice * kSlice;
  each_of_state([&](int i, int row, int v) {
    if (i < 32 || rows == kDim) to[row * columns + v] = value(i);
  });
}
// The rounded slice of a state to [rows, columns] in 16 bits.
template <typename T>
__device__ __forceinline__ void store_rounded(T *to, const uint32_t (&high)[32], int rows, int columns,
                                              int32_t slice) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  T *const at = to + lane / 4 * columns + slice * kSlice + 16 * warp + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const uint32_t pairs = transpose_pairs(high[i]);
    if (i < 16 || rows == kDim) *reinterpret_cast<uint32_t *>(at + i / 2 * 8 * columns + i % 2 * 8) = pairs;
  }
}

}  // namespace lasp::gpu::delta_hopper
