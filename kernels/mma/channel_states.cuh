// Runs' own states with per-channel decay, and the runs' decays, in one reading of b, c and g: what launch.h's
// LinearPass leaves of a zero state, [K, V] with channels as rows. A block walks a run of one head in chunks of 16
// tokens, with a tile of the state: 64 or 128 rows and columns. Of each chunk, with D(j, end) the decay of a
// channel from token j to the end of the chunk in the walk:
//
//   R = D(chunk) R + sum_j (D(j, end) b_j) c_j^T
//
// D(j, end) b_j, with a factor of at most 1, is kept as a high and a low 16-bit part: the left operand of the
// update. A reversed walk gives each token the decay of the one after it, so that the token nearest to where the
// state leaves has the factor 1 as in a forward walk: the decay of the run's first token multiplies the finished
// state, in float32.
//
//   each warp   16 channels: their rows of R as float32 accumulators, and their decays; what belongs to a channel
//               stays in the four lanes that own its row
//   all         the copies of a chunk, kStages - 1 chunks ahead
//
// Barriers:
//
//   name            arrives and waits       protects
//   __syncthreads   all threads, once a     the chunk in its stage, until it is there; the stage of the chunk
//                   chunk                   before, until all have read it
//   groups of       each thread, its own    a chunk in its stage: waited for before its __syncthreads
//   cp.async
//   __syncwarp      a warp                  sums of decays that the lanes of a row share
//
// Between two __syncthreads:
//
//   warps    | decays, D b, R += of chunk n                |
//   copies   | chunks n + 1 .. n + kStages - 1 on their way |
#pragma once

#include "channel_parts.cuh"
#include "layout.cuh"

namespace lasp::gpu::mma::channel {

// Offsets in shared memory, bytes.
template <int kRows, int kColumns>
struct StatesLayout {
  static constexpr int kThreads = 2 * kRows;
  static constexpr int kWide = 2 * kColumns + 16, kNarrow = 2 * kRows + 16, kFull = 4 * kRows + 16;
  static constexpr int kBt = 0, kCt = kChunk * kNarrow, kGt = kCt + kChunk * kWide,
                       kStageBytes = kGt + kChunk * kFull;
  static constexpr int kStages = 5;
  // Before the stages: where the tensors are; by channel the log2 decay so far, and what state_decay hands to its
  // next call.
  static constexpr int kTotals = 3 * int(sizeof(Source)), kCompensations = kTotals + 8 * kRows;
  static constexpr int kFirstStage = kCompensations + 4 * kRows, kBytes = kFirstStage + kStages * kStageBytes;
  static_assert(kTotals % 16 == 0 && kFirstStage % 16 == 0 && kStageBytes % 16 == 0);
};

template <typename T, int kRows, int kColumns, bool kReversed>
struct StatesWalker {
  using L = StatesLayout<kRows, kColumns>;
  static constexpr int kSteps = kColumns / 16;
  const LinearPass &p;
  unsigned char *const memory;
  const uint32_t shared;
  const int lane = int(threadIdx.x) % 32, channel = int(threadIdx.x) / 32 * 16 + lane / 4;  // the other: 8 on
  const bool decay_is_float;
  float s[2 * kSteps][4] = {};

  __device__ StatesWalker(const LinearPass &pass, unsigned char *its)
      : p(pass), memory(its), shared(shared_address(its)), decay_is_float(pass.decay_dtype == DType::kFloat32) {
#pragma unroll
    for (int h = 0; h < 2; ++h) total(h) = 0, compensation(h) = 0;
  }
  // Of this lane's channels; the lanes of a row all write the same, once all have read.
  __device__ double &total(int h) const { return reinterpret_cast<double *>(memory + L::kTotals)[channel + 8 * h]; }
  __device__ float &compensation(int h) const {
    return reinterpret_cast<float *>(memory + L::kCompensations)[channel + 8 * h];
  }
  __device__ __forceinline__ float decay_state_by(float log2, int h) const {
    const double sum = total(h) + log2;
    float left_out = compensation(h);
    __syncwarp();
    const float factor = state_decay(log2, left_out);
    total(h) = sum, compensation(h) = left_out;
    return factor;
  }

  __device__ uint32_t stage(int i) const { return shared + L::kFirstStage + i * L::kStageBytes; }

  // One group of copies, even if there is nothing left to copy, so that groups can be counted.
  __device__ __forceinline__ void load(const Source *from, int to_stage, int chunk, int32_t length) const {
    if (kReversed ? chunk >= 0 : chunk * kChunk < length) {
      const int count = min(kChunk, length - chunk * kChunk), thread = thread_again();
      const uint32_t token = uint32_t(chunk) * kChunk, to = stage(to_stage);
      copy_tile<kRows / 8, L::kNarrow, L::kThreads>(to + L::kBt, from[0], 2 * kRows, token, count, thread);
      copy_tile<kColumns / 8, L::kWide, L::kThreads>(to + L::kCt, from[1], 2 * kColumns, token, count, thread);
      const int after = kReversed ? min(kChunk, length - 1 - chunk * kChunk) : count;
      copy_tile<kRows / 4, L::kFull, L::kThreads>(to + L::kGt, from[2], (decay_is_float ? 4 : 2) * kRows,
                                                  token + kReversed, after, thread);
    }
    copies_commit();
  }

  // The chunk in a stage: s = decay s + b c^T.
  __device__ __forceinline__ void step(int of_stage) {
    const uint32_t tile = stage(of_stage);
    Elements sums;
    read_log2_decays<T>(sums, tile + L::kGt + 2 * (lane % 4) * L::kFull, L::kFull, channel, decay_is_float);
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      factor[h] = decay_state_by(running_sums < kReversed ? Sum::kBefore : Sum::kAfter > (sums[h]), h);
    uint32_t raw[4], high[4], low[4];
    load_matrices_transposed(raw, tile + L::kBt + fragment_offset(L::kNarrow) + int(threadIdx.x) / 32 * 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 decay = {exp2_fast(sums[i % 2][i / 2 * 2]), exp2_fast(sums[i % 2][i / 2 * 2 + 1])};
      high[i] = scale_pair<T>(raw[i], decay, &low[i]);
    }
    const uint32_t at = tile + L::kCt + update_offset(L::kWide);
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      // Always true. Keeps the compiler from starting more products than there are registers for.
      if (n % 2 == 0 && 16 * n >= p.c.dim) break;
      uint32_t c[4];
      load_matrices_transposed(c, at + 32 * n);
      // The tensor cores cut off what they add: the chunk's own part comes from them, the sum is IEEE float32.
      float left[4] = {}, right[4] = {};
      multiply<T>(left, high, c[0], c[1]);
      multiply<T>(right, high, c[2], c[3]);
      multiply<T>(left, low, c[0], c[1]);
      multiply<T>(right, low, c[2], c[3]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[2 * n][j] = fmaf(s[2 * n][j], factor[j / 2], left[j]);
        s[2 * n + 1][j] = fmaf(s[2 * n + 1][j], factor[j / 2], right[j]);
      }
    }
  }

  // The decay of the run's first token, of a reversed walk.
  __device__ __forceinline__ void decay_first(const Source &g) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = channel + 8 * h;
      const float own = decay_is_float ? reinterpret_cast<const float *>(g.base)[at]
                                       : unpack<T>(reinterpret_cast<const uint16_t *>(g.base)[at]).x;
      const float factor = decay_state_by(clamped_log2(own), h);
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) s[i][2 * h] *= factor, s[i][2 * h + 1] *= factor;
    }
  }

  // The tile from `row` and `column` on of state `index`; the first of a row's tiles has the factors.
  __device__ __forceinline__ void write(int64_t index, int32_t row, int32_t column, float *factors) const {
    constexpr double kLn2Exactly = 0.693147180559945309417;
    const int64_t first = index * p.b.dim + row + channel;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float *const to = p.state_out + (first + 8 * h) * p.c.dim + column + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i)
        *reinterpret_cast<float2 *>(to + 8 * i) = {p.out_scale * s[i][2 * h], p.out_scale * s[i][2 * h + 1]};
      if (factors && column == 0 && lane % 4 == 0) factors[first + 8 * h] = decay_code(total(h) * kLn2Exactly);
    }
  }
};

template <typename T, int kRows, int kColumns, bool kReversed>
__global__ void __launch_bounds__(2 * kRows, kRows == 128 ? 2 : 4)
    channel_states_kernel(int64_t first, const __grid_constant__ LinearPass p, float *factors) {
  using L = StatesLayout<kRows, kColumns>;
  extern __shared__ __align__(16) unsigned char memory[];
  const int32_t across = p.c.dim / kColumns, tiles = p.b.dim / kRows * across;
  const int64_t block = first + blockIdx.x, item = block / tiles, head = item % p.heads;
  const int32_t tile = int32_t(block % tiles), row = tile / across * kRows, column = tile % across * kColumns;
  const Run run = p.runs[item / p.heads];
  if (run.length == 0) return;
  Source *const tensors = reinterpret_cast<Source *>(memory);
  if (threadIdx.x == 0) {
    const auto source = [&](const void *data, const Strides &strides, int64_t of_head, int32_t at, int bytes) {
      return Source{static_cast<char *>(const_cast<void *>(data)) +
                        bytes * (offset_of(strides, run.row, run.begin, of_head) + at),
                    uint32_t(bytes * strides.token), 0};
    };
    tensors[0] = source(p.b.data, p.b.strides, head * p.b.heads / p.heads, row, 2);
    tensors[1] = source(p.c.data, p.c.strides, head * p.c.heads / p.heads, column, 2);
    tensors[2] = source(p.g, p.g_strides, head, row, p.decay_dtype == DType::kFloat32 ? 4 : 2);
  }
  __syncthreads();

  StatesWalker<T, kRows, kColumns, kReversed> walker(p, memory);
  const int32_t length = run.length;
  constexpr int kStep = kReversed ? -1 : 1;
  int chunk = kReversed ? (length - 1) / kChunk : 0;
#pragma unroll 1
  for (int n = 0; n < L::kStages - 1; ++n) walker.load(tensors, n, chunk + n * kStep, length);
#pragma unroll 1
  for (int here = 0; kReversed ? chunk >= 0 : chunk * kChunk < length; chunk += kStep) {
    copies_wait<L::kStages - 2>();
    __syncthreads();  // the chunk is there for all, and all are done with the one before
    walker.load(tensors, here == 0 ? L::kStages - 1 : here - 1, chunk + (L::kStages - 1) * kStep, length);
    walker.step(here);
    here = here + 1 == L::kStages ? 0 : here + 1;
  }
  copies_wait<0>();
  __syncwarp();  // what the lanes of a row wrote last
  if (kReversed) walker.decay_first(tensors[2]);
  __syncwarp();
  walker.write(run.state * p.heads + head, row, column, factors);
}

// Calls `use` with the kernel for tiles of so many rows and columns and the direction, and with its layout.
template <typename T, typename Use>
int with_states_kernel(int rows, int columns, bool reversed, Use use) {
  const auto choose = [&]<int kRows, int kColumns>() {
    return reversed ? use(channel_states_kernel<T, kRows, kColumns, true>, StatesLayout<kRows, kColumns>())
                    : use(channel_states_kernel<T, kRows, kColumns, false>, StatesLayout<kRows, kColumns>());
  };
  if ((rows != 64 && rows != 128) || (columns != 64 && columns != 128)) return cudaErrorInvalidValue;
  if (rows == 128)
    return columns == 128 ? choose.template operator()<128, 128>() : choose.template operator()<128, 64>();
  return columns == 128 ? choose.template operator()<64, 128>() : choose.template operator()<64, 64>();
}

template <typename T>
int enqueue_states(const LinearPass &pass, float *factors, Stream stream) {
  const auto tile_of = [](int32_t dim) { return dim % 128 ? 64 : 128; };
  const int32_t rows = tile_of(pass.b.dim), columns = tile_of(pass.c.dim);
  if (pass.b.dim % rows || pass.c.dim % columns) return cudaErrorInvalidValue;
  const int64_t blocks = pass.num_runs * pass.heads * (pass.b.dim / rows) * (pass.c.dim / columns);
  return with_states_kernel<T>(rows, columns, pass.reversed, [&](auto kernel, auto layout) {
    return launch_blocks(kernel, blocks, layout.kThreads, layout.kBytes, stream, pass, factors);
  });
}

template <typename T>
int load_states() {
  for (const int rows : {64, 128})
    for (const int columns : {64, 128})
      for (const bool reversed : {false, true}) {
        const auto load_one = [](auto kernel, auto layout) { return load_kernel(kernel, layout.kBytes); };
        if (const int error = with_states_kernel<T>(rows, columns, reversed, load_one)) return error;
      }
  return cudaSuccess;
}

}  // namespace lasp::gpu::mma::channel
