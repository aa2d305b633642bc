// What the two walks of the delta rule share: a block's tokens in shared memory, a warp's part of the state in
// registers, sums over its rows.
//
// A block owns (run, head, 32 columns of the state; of more than 256 rows 16). Its working warps hold all K rows of
// them: a group of kLanes lanes has two columns, and a lane of it 16 rows, four neighbouring ones at every 4
// kLanes. So a sum over rows stays in a warp, and a walk waits for no other warp between tokens. As many warps
// again, four at most, fetch the next tokens meanwhile: any type, stride and alignment becomes float32 in shared
// memory, with zeros where nothing is.
//
// Shared memory, floats: twice a, b [stage][rows], c [stage][columns], beta [stage], decay codes [stage][rows | 1],
// one in use while the other fills. One __syncthreads for each stage: the next one's tokens are there, this one's
// are taken.
#pragma once

#include <type_traits>

#include "delta.h"
#include "device.cuh"

namespace lasp::gpu::delta {

constexpr int kOwnRows = 16, kOwnColumns = 2;  // of a lane
constexpr unsigned kAllLanes = 0xffffffffu;

enum class Apply { kNothing, kAll, kRows };  // what of the state a token's decay multiplies alike

template <int kLanes, Apply kApply>
struct Block {
  static constexpr int kRows = kOwnRows * kLanes, kColumns = kLanes == 32 ? 16 : 32;
  static constexpr int kWorkers = kColumns * kLanes / 64, kFetchers = kWorkers < 4 ? kWorkers : 4;  // warps
  static constexpr int kThreads = 32 * (kWorkers + kFetchers),
                       kBlocks = kLanes > 8 || kApply == Apply::kRows ? 1 : 2;  // of a multiprocessor
  static constexpr int kStage = kRows <= 64 ? 32 : 2048 / kRows;  // tokens; divides delta_checkpoint_tokens
  static constexpr int kCodes = kApply == Apply::kRows ? kRows : kApply == Apply::kAll ? 1 : 0;
  static constexpr int kA = 0, kB = kStage * kRows, kC = 2 * kStage * kRows, kBeta = kC + kStage * kColumns,
                       kCode = kBeta + kStage, kStageFloats = (kCode + kStage * kCodes + 3) / 4 * 4;
  static constexpr int kBytes = 2 * kStageFloats * static_cast<int>(sizeof(float));
};

// Which lane of a warp has what.
template <int kLanes>
struct Place {
  static constexpr int kHalf = kLanes / 2;
  int lane, first_column;  // in the group; the group's first column in the block
  bool upper;              // after a sum over rows, whether this lane has the group's second column
  __device__ Place() {
    const int thread = threadIdx.x % 32, warp = threadIdx.x / 32;
    lane = thread % kLanes;
    first_column = (warp * (32 / kLanes) + thread / kLanes) * kOwnColumns;
    upper = (lane & kHalf) != 0;
  }
  __device__ int row(int i) const { return i / 4 * 4 * kLanes + lane * 4 + i % 4; }
  __device__ int own_column() const { return first_column + upper; }
  __device__ bool speaks() const { return lane % kHalf == 0; }  // of the lanes with the same sum
  // This lane's 16 numbers of a vector over rows.
  __device__ void load(float (&to)[kOwnRows], const float *vector) const {
#pragma unroll
    for (int i = 0; i < kOwnRows; i += 4) {
      const float4 x = *reinterpret_cast<const float4 *>(vector + i * kLanes + lane * 4);
      to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
    }
  }
  // Sums over the group's lanes, of both columns: each half of the lanes ends with one of them.
  __device__ float sum(float first, float second) const {
    float x = (upper ? second : first) + __shfl_xor_sync(kAllLanes, upper ? first : second, kHalf);
#pragma unroll
    for (int step = kHalf / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
  }
  // Both columns' numbers from each half's own.
  __device__ float2 both(float own) const {
    const float other = __shfl_xor_sync(kAllLanes, own, kHalf);
    return upper ? make_float2(other, own) : make_float2(own, other);
  }
};

using State = float[kOwnRows][kOwnColumns];

// Calls visit(element of the register state, offset in a state [K, columns]) for what exists.
template <int kLanes, class Visit>
__device__ void each_element(State &s, const Place<kLanes> &place, int rows, int first_column, int columns,
                             Visit visit) {
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int row = place.row(i);
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const int column = first_column + place.first_column + j;
      if (row < rows && column < columns) visit(s[i][j], row * columns + column);
    }
  }
}
template <int kLanes>
__device__ void store_state(State &s, const Place<kLanes> &place, int rows, int first_column, int columns,
                            float *to) {
  each_element(s, place, rows, first_column, columns, [&](float &x, int at) { to[at] = x; });
}

// Tokens [begin, begin + count) of a tensor's head, elements [first, first + width).
struct Slice {
  const void *data;
  DType type;
  int64_t base, stride;
  int first, dim, count;
};
__device__ inline Slice slice_of(const Tensor &x, DType type, const Run &run, int begin, int head, int heads,
                                 int count, int first = 0) {
  const int64_t base = x.data == nullptr ? 0 : offset_of(x, run.row, run.begin + begin, head, heads);
  return {x.data, type, base, x.strides.token, first, x.data == nullptr ? 0 : x.dim, count};
}

// Into [kStage][kWidth], by kThreads threads of which this is `thread`. `change` is applied to each number.
template <int kStage, int kWidth, int kThreads, class Change>
__device__ void fetch(float *to, const Slice &x, int thread, Change change) {
  constexpr int kAll = kStage * kWidth, kEach = (kAll + kThreads - 1) / kThreads, kAtOnce = kEach < 4 ? kEach : 4;
  static_assert(kEach % kAtOnce == 0 && (kAll % kThreads == 0 || kEach == 1));
  if (kAll < kThreads && thread >= kAll) return;
  with_elements(x.data, x.type, [&](const auto *data) {
#pragma unroll 1
    for (int begin = 0; begin < kEach; begin += kAtOnce) {
      float value[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = (begin + i) * kThreads + thread, t = at / kWidth, d = x.first + at % kWidth;
        value[i] = t < x.count && d < x.dim ? as_float(data[x.base + t * x.stride + d]) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) to[(begin + i) * kThreads + thread] = change(value[i]);
    }
  });
}

// The same by 16 bytes at a time, all of a thread's under way at once; false where they do not lie so.
template <class T, int kStage, int kWidth, int kThreads>
__device__ bool fetch_pieces(float *to, const Slice &x, int thread) {
  constexpr int kElements = 16 / sizeof(T), kOfToken = kWidth / kElements, kAll = kStage * kOfToken,
                kEach = (kAll + kThreads - 1) / kThreads;
  const T *const data = static_cast<const T *>(x.data) + x.base + x.first;
  if (x.dim % kElements != 0 || x.stride % kElements != 0 || reinterpret_cast<uintptr_t>(data) % 16 != 0)
    return false;
  uint4 piece[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kThreads + thread, t = at / kOfToken, d = at % kOfToken * kElements;
    piece[i] = {};
    if (at < kAll && t < x.count && x.first + d < x.dim)
      piece[i] = *reinterpret_cast<const uint4 *>(data + t * x.stride + d);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kThreads + thread;
    if (at >= kAll) continue;
    const T *const elements = reinterpret_cast<const T *>(&piece[i]);
#pragma unroll
    for (int e = 0; e < kElements; e += 4)
      *reinterpret_cast<float4 *>(to + at * kElements + e) = {as_float(elements[e]), as_float(elements[e + 1]),
                                                              as_float(elements[e + 2]), as_float(elements[e + 3])};
  }
  return true;
}

// A tensor's part of a stage.
template <int kStage, int kWidth, int kThreads>
__device__ void fetch_vectors(float *to, const Slice &x, int thread) {
  bool fetched = false;
  if (x.type == DType::kBFloat16) fetched = fetch_pieces<__nv_bfloat16, kStage, kWidth, kThreads>(to, x, thread);
  if (x.type == DType::kFloat16) fetched = fetch_pieces<__half, kStage, kWidth, kThreads>(to, x, thread);
  if (x.type == DType::kFloat32) fetched = fetch_pieces<float, kStage, kWidth, kThreads>(to, x, thread);
  if (!fetched) fetch<kStage, kWidth, kThreads>(to, x, thread, [](float number) { return number; });
}

// A stage of a walk: a and b are vectors over rows, c over the block's columns.
template <int kLanes, Apply kApply>
__device__ void fetch_stage(float *stage, const DeltaInputs &p, const Slice &a, const Slice &b, const Slice &c,
                            const Run &run, int begin, int head) {
  using B = Block<kLanes, kApply>;
  constexpr int kThreads = 32 * B::kFetchers;
  const int thread = threadIdx.x - 32 * B::kWorkers;
  if (a.data != nullptr) fetch_vectors<B::kStage, B::kRows, kThreads>(stage + B::kA, a, thread);
  fetch_vectors<B::kStage, B::kRows, kThreads>(stage + B::kB, b, thread);
  fetch_vectors<B::kStage, B::kColumns, kThreads>(stage + B::kC, c, thread);
  const int64_t token = run.begin + begin;
  if constexpr (kApply == Apply::kRows) {
    const Slice g = {p.g,     p.decay_dtype, offset_of(p.g_strides, run.row, token, head), p.g_strides.token, 0,
                     p.k.dim, b.count};
    fetch<B::kStage, B::kRows, kThreads>(stage + B::kCode, g, thread, [](float x) { return decay_code(x); });
  }
  if (thread >= b.count) return;
  const auto of_token = [&](const void *data, DType type, const Strides &strides) {
    return load_element(data, type, offset_of(strides, run.row, token + thread, head));
  };
  static_assert(B::kStage <= kThreads);
  stage[B::kBeta + thread] = of_token(p.beta, p.beta_dtype, p.beta_strides);
  if constexpr (kApply == Apply::kAll) {
    const float g =
        p.decay == Decay::kHead ? static_cast<const float *>(p.g)[head] : of_token(p.g, p.decay_dtype, p.g_strides);
    stage[B::kCode + thread] = decay_code(g);
  }
}

// A lane's decay codes of a token.
template <int kLanes, Apply kApply>
struct Codes {
  float code[kApply == Apply::kRows ? kOwnRows : 1];
  __device__ Codes(const Place<kLanes> &place, const float *codes, int t) {
    if constexpr (kApply == Apply::kRows) place.load(code, codes + t * kOwnRows * kLanes);
    if constexpr (kApply == Apply::kAll) code[0] = codes[t];
  }
  __device__ float of(int row) const { return code[kApply == Apply::kRows ? row : 0]; }
};

// Where a block works; `run` null: nowhere.
struct Item {
  const Run *run;
  int head, column;
};
__device__ inline Item item_of(int64_t index, const DeltaInputs &p, RunFilter filter, int columns, int tile) {
  const int tiles = (columns + tile - 1) / tile;
  const Run *run = p.runs + index / tiles / p.heads;
  const bool dependent = run->entered != 0;
  const bool skipped =
      run->length == 0 || (filter != RunFilter::kAll && dependent != (filter == RunFilter::kDependent));
  return {skipped ? nullptr : run, static_cast<int>(index / tiles % p.heads),
          static_cast<int>(index % tiles) * tile};
}

// Calls body of the instance that holds K rows and has the decay.
template <class Body>
int with_block(int dim_k, Decay decay, Body body) {
  const auto with_lanes = [&](auto apply) {
    if (dim_k <= 32) return body.template operator()<2, decltype(apply)::value>();
    if (dim_k <= 64) return body.template operator()<4, decltype(apply)::value>();
    if (dim_k <= 128) return body.template operator()<8, decltype(apply)::value>();
    if (dim_k <= 256) return body.template operator()<16, decltype(apply)::value>();
    return body.template operator()<32, decltype(apply)::value>();
  };
  if (decay == Decay::kNone) return with_lanes(std::integral_constant<Apply, Apply::kNothing>());
  if (decay == Decay::kChannel) return with_lanes(std::integral_constant<Apply, Apply::kRows>());
  return with_lanes(std::integral_constant<Apply, Apply::kAll>());
}

template <class Body>
int with_every_block(Body body) {
  for (const Decay decay : {Decay::kNone, Decay::kScalar, Decay::kChannel})
    for (const int dim_k : {32, 64, 128, 256, 512})
      if (const int error = with_block(dim_k, decay, body)) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta
