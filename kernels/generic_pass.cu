// LinearPass for any shape and type: the recurrence itself, token by token, in IEEE float32 on the CUDA cores. No
// ratio of decays is ever formed, so that no decay is too strong for it. The path of float32 tensors, of
// per-channel decay, of layouts that the copy engine cannot read, and of the single steps of decoding.
//
//   forward    R = exp(g_t) R + b_t c_t^T,  y_t = scale R^T a_t
//   reversed   R = R + b_t c_t^T,  y_t = scale R^T a_t,  R = exp(g_t) R
//
// A block owns (run, head, 32 columns of the state), a warp 32 of the rows, a thread 8 rows by 4 columns in
// registers: it reads 20 numbers of a token from shared memory for 64 to 128 operations. A column's sum is added up
// over the four lanes that share it by shuffles, over the warps once a block of tokens.
//
// Shared memory, floats: twice a, b [block][rows], c [block][32], decay codes [block][rows | 32 | 1], one in use
// while the other fills; whether 32 codes are weak [block][warps | 1], parts of y [warps][block][32].
//
// Barriers, all threads, of each block of tokens:
//
//   __syncthreads 1   its a, b, c and decay codes are there for all: before the tokens are taken
//   __syncthreads 2   all have taken its tokens: its parts of y are there, its half of shared memory is free
//   cp.async          each thread's own copies, waited for before __syncthreads 1
//
//   threads   | codes of n | 1 | tokens of n                   | 2 | y of n |
//   copies                     | a, b, c of n + 1 on their way              |
#include "generic_tiles.cuh"

namespace lasp::gpu {
namespace {

constexpr int kMostRows = 512;
constexpr int kOwnRows = 8, kOwnColumns = 4;  // of a thread
constexpr int kAcross = kTile / kOwnColumns;  // lanes side by side; kTile / kAcross of them above each other
constexpr unsigned kAllLanes = 0xffffffffu;

// Which elements of the state a token's decay multiplies alike.
enum class Apply { kNothing, kAll, kRows, kColumns };

struct Shared {
  int block;  // tokens held at once
  float *a, *b, *c, *decay, *weak, *parts;

  __host__ __device__ static int decay_width(Apply apply, int rows) {
    return apply == Apply::kRows ? rows : apply == Apply::kColumns ? kTile : 1;
  }
  __host__ __device__ static int stage_floats(Apply apply, int rows, int block) {
    return block * (2 * rows + kTile + decay_width(apply, rows));
  }
  __host__ __device__ static int floats(Apply apply, int rows, int block) {
    return 2 * stage_floats(apply, rows, block) + block * (rows / kTile) + rows * block;
  }
  // So many that as many blocks fit a multiprocessor as have registers there; no more than any device has.
  __host__ __device__ static int block_of(Apply apply, int rows) {
    constexpr int kMultiprocessor = 216 << 10, kDevices = 99 << 10;
    const int most = min(kDevices, kMultiprocessor / (kMostRows / rows)) / static_cast<int>(sizeof(float));
    int block = 16;
    while (block > 4 && floats(apply, rows, block) > most) block /= 2;
    return block;
  }
  __device__ Shared(float *memory, Apply apply, int rows) {
    block = block_of(apply, rows);
    a = memory;
    b = a + block * rows;
    c = b + block * rows;
    decay = c + block * kTile;
    weak = memory + 2 * stage_floats(apply, rows, block);
    parts = weak + block * (rows / kTile);
  }
};

// Logs to codes, of what this thread has fetched, and for each 32 of them whether all are weak.
template <Apply kApply>
__device__ void encode_decay(const Shared &s, int stage) {
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile, warps = blockDim.x / kTile;
  constexpr bool kByRows = kApply == Apply::kRows;
  const int width = kByRows ? blockDim.x : kTile;
  float *codes = s.decay + stage + (kByRows ? threadIdx.x : lane);
#pragma unroll 1
  for (int t = kByRows ? 0 : warp; t < s.block; t += kByRows ? 1 : warps) {
    const float code = decay_code(codes[t * width]);
    codes[t * width] = code;
    const bool weak = __all_sync(kAllLanes, signbit(code));
    if (lane == 0) s.weak[kByRows ? t * warps + warp : t] = weak;
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

template <Apply kApply, Mode kMode>
__device__ Token<kApply> load_token(const Shared &s, int stage, int t) {
  const int rows = blockDim.x, lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  const int row = warp * kTile + lane / kAcross * kOwnRows, column = lane % kAcross * kOwnColumns;
  Token<kApply> token;
  if (reads(kMode)) load_vector(token.a, s.a + stage + t * rows + row);
  if (!updates(kMode)) return token;
  load_vector(token.b, s.b + stage + t * rows + row);
  load_vector(token.c, s.c + stage + t * kTile + column);
  if constexpr (kApply == Apply::kAll) {
    token.code[0] = s.decay[stage + t];
    token.weak = signbit(token.code[0]);
  } else if constexpr (kApply == Apply::kRows) {
    load_vector(token.code, s.decay + stage + t * rows + row);
    token.weak = s.weak[t * (rows / kTile) + warp] != 0;
  } else if constexpr (kApply == Apply::kColumns) {
    load_vector(token.code, s.decay + stage + t * kTile + column);
    token.weak = s.weak[t] != 0;
  }
  return token;
}

using State = float[kOwnRows][kOwnColumns];

// R = decay * R + b c^T before the read; reversed: R + b c^T before it and decay * R after it. `sums`: this
// thread's part of y.
//
// What a weak decay takes away and what is written are added up before they join R, which is rounded with their
// sum: R alone moves by so little from token to token that its own rounding would go the same way every time.
template <Apply kApply, Mode kMode, bool kWeakAll>
__device__ void take_token(State &r, const Token<kApply> &token, float (&sums)[kOwnColumns]) {
  constexpr bool kDecays = kApply != Apply::kNothing && updates(kMode);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const float before = r[i][j];
      float seen = before;  // by y
      if constexpr (!kDecays) {
        if constexpr (updates(kMode)) r[i][j] = seen = fmaf(token.b[i], token.c[j], before);
      } else {
        const float code = token.code[kApply == Apply::kRows ? i : kApply == Apply::kColumns ? j : 0];
        const float written = token.b[i] * token.c[j];
        const bool weak = kWeakAll || signbit(code);
        if constexpr (is_reversed(kMode)) {
          seen = before + written;
          r[i][j] = weak ? before + fmaf(seen, code, written) : seen * code;  // seen (1 + code)
        } else {
          r[i][j] = seen = (weak ? before : 0.0f) + fmaf(before, code, written);
        }
      }
      if constexpr (reads(kMode)) sums[j] = fmaf(token.a[i], seen, sums[j]);
    }
  }
}

// The sums over the four lanes that share their columns: each lane ends with one of the warp's 32 columns,
// `column`.
__device__ int column_of_sum() {
  const int lane = threadIdx.x % kTile;
  return lane % kAcross * kOwnColumns + lane / 16 * 2 + lane / 8 % 2;
}
__device__ float add_lanes(const float (&sums)[kOwnColumns]) {
  const bool upper = threadIdx.x & 16, odd = threadIdx.x & 8;
  const float two[2] = {(upper ? sums[2] : sums[0]) + __shfl_xor_sync(kAllLanes, upper ? sums[0] : sums[2], 16),
                        (upper ? sums[3] : sums[1]) + __shfl_xor_sync(kAllLanes, upper ? sums[1] : sums[3], 16)};
  return (odd ? two[1] : two[0]) + __shfl_xor_sync(kAllLanes, odd ? two[0] : two[1], 8);
}

// The tokens of a stage, in order.
template <Apply kApply, Mode kMode>
__device__ void take_block(State &r, const Shared &s, int stage, int count) {
  const int warp = threadIdx.x / kTile, column = column_of_sum();
  const auto token_at = [&](int i) { return is_reversed(kMode) ? count - 1 - i : i; };
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const Token<kApply> token = load_token<kApply, kMode>(s, stage, token_at(i));
    float sums[kOwnColumns] = {};
    if (kApply != Apply::kNothing && updates(kMode) && token.weak) {
      take_token<kApply, kMode, true>(r, token, sums);
    } else {
      take_token<kApply, kMode, false>(r, token, sums);
    }
    if (reads(kMode)) s.parts[(warp * s.block + token_at(i)) * kTile + column] = add_lanes(sums);
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
                            float scale, bool adds) {
  const StatePlace place(p, column);
  if (adds || !place.four(p, states)) {
    place.each([&](int i, int j, int64_t offset) {
      put_element(states, DType::kFloat32, at + offset, scale * r[i][j], adds);
    });
    return;
  }
  if (place.columns <= 0) return;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i)
    if (i < place.rows)
      *reinterpret_cast<float4 *>(states + at + place.own + i * place.row_stride) = {
          scale * r[i][0], scale * r[i][1], scale * r[i][2], scale * r[i][3]};
}

template <Apply kApply>
__global__ void __launch_bounds__(kMostRows) pass_kernel(int64_t first, GenericPass p) {
  extern __shared__ float4 memory[];
  const int rows = blockDim.x, lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  const Shared s(reinterpret_cast<float *>(memory), kApply, rows);
  const int tiles = (p.y.dim + kTile - 1) / kTile;
  const int64_t item = first + blockIdx.x;
  const int column = static_cast<int>(item % tiles) * kTile, head = static_cast<int>(item / tiles % p.heads);
  const Run &run = p.runs[item / tiles / p.heads];  // read again when wanted: registers are for the state
  if (run.length == 0) return;
  // A step may have fewer tokens than the rows that its runs are made of.
  const int length = static_cast<int>(min(int64_t{run.length}, p.tokens - run.begin));
  if (p.filter != RunFilter::kAll) {
    const bool dependent = run.entered && !is_below_cutoff(p.entry_decay[run.state * p.heads + head]);
    if (dependent != (p.filter == RunFilter::kDependent)) return;
  }
  const bool update = !p.fixed_state, read = p.y.data != nullptr;
  const int64_t state_size = int64_t{p.a.dim} * p.y.dim;
  State r = {};
  load_state(r, p, column, (run.state * p.state_heads + head) * state_size);
  const auto put = [&](float *states, int64_t index, bool adds) {
    if (states != nullptr && index >= 0)
      store_state(r, p, column, states, (index * p.state_heads + head) * state_size, p.out_scale, adds);
  };

  const int blocks = (length + s.block - 1) / s.block, stage_floats = Shared::stage_floats(kApply, rows, s.block);
  const auto block_at = [&](int n) { return (p.reversed ? blocks - 1 - n : n) * s.block; };
  float g = 0;  // of token threadIdx.x, where a token has but one
  const auto fetch_block = [&](int n) {
    const int stage = n % 2 * stage_floats, block = block_at(n), count = min(s.block, length - block);
    const int64_t begin = run.begin + block;
    if (read) fetch_rows(s.a + stage, source_of(p.a, p.dtype, run, begin, head, p.heads, count), s.block);
    if (!update) return;
    fetch_rows(s.b + stage, source_of(p.b, p.dtype, run, begin, head, p.heads, count), s.block);
    fetch_columns(s.c + stage, source_of(p.c, p.dtype, run, begin, head, p.heads, count), column, s.block);
    if constexpr (kApply == Apply::kNothing) return;
    const Source decay = {p.g,
                          p.decay_dtype,
                          offset_of(p.g_strides, run.row, begin, head),
                          p.g_strides.token,
                          kApply == Apply::kRows ? p.a.dim : p.y.dim,
                          count};
    if constexpr (kApply == Apply::kRows) fetch_rows(s.decay + stage, decay, s.block);
    if constexpr (kApply == Apply::kColumns) fetch_columns(s.decay + stage, decay, column, s.block);
    if constexpr (kApply == Apply::kAll)
      if (threadIdx.x < count)
        g = p.decay == Decay::kHead ? static_cast<const float *>(p.g)[head]
                                    : load_element(p.g, p.decay_dtype, decay.base + threadIdx.x * decay.stride);
  };

  if (blocks > 0) fetch_block(0);
  for (int n = 0; n < blocks; ++n) {
    const int stage = n % 2 * stage_floats, block = block_at(n), count = min(s.block, length - block);
    if (p.checkpoints != nullptr && block % kFusedCheckpoint == 0) {
      const int64_t at = (run.checkpoint + block / kFusedCheckpoint) * p.heads + head;
      StatePlace(p, column).each([&](int i, int j, int64_t offset) {
        store_element(p.checkpoints, p.dtype, at * state_size + offset, r[i][j]);
      });
    }
    wait_for_tiles();
    if (update) {
      if constexpr (kApply == Apply::kAll) {
        if (threadIdx.x < s.block) s.decay[stage + threadIdx.x] = decay_code(g);
      } else if constexpr (kApply != Apply::kNothing) {
        encode_decay<kApply>(s, stage);
      }
    }
    __syncthreads();
    if (n + 1 < blocks) fetch_block(n + 1);
    if (!update) {
      take_block<kApply, Mode::kReadOnly>(r, s, stage, count);
    } else if (p.reversed) {
      read ? take_block<kApply, Mode::kReversed>(r, s, stage, count)
           : take_block<kApply, Mode::kReversedStates>(r, s, stage, count);
    } else {
      read ? take_block<kApply, Mode::kForward>(r, s, stage, count)
           : take_block<kApply, Mode::kForwardStates>(r, s, stage, count);
    }
    __syncthreads();
    if (!read) continue;
    const int64_t begin = run.begin + block;
    for (int t = warp; t < count; t += rows / kTile) {
      float sum = 0;
      for (int w = 0; w < rows / kTile; ++w) sum += s.parts[(w * s.block + t) * kTile + lane];
      if (column + lane < p.y.dim)
        put_element(p.y.data, p.y_float32 ? DType::kFloat32 : p.dtype,
                    offset_of(p.y.strides, run.row, begin + t, head) + column + lane, p.scale * sum, p.y_adds);
    }
  }

  put(p.state_out, run.state, false);
  put(p.edge_state, p.reversed ? run.starts : run.ends, p.edge_adds);
}

int padded_rows(int dim) { return static_cast<int>(ceil_div(dim, kTile)) * kTile; }

template <Apply kApply>
int launch(GenericPass p, Stream stream) {
  const int rows = padded_rows(p.a.dim);
  if (p.state_heads == 0) p.state_heads = p.heads;
  return launch_blocks(pass_kernel<kApply>, p.num_runs * p.heads * ceil_div(p.y.dim, kTile), rows,
                       Shared::floats(kApply, rows, Shared::block_of(kApply, rows)) * sizeof(float), stream, p);
}

template <Apply kApply>
int load() {
  int most = 0;
  for (int rows = kTile; rows <= kMostRows; rows += kTile)
    most = std::max(most, Shared::floats(kApply, rows, Shared::block_of(kApply, rows)));
  return load_kernel(pass_kernel<kApply>, most * sizeof(float));
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
