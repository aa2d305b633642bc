// What the walks share: how four producer warps copy chunks to shared memory, and the pieces of a walking
// warpgroup's arithmetic. It holds its slice of the state transposed, [64 columns of V, 128 rows of K], as
// accumulators of the tensor cores, and rounded in place they are left operands: nothing on the chain from chunk to
// chunk passes through shared memory. Two warpgroups of a block walk a slice each: while one rounds or waits, the
// tensor cores work for the other.
#pragma once

#include "layout.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::delta_hopper {

using mma::copies_commit, mma::copies_wait, mma::copy_16, mma::pack_rest;

constexpr int kWalkers = 2, kGroup = 128;  // warpgroups; their threads
// Of a tile of 64 columns, whose rows have 128 swizzled bytes.
constexpr int kPanel = kChunk * 128;

__device__ __forceinline__ uint32_t swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// This thread of kGroup, in a way that keeps the compiler from holding addresses in registers from chunk to chunk.
__device__ __forceinline__ int this_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % kGroup;
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
  int64_t item;   // of what is kept of stretches, with group_item() its head and group of columns
  int32_t head, slice, chunks;
  bool after;  // whether the run has tokens after the part
  int32_t part;
  int32_t boxed;            // the first so many chunks are copied by boxes (bulk.cuh)
  int32_t by_threads;       // the first so many of a walk back have tensors that threads copy
  int32_t head_left;        // of dq and dk
  int32_t log2_of_stretch;  // in chunks
  int32_t skipped;          // of the part, so many chunks before `run`
  bool later;               // whether the part has tokens after a window
  bool forgets;             // the part: what enters it
  bool of_columns;          // the two blocks of a cluster have columns of one head, not heads (gradients_pairs.cuh)

  __device__ int64_t group_item(int32_t heads, int32_t groups) const {
    return (item * heads + head) * groups + slice / kWalkers;
  }
};

// The rest of a place whose index is known, and of a run in parts its part. False: there is nothing to do.
__device__ __forceinline__ bool start_place(RunFilter filter, Place &place) {
  place.chunks = (place.run.length + kChunk - 1) / kChunk;
  place.skipped = 0, place.forgets = place.later = place.of_columns = false;
  return place.run.length > 0 && takes(filter, place.run);
}
__device__ __forceinline__ bool start_run(const DeltaInputs &p, RunFilter filter, Place &place) {
  place.run = p.runs[place.index];
  place.item = place.index, place.part = 0;
  return start_place(filter, place);
}
__device__ __forceinline__ bool start_part(const DeltaInputs &p, const Slots &slots, RunFilter filter,
                                           Place &place) {
  place.run = p.runs[place.index];
  place.after = slots.cut(place.run, place.part);
  return start_place(filter, place);
}

// The window of a place whose item is known.
__device__ __forceinline__ bool start_window(const DeltaInputs &p, const Slots &slots, const Window &window,
                                             RunFilter filter, Place &place) {
  const int64_t unit = window.first_unit + place.item;
  const auto parts = uint32_t(slots.parts);  // unsigned, or a register waits with its sign for the walk's end
  place.index = unit / parts, place.part = int32_t(unit % parts);
  if (place.index >= p.num_runs || !start_part(p, slots, filter, place)) return false;
  const int32_t left = place.chunks - window.begin;
  if (left <= 0) return false;
  place.skipped = window.begin, place.later = left > window.chunks;
  place.chunks = min(left, window.chunks);
  place.run.begin += window.begin * kChunk;
  place.run.length = min(place.run.length - window.begin * kChunk, window.chunks * kChunk);
  place.run.checkpoint += (place.part * slots.chunks + window.begin) >> slots.log2_of_stretch();
  return true;
}

// How many chunks of a part have a share in what leaves it, counted from the side where it leaves: of the states
// that enter the farthest of them, and all beyond, less than the decay cutoff is left. -1: more is left of what
// enters the part. By a warp.
__device__ __forceinline__ int chunks_that_count(const Slots &slots, int64_t first, const Place &place,
                                                 int32_t heads, bool reversed) {
  const float least = log2f(kDecayCutoff);
  const int lane = threadIdx.x % 32;
  float before = 0;
  int count = 1;
  for (int n = 0; n < place.chunks; n += 32) {
    float sum = 0;
    if (n + lane < place.chunks) {
      const int chunk = reversed ? n + lane : place.chunks - 1 - n - lane;
      const char *const bounds = slots.at(first + chunk, heads, place.head) + kFactors + kBounds;
      const float4 x = *reinterpret_cast<const float4 *>(bounds);
      sum = x.x + x.y + x.z + x.w;
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    const unsigned left = __ballot_sync(~0u, n + lane < place.chunks && !(before + sum < least));
    if (left) count = n + 33 - __clz(int(left));  // the next one, too: it is walked from nothing
    before += __shfl_sync(~0u, sum, 31);
  }
  return before < least ? count : -1;
}
// Takes from a part the chunks that have no share in what leaves it. By a warp, after a barrier of the block and
// before the next. `tells`: this block writes Slots::forgets.
__device__ __forceinline__ void skip_forgotten(const DeltaInputs &p, const Slots &slots, Place &place,
                                               bool reversed, bool tells) {
  const int count =
      chunks_that_count(slots, slots.first_of_part(place.index, place.part, place.run), place, p.heads, reversed);
  __syncwarp();
  if (threadIdx.x % 32 > 0) return;
  place.forgets = count >= 0;
  if (tells && slots.parts > 1) slots.forgets(p, place.index, place.part, place.head) = count >= 0;
  if (count < 0 || count == place.chunks) return;
  if (reversed) {
    place.run.length = count * kChunk;
  } else {
    place.skipped = place.chunks - count;
    place.run.begin += place.skipped * kChunk, place.run.length -= place.skipped * kChunk;
  }
  place.chunks = count;
  place.boxed = min(place.boxed, place.run.length / kChunk);
}

__device__ __forceinline__ void wait_before(uint32_t empty, int use) {
  if (use > 0) hopper::barrier_wait(empty, (use + 1) & 1);
}

// The two walkers of a block take turns with the tensor cores: left alone they work in step, round at the same time
// and leave the tensor cores idle meanwhile. A turn is for issuing products; both have as many of them in a chunk.
struct Turns {
  int barrier;  // 1: the first walker's, 2: the other's, 0: there is no other
  // The first walker has the first turn.
  __device__ __forceinline__ void begin() const {
    if (barrier == 2) pass();
  }
  __device__ __forceinline__ void wait() const {
    if (barrier) asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kWalkers * kGroup) : "memory");
  }
  __device__ __forceinline__ void pass() const {
    if (barrier) asm volatile("bar.arrive %0, %1;" ::"r"(3 - barrier), "n"(kWalkers * kGroup) : "memory");
  }
};

// Copies by kGroup threads.
struct Copier {
  const DeltaInputs &p;
  const Place &place;
  const bool slow;
  // A tensor's head that serves the block's: found once for all chunks, since it takes a division.
  __device__ __forceinline__ int32_t head_of(const Tensor &t) const {
    return int32_t(int64_t{place.head} * t.heads / p.heads);
  }
  // Where this thread's first piece of a chunk's rows lies, of kColumns.
  template <int kColumns>
  __device__ __forceinline__ const char *begin(const Tensor &t, int32_t head, int chunk) const {
    const int thread = this_thread(), row = thread / (kColumns / 8), piece = thread % (kColumns / 8);
    return static_cast<const char *>(t.data) +
           2 * (offset_of(t.strides, place.run.row, place.run.begin + chunk * kChunk + row, head) + 8 * piece);
  }
  // From there `count` rows, 16 bytes a piece; zeros after them, and after the tensor's columns. kFlip = 48: the
  // blocks of 16 tokens lie in flipped order, token t in row t ^ 48.
  template <int kColumns, int kFlip>
  __device__ __forceinline__ void rows(uint32_t to, const Tensor &t, const char *from, int column,
                                       int count) const {
    constexpr int kPieces = kColumns / 8, kRows = kGroup / kPieces;
    const int thread = this_thread(), row = thread / kPieces, piece = thread % kPieces;
    if (column + 8 * piece >= t.dim) count = 0;
    to += piece / 8 * kPanel + swizzled(row, piece % 8);
    const int64_t step = 2 * kRows * t.strides.token;
    copy_pieces<kChunk / kRows>(slow, [&](int i, auto copy) {
      const bool there = row + kRows * i < count;
      copy(to + ((kRows * i) ^ kFlip) * 128, there ? from + i * step : p.k.data, there);
    });
  }
};

// ---- A walking warpgroup. Accumulators as wgmma has them: element 4j + 2r + e of a lane is row 16 warp + 8r +
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
__device__ __forceinline__ void store_word(uint32_t to, uint32_t x, bool valid) {  // without a branch
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.shared.u32 [%0], %1;\n}" ::"r"(to), "r"(x),
               "r"(int(valid))
               : "memory");
}
__device__ __forceinline__ float2 load_pair(uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}
// f(i, factors of the columns of elements i and i + 1, as i + 2 and i + 3). kFlip = 48: of tokens in flipped order.
template <int kFlip = 0, typename F>
__device__ __forceinline__ void by_token(uint32_t factors, F f) {
  const uint32_t from = factors + threadIdx.x % 4 * 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) f(4 * j, load_pair(from + ((32 * j) ^ (4 * kFlip))));
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
// sum (64 rows of K: a panel of k or q) += or = x times it, over tokens. kFlip = 48: x in flipped order, the panel
// not.
template <typename T, int kFlip = 0>
__device__ __forceinline__ void multiply_tokens(float (&sum)[32], const uint32_t (&x)[16], uint32_t panel,
                                                bool accumulate) {
#pragma unroll
  for (int s = 0; s < 4; ++s)
    multiply<T, 64, true>(sum, x + 4 * s,
                          hopper::advance(hopper::tile_descriptor<128>(panel), (s ^ kFlip / 16) * 2048),
                          s > 0 || accumulate);
}

// y (64 tokens) = a state in two parts times the rows of k.
template <typename T>
__device__ __forceinline__ void multiply_state(float (&y)[32], const uint32_t (&high)[32],
                                               const uint32_t (&low)[32], uint32_t tile) {
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    const uint64_t b = hopper::advance(hopper::tile_descriptor<128>(tile + s / 4 * kPanel), s % 4 * 32);
    multiply<T, 64, false>(y, high + 4 * s, b, s > 0);
    multiply<T, 64, false>(y, low + 4 * s, b, true);
  }
}
// first and second (64 rows of K each) += or = x in two parts times the panels of k, over tokens.
template <typename T>
__device__ __forceinline__ void multiply_tokens(float (&first)[32], float (&second)[32], const uint32_t (&high)[16],
                                                const uint32_t (&low)[16], uint32_t tile, bool accumulate) {
  multiply_tokens<T>(first, high, tile, accumulate);
  multiply_tokens<T>(first, low, tile, true);
  multiply_tokens<T>(second, high, tile + kPanel, accumulate);
  multiply_tokens<T>(second, low, tile + kPanel, true);
}
// The same; rounds x piece by piece, between the tensor cores' work on the pieces before.
// x is left in two parts.
template <typename T, bool kAdd, int kFlip = 0>
__device__ __forceinline__ void multiply_tokens(float (&first)[32], float (&second)[32], const float (&x)[32],
                                                uint32_t (&high)[16], uint32_t (&low)[16], uint32_t tile) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    split<T, 8>(x + 8 * s, high + 4 * s, low + 4 * s);
    hopper::wgmma_begin();
    const uint64_t b = hopper::advance(hopper::tile_descriptor<128>(tile), (s ^ kFlip / 16) * 2048);
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
// What there is of a state in memory: at most 128 rows of K and columns of V, multiples of 16; elements from a row
// to the next.
struct Extent {
  int32_t rows, columns, stride;
};
// f(element, row, column of the slice) of what there is.
template <typename F>
__device__ __forceinline__ void each_there(const Extent &of, int32_t slice, F f) {
  const int columns = of.columns - slice * kSlice;
  if (of.rows == kDim && columns >= kSlice) return each_of_state(f);
  each_of_state([&](int i, int row, int v) {
    if (row < of.rows && v < columns) f(i, row, v);
  });
}
// A slice of it; zeros where nothing is.
template <typename T>
__device__ __forceinline__ void load_slice(float (&s)[64], const T *from, const Extent &of, int32_t slice) {
  from += slice * kSlice;
#pragma unroll
  for (float &x : s) x = 0;
  each_there(of, slice, [&](int i, int row, int v) { s[i] = float(from[row * of.stride + v]); });
}
template <typename F>
__device__ __forceinline__ void store_slice(float *to, const Extent &of, int32_t slice, F value) {
  to += slice * kSlice;
  each_there(of, slice, [&](int i, int row, int v) { to[row * of.stride + v] = value(i); });
}
// The same rounded, to 16 bits.
template <typename T>
__device__ __forceinline__ void store_rounded(T *to, const uint32_t (&high)[32], const Extent &of, int32_t slice) {
  const int thread = this_thread(), lane = thread % 32, first = slice * kSlice + thread / 32 * 16;
  T *const at = to + lane / 4 * of.stride + first + lane % 4 * 2;
  if (first >= of.columns) return;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const uint32_t pairs = transpose_pairs(high[i]);
    if (i / 4 * 16 < of.rows) *reinterpret_cast<uint32_t *>(at + i / 2 * 8 * of.stride + i % 2 * 8) = pairs;
  }
}

}  // namespace lasp::gpu::delta_hopper
