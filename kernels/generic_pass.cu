// LinearPass for any shape and type: the recurrence itself, token by token, in IEEE float32 on the CUDA cores. No
// ratio of decays is ever formed, so that no decay is too strong for it. The path of float32 tensors, of
// per-channel decay, of layouts that the copy engine cannot read, and of the single steps of decoding.
//
// A block owns (run, head, 32 columns of the state), a warp 32 of the rows, a thread 8 rows by 4 columns in registers:
// it reads 20 numbers of a token from shared memory for 64 to 128 operations. A column's sum is added up over the four
// lanes that share it by shuffles, over the warps every kBlock tokens.
//
// Shared memory, floats: a, b [kBlock][rows], c [kBlock][32], decay codes [kBlock][rows | 32 | 1], whether they are
// weak [kBlock][warps | 1], parts of y [warps][kBlock][32].
#include "device.cuh"

namespace lasp::gpu {
namespace {

constexpr int kBlock = 16;  // tokens held in shared memory at once
constexpr int kTile = 32;   // rows of a warp and columns of a block
constexpr int kOwnRows = 8, kOwnColumns = 4;  // of a thread
constexpr int kAcross = kTile / kOwnColumns;    // lanes side by side; kTile / kAcross of them above each other
constexpr unsigned kWarp = 0xffffffffu;

// Which elements of the state a token's decay multiplies alike.
enum class Apply { kNothing, kAll, kRows, kColumns };

struct Shared {
  float *a, *b, *c, *decay, *weak, *parts;
  __host__ __device__ static int64_t decay_floats(Apply apply, int rows) {
    return apply == Apply::kRows ? kBlock * rows : apply == Apply::kColumns ? kBlock * kTile : kBlock;
  }
  __host__ __device__ static int64_t floats(Apply apply, int rows) {
    const int warps = rows / kTile;
    return 2 * kBlock * rows + kBlock * kTile + decay_floats(apply, rows) + kBlock * warps + warps * kBlock * kTile;
  }
  __device__ Shared(float *memory, Apply apply, int rows) {
    a = memory;
    b = a + kBlock * rows;
    c = b + kBlock * rows;
    decay = c + kBlock * kTile;
    weak = decay + decay_floats(apply, rows);
    parts = weak + kBlock * (rows / kTile);
  }
};

// One element of tokens begin, begin + step .. of a head, as many as a thread asks for at once; of a token that is not
// there zero.
constexpr int kAtOnce = 4;
template <class Put>
__device__ void load_tokens(const void *data, DType type, int64_t at, int64_t stride, int begin, int step, int count,
                            bool there, Put put) {
  float x[kAtOnce];
  const auto load = [&](const auto *from) {
    from += at + begin * stride;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i, from += step * stride)
      x[i] = there && begin + i * step < count ? as_float(*from) : 0.0f;
  };
  switch (type) {
    case DType::kBFloat16: load(static_cast<const __nv_bfloat16 *>(data)); break;
    case DType::kFloat16: load(static_cast<const __half *>(data)); break;
    default: load(static_cast<const float *>(data));
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) put(begin + i * step, x[i]);
}

// Into [kBlock][rows], a thread to a row.
template <class Put>
__device__ void load_rows(const void *data, DType type, int64_t base, int64_t stride, int dim, int count, Put put) {
  const int d = threadIdx.x;
#pragma unroll 1
  for (int t = 0; t < kBlock; t += kAtOnce) load_tokens(data, type, base + d, stride, t, 1, count, d < dim, put);
}

// Into [kBlock][32], columns [from, from + 32), a warp to a token.
template <class Put>
__device__ void load_columns(const void *data, DType type, int64_t base, int64_t stride, int dim, int from, int count,
                             Put put) {
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile, warps = blockDim.x / kTile;
#pragma unroll 1
  for (int t = warp; t < kBlock; t += kAtOnce * warps)
    load_tokens(data, type, base + from + lane, stride, t, warps, count, from + lane < dim, put);
}

// Codes, and for each 32 of them whether all are weak.
template <Apply kApply>
__device__ void load_decay(const Shared &s, const GenericPass &p, const Run &run, int64_t begin, int count, int head,
                           int column) {
  if constexpr (kApply == Apply::kNothing) return;
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile, rows = blockDim.x;
  const int64_t base = offset_of(p.g_strides, run.row, begin, head);
  if constexpr (kApply == Apply::kAll) {
    if (threadIdx.x >= kBlock) return;
    const float g = threadIdx.x >= count      ? 0.0f
                    : p.decay == Decay::kHead ? static_cast<const float *>(p.g)[head]
                                              : load_element(p.g, p.decay_dtype, base + threadIdx.x * p.g_strides.token);
    s.decay[threadIdx.x] = decay_code(g);
  } else if constexpr (kApply == Apply::kRows) {
    load_rows(p.g, p.decay_dtype, base, p.g_strides.token, p.a.dim, count, [&](int t, float g) {
      const float code = decay_code(g);
      s.decay[t * rows + threadIdx.x] = code;
      const bool weak = __all_sync(kWarp, signbit(code));
      if (lane == 0) s.weak[t * (rows / kTile) + warp] = weak;
    });
  } else {
    load_columns(p.g, p.decay_dtype, base, p.g_strides.token, p.y.dim, column, count, [&](int t, float g) {
      const float code = decay_code(g);
      const bool weak = __all_sync(kWarp, signbit(code));
      if (t >= kBlock) return;
      s.decay[t * kTile + lane] = code;
      if (lane == 0) s.weak[t] = weak;
    });
  }
}

// What is done with a token: the state takes it in, y reads the state, in which order.
enum class Mode { kReadOnly, kForward, kForwardStates, kReversed, kReversedStates };
__device__ constexpr bool updates(Mode mode) { return mode != Mode::kReadOnly; }
__device__ constexpr bool reads(Mode mode) { return mode != Mode::kForwardStates && mode != Mode::kReversedStates; }
__device__ constexpr bool is_reversed(Mode mode) {
  return mode == Mode::kReversed || mode == Mode::kReversedStates;
}

// What a thread needs of a token.
template <Apply kApply>
struct Token {
  static constexpr int kCodes = kApply == Apply::kRows ? kOwnRows : kApply == Apply::kColumns ? kOwnColumns : 1;
  float a[kOwnRows], b[kOwnRows], c[kOwnColumns], code[kCodes];
  bool weak;  // all codes of the warp
};

template <int kCount>
__device__ void load_vector(float (&to)[kCount], const float *from) {
  static_assert(kCount % 4 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 x = *reinterpret_cast<const float4 *>(from + i);
    to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
  }
}

template <Apply kApply, Mode kMode>
__device__ Token<kApply> load_token(const Shared &s, int t, int rows) {
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  const int row = warp * kTile + lane / kAcross * kOwnRows, column = lane % kAcross * kOwnColumns;
  Token<kApply> token;
  if (reads(kMode)) load_vector(token.a, s.a + t * rows + row);
  if (!updates(kMode)) return token;
  load_vector(token.b, s.b + t * rows + row);
  load_vector(token.c, s.c + t * kTile + column);
  if constexpr (kApply == Apply::kAll) {
    token.code[0] = s.decay[t];
    token.weak = signbit(token.code[0]);
  } else if constexpr (kApply == Apply::kRows) {
    load_vector(token.code, s.decay + t * rows + row);
    token.weak = s.weak[t * (rows / kTile) + warp] != 0;
  } else if constexpr (kApply == Apply::kColumns) {
    load_vector(token.code, s.decay + t * kTile + column);
    token.weak = s.weak[t] != 0;
  }
  return token;
}

using State = float[kOwnRows][kOwnColumns];

// R = decay * R + b c^T before the read; reversed: R + b c^T before it and decay * R after it. `sums`: this thread's
// part of y.
template <Apply kApply, Mode kMode, bool kWeakAll>
__device__ void take_token(State &r, const Token<kApply> &token, float (&sums)[kOwnColumns]) {
  constexpr bool kDecays = kApply != Apply::kNothing && updates(kMode);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      float x = r[i][j];
      const auto decay = [&] {
        const float code = token.code[kApply == Apply::kRows ? i : kApply == Apply::kColumns ? j : 0];
        x = kWeakAll ? fmaf(x, code, x) : decayed(x, code);
      };
      if constexpr (kDecays && !is_reversed(kMode)) decay();
      if constexpr (updates(kMode)) x = fmaf(token.b[i], token.c[j], x);
      if constexpr (reads(kMode)) sums[j] = fmaf(token.a[i], x, sums[j]);
      if constexpr (kDecays && is_reversed(kMode)) decay();
      r[i][j] = x;
    }
  }
}

// The sums over the four lanes that share their columns: each lane ends with one of the warp's 32 columns, `column`.
__device__ int column_of_sum() {
  const int lane = threadIdx.x % kTile;
  return lane % kAcross * kOwnColumns + lane / 16 * 2 + lane / 8 % 2;
}
__device__ float add_lanes(const float (&sums)[kOwnColumns]) {
  const bool upper = threadIdx.x & 16, odd = threadIdx.x & 8;
  const float two[2] = {(upper ? sums[2] : sums[0]) + __shfl_xor_sync(kWarp, upper ? sums[0] : sums[2], 16),
                        (upper ? sums[3] : sums[1]) + __shfl_xor_sync(kWarp, upper ? sums[1] : sums[3], 16)};
  return (odd ? two[1] : two[0]) + __shfl_xor_sync(kWarp, odd ? two[0] : two[1], 8);
}

// The tokens in shared memory, in order.
template <Apply kApply, Mode kMode>
__device__ void take_block(State &r, const Shared &s, int count, int rows) {
  const int warp = threadIdx.x / kTile, column = column_of_sum();
  const auto token_at = [&](int i) { return is_reversed(kMode) ? count - 1 - i : i; };
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const Token<kApply> token = load_token<kApply, kMode>(s, token_at(i), rows);
    float sums[kOwnColumns] = {};
    if (kApply != Apply::kNothing && updates(kMode) && token.weak) {
      take_token<kApply, kMode, true>(r, token, sums);
    } else {
      take_token<kApply, kMode, false>(r, token, sums);
    }
    if (reads(kMode)) s.parts[(warp * kBlock + token_at(i)) * kTile + column] = add_lanes(sums);
  }
}

// Where a thread's part of a state lies in memory: in its own order, or transposed.
struct StatePlace {
  int64_t row_stride, column_stride, own;
  int rows, columns;  // that exist
  __device__ StatePlace(const GenericPass &p, int column) {
    const int lane = threadIdx.x % kTile;
    const int row = threadIdx.x / kTile * kTile + lane / kAcross * kOwnRows;
    column += lane % kAcross * kOwnColumns;
    row_stride = p.state_transposed ? 1 : p.y.dim;
    column_stride = p.state_transposed ? p.a.dim : 1;
    own = row * row_stride + column * column_stride;
    rows = min(kOwnRows, p.a.dim - row);
    columns = min(kOwnColumns, p.y.dim - column);
  }
  template <class Visit>
  __device__ void each(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j)
        if (i < rows && j < columns) visit(i, j, own + i * row_stride + j * column_stride);
  }
  // Four neighbours of a row at once, where they are all there.
  __device__ bool four(const GenericPass &p, const void *states) const {
    return !p.state_transposed && p.y.dim % 4 == 0 && reinterpret_cast<uintptr_t>(states) % 16 == 0;
  }
};

__device__ void load_state(State &r, const GenericPass &p, int column, int64_t at) {
  const StatePlace place(p, column);
  if (p.state_in == nullptr) return;
  if (!place.four(p, p.state_in)) {
    place.each([&](int i, int j, int64_t offset) { r[i][j] = p.in_scale * p.state_in[at + offset]; });
    return;
  }
  if (place.columns <= 0) return;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    if (i >= place.rows) continue;
    load_vector(r[i], p.state_in + at + place.own + i * place.row_stride);
    for (float &x : r[i]) x *= p.in_scale;
  }
}

__device__ void store_state(const State &r, const GenericPass &p, int column, float *states, int64_t at,
                            float scale) {
  const StatePlace place(p, column);
  if (!place.four(p, states)) {
    place.each([&](int i, int j, int64_t offset) { states[at + offset] = scale * r[i][j]; });
    return;
  }
  if (place.columns <= 0) return;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
    if (i < place.rows)
      *reinterpret_cast<float4 *>(states + at + place.own + i * place.row_stride) = {
          scale * r[i][0], scale * r[i][1], scale * r[i][2], scale * r[i][3]};
}

constexpr int kMostRows = 512;

template <Apply kApply>
__global__ void __launch_bounds__(kMostRows) pass_kernel(int64_t first, GenericPass p) {
  extern __shared__ float4 memory[];
  const int rows = blockDim.x, lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  const Shared s(reinterpret_cast<float *>(memory), kApply, rows);
  const int tiles = (p.y.dim + kTile - 1) / kTile;
  const int64_t item = first + blockIdx.x;
  const int column = static_cast<int>(item % tiles) * kTile, head = static_cast<int>(item / tiles % p.heads);
  const Run &run = p.runs[item / tiles / p.heads];  // read again when wanted: registers are for the state
  if (p.which != Reach::kAll) {
    const bool reached = run.entered && !(p.reach[run.state * p.heads + head] < kLeastReach);
    if (reached != (p.which == Reach::kWithin)) return;
  }
  const bool update = !p.fixed_state, read = p.y.data != nullptr;
  const int64_t state_size = int64_t{p.a.dim} * p.y.dim;
  State r = {};
  load_state(r, p, column, (run.state * p.heads + head) * state_size);
  const auto put = [&](float *states, int64_t index) {
    if (states != nullptr && index >= 0) store_state(r, p, column, states, (index * p.heads + head) * state_size, p.out_scale);
  };

  const int blocks = (run.length + kBlock - 1) / kBlock;
  for (int n = 0; n < blocks; ++n) {
    const int block = p.reversed ? blocks - 1 - n : n;
    const int64_t begin = run.begin + block * kBlock;
    const int count = min(kBlock, run.length - block * kBlock);
    if (p.checkpoints != nullptr && block * kBlock % kFusedCheckpoint == 0) {
      const int64_t at = (run.checkpoint + block * kBlock / kFusedCheckpoint) * p.heads + head;
      StatePlace(p, column).each([&](int i, int j, int64_t offset) {
        store_element(p.checkpoints, p.dtype, at * state_size + offset, r[i][j]);
      });
    }
    const auto rows_of = [&](float *to, const Tensor &x) {
      load_rows(x.data, p.dtype, offset_of(x, run.row, begin, head, p.heads), x.strides.token, p.a.dim, count,
                [&](int t, float value) { to[t * rows + threadIdx.x] = value; });
    };
    if (read) rows_of(s.a, p.a);
    if (update) {
      rows_of(s.b, p.b);
      load_columns(p.c.data, p.dtype, offset_of(p.c, run.row, begin, head, p.heads), p.c.strides.token, p.y.dim,
                   column, count, [&](int t, float value) {
                     if (t < kBlock) s.c[t * kTile + lane] = value;
                   });
      load_decay<kApply>(s, p, run, begin, count, head, column);
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

  put(p.state_out, run.state);
  put(p.edge_state, p.reversed ? run.starts : run.ends);
}

int padded_rows(int dim) { return static_cast<int>(ceil_div(dim, kTile)) * kTile; }

template <Apply kApply>
int launch(const GenericPass &p, Stream stream) {
  const int rows = padded_rows(p.a.dim);
  return launch_blocks(pass_kernel<kApply>, p.num_runs * p.heads * ceil_div(p.y.dim, kTile), rows,
                       Shared::floats(kApply, rows) * sizeof(float), stream, p);
}

template <Apply kApply>
int load() {
  return load_kernel(pass_kernel<kApply>, Shared::floats(kApply, kMostRows) * sizeof(float));
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
