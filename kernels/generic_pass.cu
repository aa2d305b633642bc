// LinearPass for any shape and type: the recurrence itself, token by token, in IEEE float32 on the CUDA cores. No
// ratio of decays is ever formed, so that no decay is too strong for it. The path of float32 tensors, of
// per-channel decay, of layouts that the copy engine cannot read, and of the single steps of decoding.
//
// A block owns (run, head, 32 columns of the state). Lane = column, warp = 32 rows: the state is 32 registers a
// thread, a token's dot product needs no shuffle, and warps meet only to add their parts of y, once every kBlock
// tokens.
//
// Shared memory, floats: a, b [kBlock][rows], c [kBlock][32], decay codes [kBlock][rows | 32 | 1], parts
// [warps][kBlock][32].
#include "device.cuh"

namespace lasp::gpu {
namespace {

constexpr int kBlock = 16;  // tokens held in shared memory at once
constexpr int kTile = 32;   // rows of a warp and columns of a block

// Which elements of the state a token's decay multiplies alike.
enum class Apply { kNothing, kAll, kRows, kColumns };

struct Shared {
  float *a, *b, *c, *decay, *parts;
  __host__ __device__ static int64_t decay_floats(Apply apply, int rows) {
    return apply == Apply::kRows ? kBlock * rows : apply == Apply::kColumns ? kBlock * kTile : kBlock;
  }
  __host__ __device__ static int64_t floats(Apply apply, int rows) {
    return 2 * kBlock * rows + kBlock * kTile + decay_floats(apply, rows) + rows / kTile * kBlock * kTile;
  }
  __device__ Shared(float *memory, Apply apply, int rows) {
    a = memory;
    b = a + kBlock * rows;
    c = b + kBlock * rows;
    decay = c + kBlock * kTile;
    parts = decay + decay_floats(apply, rows);
  }
};

// Tokens [begin, begin + count) of one head into [kBlock][width], columns [from, from + width); what is not there
// is `fill`.
__device__ void load_tile(float *to, int width, const void *data, DType type, int64_t token_stride, int64_t base,
                          int dim, int from, int count, float fill) {
  for (int i = threadIdx.x; i < kBlock * width; i += blockDim.x) {
    const int t = i / width, d = from + i % width;
    to[i] = t < count && d < dim ? load_element(data, type, base + t * token_stride + d) : fill;
  }
}

template <Apply kApply>
__device__ void load_decay(float *to, const GenericPass &p, const Run &run, int64_t begin, int count, int head,
                           int rows, int column) {
  if constexpr (kApply == Apply::kNothing) return;
  if (p.decay == Decay::kHead) {
    if (threadIdx.x < kBlock)
      to[threadIdx.x] = threadIdx.x < count ? decay_code(static_cast<const float *>(p.g)[head]) : -0.0f;
    return;
  }
  const int64_t base = offset_of(p.g_strides, run.row, begin, head);
  const int width = kApply == Apply::kRows ? rows : kApply == Apply::kColumns ? kTile : 1;
  const int from = kApply == Apply::kColumns ? column : 0;
  const int dim = kApply == Apply::kRows ? p.a.dim : kApply == Apply::kColumns ? p.y.dim : 1;
  load_tile(to, width, p.g, p.decay_dtype, p.g_strides.token, base, dim, from, count, 0.0f);
  for (int i = threadIdx.x; i < kBlock * width; i += blockDim.x) to[i] = decay_code(to[i]);
}

// What is done with a token: the state takes it in, y reads the state, in which order.
enum class Mode { kReadOnly, kForward, kForwardStates, kReversed, kReversedStates };
__device__ constexpr bool updates(Mode mode) { return mode != Mode::kReadOnly; }
__device__ constexpr bool reads(Mode mode) { return mode != Mode::kForwardStates && mode != Mode::kReversedStates; }
__device__ constexpr bool is_reversed(Mode mode) {
  return mode == Mode::kReversed || mode == Mode::kReversedStates;
}

// One token: R = decay * R + b c^T before the read; reversed: R + b c^T before it and decay * R after it.
template <Apply kApply, Mode kMode>
__device__ float take_token(float (&r)[kTile], const float *a, const float *b, const float *decay, float c) {
  constexpr bool kDecays = kApply != Apply::kNothing && updates(kMode);
  float4 e4 = {0, 0, 0, 0};
  if constexpr (kDecays && kApply != Apply::kRows) e4.x = e4.y = e4.z = e4.w = *decay;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kTile; i += 4) {
    const float4 a4 = reads(kMode) ? *reinterpret_cast<const float4 *>(a + i) : float4{};
    const float4 b4 = updates(kMode) ? *reinterpret_cast<const float4 *>(b + i) : float4{};
    if constexpr (kDecays && kApply == Apply::kRows) e4 = *reinterpret_cast<const float4 *>(decay + i);
    const float av[4] = {a4.x, a4.y, a4.z, a4.w}, bv[4] = {b4.x, b4.y, b4.z, b4.w},
                ev[4] = {e4.x, e4.y, e4.z, e4.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float x = r[i + j];
      if (kDecays && !is_reversed(kMode)) x = decayed(x, ev[j]);
      if (updates(kMode)) x = fmaf(bv[j], c, x);
      if (reads(kMode)) sum = fmaf(av[j], x, sum);
      if (kDecays && is_reversed(kMode)) x = decayed(x, ev[j]);
      r[i + j] = x;
    }
  }
  return sum;
}

// The tokens in shared memory, in order.
template <Apply kApply, Mode kMode>
__device__ void take_block(float (&r)[kTile], const Shared &s, int count, int rows) {
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int t = is_reversed(kMode) ? count - 1 - i : i;
    const float *decay = kApply == Apply::kRows      ? s.decay + t * rows + warp * kTile
                         : kApply == Apply::kColumns ? s.decay + t * kTile + lane
                                                     : s.decay + t;
    const float sum = take_token<kApply, kMode>(r, s.a + t * rows + warp * kTile, s.b + t * rows + warp * kTile,
                                                decay, s.c[t * kTile + lane]);
    if (reads(kMode)) s.parts[(warp * kBlock + t) * kTile + lane] = sum;
  }
}

template <Apply kApply, int kMostThreads>
__global__ void __launch_bounds__(kMostThreads) pass_kernel(int64_t first, GenericPass p) {
  extern __shared__ float4 memory[];
  const int rows = blockDim.x, lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  const Shared s(reinterpret_cast<float *>(memory), kApply, rows);
  const int tiles = (p.y.dim + kTile - 1) / kTile;
  const int64_t item = first + blockIdx.x;
  const int column = static_cast<int>(item % tiles) * kTile, head = static_cast<int>(item / tiles % p.heads);
  const Run run = p.runs[item / tiles / p.heads];
  if (p.which != Reach::kAll) {
    const bool reached = run.entered && !(p.reach[run.state * p.heads + head] < kLeastReach);
    if (reached != (p.which == Reach::kWithin)) return;
  }
  const bool update = !p.fixed_state, read = p.y.data != nullptr;

  // The state: this thread's column, rows [warp * 32, + 32).
  const int64_t row_stride = p.state_transposed ? 1 : p.y.dim, column_stride = p.state_transposed ? p.a.dim : 1;
  const int64_t state_size = int64_t{p.a.dim} * p.y.dim;
  const int64_t own = (column + lane) * column_stride + warp * kTile * row_stride;
  const int live = column + lane < p.y.dim ? min(kTile, p.a.dim - warp * kTile) : 0;  // rows that exist
  float r[kTile];
#pragma unroll
  for (int i = 0; i < kTile; ++i)
    r[i] = p.state_in != nullptr && i < live
               ? p.in_scale * p.state_in[(run.state * p.heads + head) * state_size + own + i * row_stride]
               : 0.0f;

  const auto put = [&](void *states, DType type, int64_t index, float scale) {
    if (states == nullptr || index < 0) return;
    const int64_t to = (index * p.heads + head) * state_size + own;
#pragma unroll
    for (int i = 0; i < kTile; ++i)
      if (i < live) store_element(states, type, to + i * row_stride, scale * r[i]);
  };

  const int blocks = (run.length + kBlock - 1) / kBlock;
  for (int n = 0; n < blocks; ++n) {
    const int block = p.reversed ? blocks - 1 - n : n;
    const int64_t begin = run.begin + block * kBlock;
    const int count = min(kBlock, run.length - block * kBlock);
    if (block * kBlock % kFusedCheckpoint == 0)
      put(p.checkpoints, p.dtype, run.checkpoint + block * kBlock / kFusedCheckpoint, 1);
    if (read)
      load_tile(s.a, rows, p.a.data, p.dtype, p.a.strides.token, offset_of(p.a, run.row, begin, head, p.heads),
                p.a.dim, 0, count, 0.0f);
    if (update) {
      load_tile(s.b, rows, p.b.data, p.dtype, p.b.strides.token, offset_of(p.b, run.row, begin, head, p.heads),
                p.a.dim, 0, count, 0.0f);
      load_tile(s.c, kTile, p.c.data, p.dtype, p.c.strides.token, offset_of(p.c, run.row, begin, head, p.heads),
                p.y.dim, column, count, 0.0f);
      load_decay<kApply>(s.decay, p, run, begin, count, head, rows, column);
    }
    __syncthreads();
    if (!update) {
      take_block<kApply, Mode::kReadOnly>(r, s, count, rows);
    } else if (p.reversed) {
      read ? take_block<kApply, Mode::kReversed>(r, s, count, rows)
           : take_block<kApply, Mode::kReversedStates>(r, s, count, rows);
    } else {
      read ? take_block<kApply, Mode::kForward>(r, s, count, rows)
           : take_block<kApply, Mode::kForwardStates>(r, s, count, rows);
    }
    __syncthreads();
    if (!read) continue;
    for (int t = warp; t < count; t += rows / kTile) {
      float sum = 0;
      for (int w = 0; w < rows / kTile; ++w) sum += s.parts[(w * kBlock + t) * kTile + lane];
      if (column + lane < p.y.dim)
        store_element(p.y.data, p.y_float32 ? DType::kFloat32 : p.dtype,
                      offset_of(p.y.strides, run.row, begin + t, head) + column + lane, p.scale * sum);
    }
  }

  put(p.state_out, DType::kFloat32, run.state, p.out_scale);
  put(p.edge_state, DType::kFloat32, p.reversed ? run.starts : run.ends, p.out_scale);
}

int padded_rows(int dim) { return static_cast<int>(ceil_div(dim, kTile)) * kTile; }
constexpr int kNarrow = 256, kWide = 512;  // rows: narrow blocks have more registers for each thread

template <Apply kApply>
int launch(const GenericPass &p, Stream stream) {
  const int rows = padded_rows(p.a.dim);
  const auto kernel = rows <= kNarrow ? pass_kernel<kApply, kNarrow> : pass_kernel<kApply, kWide>;
  return launch_blocks(kernel, p.num_runs * p.heads * ceil_div(p.y.dim, kTile), rows,
                       Shared::floats(kApply, rows) * sizeof(float), stream, p);
}

template <Apply kApply>
int load() {
  const int error = load_kernel(pass_kernel<kApply, kNarrow>, Shared::floats(kApply, kNarrow) * sizeof(float));
  return error ? error : load_kernel(pass_kernel<kApply, kWide>, Shared::floats(kApply, kWide) * sizeof(float));
}

}  // namespace

int launch_generic_pass(const GenericPass &p, Stream stream) {
  if (p.decay == Decay::kNone || p.fixed_state) return launch<Apply::kNothing>(p, stream);
  if (p.decay != Decay::kChannel) return launch<Apply::kAll>(p, stream);
  // A channel is a row of the state [K, V]: a column where the pass sees the state transposed.
  return p.state_transposed ? launch<Apply::kColumns>(p, stream) : launch<Apply::kRows>(p, stream);
}

int load_generic_pass() {
  for (const auto load_one : {load<Apply::kNothing>, load<Apply::kAll>, load<Apply::kRows>, load<Apply::kColumns>})
    if (const int error = load_one()) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu
