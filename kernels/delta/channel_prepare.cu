// What a chunk is before any state is known, where decay is per channel (layout.cuh, channel_layout.cuh). A block
// of eight warps works on one chunk and head after the other. Where no channel decays by more than kWidest in the
// chunk, scores are products of whole tiles, read and query with k 2^-G, in a high and a low part; else they are
// found by levels (channel_scores.cuh).
#include <algorithm>

#include "channel_beside.cuh"
#include "channel_layout.cuh"
#include "channel_scores.cuh"
#include "channel_sums.cuh"

namespace lasp::gpu::delta_hopper::channel {
namespace {

constexpr int kThreads = 256, kTileBytes = kChunk * kRow;
// Tiles of 64 rows: k, then read high; q, then query high; read low; query low; k 2^-G high and low. By levels: k,
// q, G in the place of two, the matrix. Then sums of 16 tokens, beta.
constexpr int kOfQ = kTileBytes, kOfReadLow = 2 * kTileBytes, kOfQueryLow = 3 * kTileBytes,
              kOfColumns = 4 * kTileBytes, kOfColumnsLow = 5 * kTileBytes, kOfSums = 2 * kTileBytes,
              kOfTotals = 6 * kTileBytes, kOfBeta = kOfTotals + 4 * 4 * kDim, kSharedBytes = kOfBeta + 4 * kChunk;
static_assert(4 * kChunk * kSumRow == 2 * kTileBytes && 4 * kChunk * kSquare == kTileBytes);
// Of narrow decays: everything scaled, to the slot's images and to tiles.
template <typename T>
__device__ __forceinline__ void scale_tokens(const Sums<kDim / 2> &sums, char *shared, char *to, bool has_q) {
  const float2 whole = {exp2_fast(sums.last.x), exp2_fast(sums.last.y)};
  const int in_row = sums.pair % 4 * 4, piece = sums.pair % 32 / 4;
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    const int row = sums.first + t;
    char *const tile = shared + row * kRow + 4 * sums.pair;
    char *const image = to + sums.pair / 32 * kPanel + swizzled(row, piece) + in_row;
    const auto put = [](char *at, uint32_t x) { *reinterpret_cast<uint32_t *>(at) = x; };
    const float2 g = sums.g[t], now = {exp2_fast(g.x), exp2_fast(g.y)}, back = {exp2_fast(-g.x), exp2_fast(-g.y)},
                 end = {whole.x * back.x, whole.y * back.y};
    const uint32_t k = *reinterpret_cast<const uint32_t *>(tile);
    uint32_t low;
    uint32_t high = mma::scale_pair<T>(k, now, &low);
    put(tile, high), put(tile + kOfReadLow, low), put(image + kReadHigh, high), put(image + kReadLow, low);
    high = mma::scale_pair<T>(k, end, &low);
    put(image + kWriteHigh, high), put(image + kWriteLow, low);
    high = mma::scale_pair<T>(k, back, &low);
    put(tile + kOfColumns, high), put(tile + kOfColumnsLow, low);
    if (!has_q) continue;
    high = mma::scale_pair<T>(*reinterpret_cast<const uint32_t *>(tile + kOfQ), now, &low);
    put(tile + kOfQ, high), put(tile + kOfQueryLow, low), put(image + kQuery, high);
  }
}

// Of narrow decays: four warps find A, four P, up to three blocks of 16 x 16 each. A: left in `square`, which lies
// in the place of tiles; one barrier of all threads.
template <typename T>
__device__ __forceinline__ void multiply_tiles(char *shared, float *square, char *to) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % 4, r = lane / 4, q2 = lane % 4 * 2;
  const bool queries = warp >= 4;
  const int count = part % 2 ? 2 : 3;

  const auto column_of = [&](int n) { return part == 0 && n == 2 ? 0 : part == 1 ? 2 + n : n; };
  const auto block_row = [&](int n) { return part == 0 ? (n == 2 ? 0 : 3) : 4 - part; };
  const uint32_t left = shared_address(shared) + (queries ? kOfQ : 0) + lane % 16 * kRow + lane / 16 * 16,
                 low = queries ? kOfQueryLow - kOfQ : kOfReadLow,
                 right =
                     shared_address(shared) + kOfColumns + (lane % 8 + lane / 16 * 8) * kRow + lane / 8 % 2 * 16;
  float x[3][2][4] = {};
#pragma unroll 2
  for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
    for (int n = 0; n < 3; ++n)
      if (n < count) {
        uint32_t a[4], a_low[4], b[4], b_low[4];
        const uint32_t row = left + block_row(n) * 16 * kRow + 32 * step,
                       column = right + column_of(n) * 16 * kRow + 32 * step;
        load_matrices(a, row), load_matrices(a_low, row + low);
        load_matrices(b, column), load_matrices(b_low, column + kTileBytes);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          mma::multiply<T>(x[n][h], a_low, b[2 * h], b[2 * h + 1]);
          mma::multiply<T>(x[n][h], a, b_low[2 * h], b_low[2 * h + 1]);
          mma::multiply<T>(x[n][h], a, b[2 * h], b[2 * h + 1]);
        }
      }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < 3; ++n)
    if (n < count)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = 16 * block_row(n) + 8 * half + r, j = 16 * column_of(n) + 8 * h + q2,
                    to_column = i - !queries;
          const float u = j <= to_column ? x[n][h][2 * half] : 0,
                      v = j + 1 <= to_column ? x[n][h][2 * half + 1] : 0;
          if (!queries) {
            *reinterpret_cast<float2 *>(square + i * kSquare + j) = float2{u, v};
            continue;
          }
          const uint32_t high = pack<T>(u, v);
          put(to + kPairP, 2 * block_row(n) + half, 2 * column_of(n) + h, lane, high,
              mma::pack_rest<T>(u, v, high));
        }
}

// Which chunk a slot has; count 0: none.
struct Chunk {
  Run run = {};
  int64_t token = 0;
  int32_t head = 0, count = 0;

  Chunk() = default;
  __device__ __forceinline__ Chunk(const DeltaInputs &p, const Slots &slots, int64_t slot, int32_t of_head)
      : head(of_head) {
    const int64_t index = slots.run_of(slot);
    if (index < 0) return;
    run = p.runs[index];
    if (!takes(slots.filter, run)) return;
    const int32_t begin = int32_t(slots.chunk_of(slot, index)) * kChunk;
    token = run.begin + begin;
    count = max(0, min(kChunk, run.length - begin));
  }
};

// What a chunk is found from: k and q on their way to tiles, the others in registers.
struct Loaded {
  Sums<kDim / 2> sums;
  float beta = 0;  // of token threadIdx.x, where there is one

  __device__ __forceinline__ static void copy(const DeltaInputs &p, const Chunk &chunk, char *shared) {
    const int thread = threadIdx.x, piece = thread % 16, row = thread / 16;
    const bool has_q = p.q.data != nullptr;
    const bool slow = !begins_on_piece(p.k.data) || (has_q && !begins_on_piece(p.q.data));
    const auto copy_rows = [&](const Tensor &t, char *tile, bool any) {
      const char *from = static_cast<const char *>(t.data) +
                         2 * (offset_of(t, chunk.run.row, chunk.token + row, chunk.head, p.heads) + 8 * piece);
      const uint32_t at = shared_address(tile) + row * kRow + 16 * piece;
      copy_pieces<4>(slow, [&](int i, auto copy) {
        const bool there = any && row + 16 * i < chunk.count && 8 * piece < t.dim;
        copy(at + 16 * i * kRow, there ? from + 32 * i * t.strides.token : p.k.data, there);
      });
    };
    copy_rows(p.k, shared, true);
    copy_rows(p.q, shared + kOfQ, has_q);
    copies_commit();
  }
  __device__ __forceinline__ void load(const DeltaInputs &p, const Chunk &chunk) {
    const int thread = threadIdx.x;
    sums.load(p, chunk.run, chunk.token, chunk.count, chunk.head, 0);
    beta = 0;
    if (thread < chunk.count)
      beta = load_element(p.beta, p.beta_dtype,
                          offset_of(p.beta_strides, chunk.run.row, chunk.token + thread, chunk.head));
  }
};

// By all threads: all but N. Then tiles of k and q are free, and `loaded`. Where in shared memory A is, for
// finish_loaded().
template <typename T>
__device__ __forceinline__ int begin_loaded(const DeltaInputs &p, Loaded &loaded, char *to, char *shared) {
  const int thread = threadIdx.x;
  Sums<kDim / 2> &sums = loaded.sums;
  if (thread < kChunk) {
    reinterpret_cast<float *>(shared + kOfBeta)[thread] = loaded.beta;
    reinterpret_cast<float *>(to + kFactors + kBeta)[thread] = loaded.beta;
  }
  sums.add_up(p.decay_dtype, reinterpret_cast<float *>(shared + kOfTotals));
  if (sums.first == 0) {
    float none = 0;
    reinterpret_cast<float2 *>(to + kFactors + kWhole)[sums.pair] =
        float2{state_decay(sums.last.x, none), state_decay(sums.last.y, none)};
  }
  copies_wait<0>();
  if (__syncthreads_and(sums.template narrow<T>())) {
    scale_tokens<T>(sums, shared, to, p.q.data != nullptr);
    __syncthreads();
    multiply_tiles<T>(shared, reinterpret_cast<float *>(shared + kOfReadLow), to);
    return kOfReadLow;
  } else {
    float *const rows = reinterpret_cast<float *>(shared + kOfSums);
    sums.template store<kSumRow>(rows);
    __syncthreads();
    find_scores(Scores<T>{shared, shared + kOfQ, rows}, reinterpret_cast<float *>(shared + kOfColumns), to);
    store_images<T, kThreads>(shared, shared + kOfQ, rows, to);
    __syncthreads();
    return kOfColumns;
  }
}
// By all threads: N, by the first four warps. The others pass as many barriers. Else compute-sanitizer's racecheck
// reports races that are none, since it counts the barriers that each warp has passed.
template <typename T>
__device__ __forceinline__ void finish_loaded(int square, char *to, char *shared) {
  if (threadIdx.x >= 128) {
    mma::sync_some<128>(3), mma::sync_some<128>(3);
    return;
  }
  mma::sync_some<128>(2);
  solve_square<T>(reinterpret_cast<float *>(shared + square), reinterpret_cast<const float *>(shared + kOfBeta),
                  to);
}

// All chunks; where a walk waits for them (channel_beside.cuh), in the order in which it takes them. While the
// first warps find N of a chunk, the next one is loaded.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    prepare_channel(const DeltaInputs p, const Slots slots, const Beside beside) {
  extern __shared__ __align__(16) char shared[];
  // In shared memory, since registers are few. Numbers count chunks and heads in the order of the walk; places are
  // those of Beside::ready, -1 where a number has no chunk.
  __shared__ int32_t upcoming, number, loaded_place, place;
  const auto all = int32_t(slots.most * p.heads);
  // By one thread: whether this block makes room for the walk. So many do as the walk needs, and not all: a GPU may
  // have fewer multiprocessors than an H200, or lend some of them only.
  const auto leaves = [&] {
    const int32_t most = min(2 * beside.walks, int32_t(gridDim.x) - 1);
    return multiprocessor() < beside.walks && atomicAdd(beside.ready + all + 1, 1) < most;
  };
  // The number after `last`, if this block takes another one.
  const auto take = [&](int32_t last) {
    if (!beside.ready) return last + int32_t(gridDim.x);
    if (last >= all || (last >= beside.early && leaves())) return all;
    return atomicAdd(beside.ready + all, 1);
  };
  if (beside.ready) begin_dependents();
  if (threadIdx.x == 0) upcoming = beside.ready ? take(0) : int32_t(blockIdx.x), loaded_place = -1;
  __syncthreads();
  Loaded loaded;
  for (bool more = true; more;) {
    if (threadIdx.x == 0) number = upcoming, place = loaded_place;
    int square = 0;
    if (loaded_place >= 0) {
      square = begin_loaded<T>(p, loaded, slots.data + int64_t{loaded_place} * slots.bytes, shared);
    } else {
      __syncthreads();
    }
    const int32_t there = number / p.heads, head = number % p.heads,
                  slot = beside.reversed ? int32_t(slots.most) - 1 - there : there;
    const Chunk chunk = number < all ? Chunk(p, slots, slot, head) : Chunk{};
    if (chunk.count > 0) loaded.copy(p, chunk, shared);
    if (threadIdx.x == kThreads - 1) {  // of a warp that has nothing else to do now
      loaded_place = chunk.count > 0 ? slot * p.heads + head : -1;
      upcoming = take(number);
    }
    if (place >= 0) finish_loaded<T>(square, slots.data + int64_t{place} * slots.bytes, shared);
    loaded.load(p, chunk);  // of no tokens, too: nothing is kept from turn to turn
    more = number < all;
    hopper::fence_async_proxy_global();  // walks read slots by the copy engine
    __syncthreads();
    if (threadIdx.x == 0 && place >= 0 && beside.ready) tell_ready(beside, place);
  }
}

}  // namespace

int launch_prepare(const DeltaInputs &p, const Slots &slots, const Beside &beside, Stream stream) {
  const int64_t all = slots.most * p.heads;
  if (all == 0) return cudaSuccess;
  if (beside.ready)
    if (const cudaError_t error =
            cudaMemsetAsync(beside.ready, 0, size_t(beside_bytes(slots.most, p.heads)), stream))
      return error;
  const auto kernel = p.dtype == DType::kBFloat16 ? prepare_channel<__nv_bfloat16> : prepare_channel<__half>;
  kernel<<<unsigned(std::min(all, 2 * kMultiprocessors)), kThreads, kSharedBytes, stream>>>(p, slots, beside);
  return cudaGetLastError();
}

int load_prepare() {
  const int error = load_kernel(prepare_channel<__nv_bfloat16>, kSharedBytes);
  return error ? error : load_kernel(prepare_channel<__half>, kSharedBytes);
}

}  // namespace lasp::gpu::delta_hopper::channel
