// What a chunk of the delta rule is before any state is known (layout.cuh): N, factors and P. A block of four warps
// works on a chunk and head. Scores by tensor cores; blocks of 16 x 16 on the diagonal by substitution in float32;
// what is under them from these, as products of a high and a low part, down each column of blocks by one warp. For
// the walks of delta/ and for those by mma.sync.
#include "../delta/prepare_solve.cuh"

namespace lasp::gpu::delta_hopper {
namespace {

using mma::copies_commit, mma::copies_wait;

constexpr int kThreads = 128;
constexpr int kRow = 2 * kDim + 16;  // bytes of a row of k and q; 4 * kSquare of one of the matrix
static_assert(4 * kSquare == kRow);
constexpr int kTileBytes = kChunk * kRow;
constexpr int shared_bytes(bool scores) { return (scores ? 2 : 1) * kTileBytes + 2 * 4 * kChunk; }

// The norm of I - beta k k^T, given k . k. A NaN stays one.
__device__ __forceinline__ float norm_of_token(float beta, float square) {
  const float along = fabsf(1 - beta * square);
  return along <= 1 ? 1 : along;
}
// A warp's part of the chunk's bound, from those of its tokens, which few lanes have, and a log2 decay.
__device__ __forceinline__ void store_bound(float bound, float decay, char *to) {
  bound = log2f(bound);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) bound += __shfl_xor_sync(~0u, bound, step);
  if (threadIdx.x % 32 == 0) reinterpret_cast<float *>(to + kFactors + kBounds)[threadIdx.x / 32] = bound + decay;
}

// kScores: P too.
template <typename T, bool kDecay, bool kScores>
__global__ void __launch_bounds__(kThreads) prepare(const DeltaInputs p, const Slots slots) {
  extern __shared__ __align__(16) char shared[];
  const int64_t slot = blockIdx.x;
  const int32_t head = blockIdx.y;
  const int64_t index = slots.run_of(slot);
  if (index < 0) return;
  const Run run = p.runs[index];
  if (!takes(slots.filter, run)) return;
  const int32_t begin = int32_t(slots.chunk_of(slot, index)) * kChunk, count = min(kChunk, run.length - begin);
  if (count <= 0) return;
  const int64_t token = run.begin + begin;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  char *const k_tile = shared, *const q_tile = shared + kTileBytes;
  float *const square = reinterpret_cast<float *>(k_tile);  // once k has been read
  float *const sums = reinterpret_cast<float *>(shared + shared_bytes(kScores)) - 2 * kChunk;
  float *const beta = sums + kChunk;
  char *const to = slots.at(slot, p.heads, head);

  // Columns [first, first + 128) of k and q.
  const auto load_columns = [&](int first) {
    const int piece = thread % 16, row = thread / 16, column = first + 8 * piece;
    const bool slow = !begins_on_piece(p.k.data) || (kScores && !begins_on_piece(p.q.data));
    const auto load = [&](const Tensor &t, char *tile) {
      const char *from =
          static_cast<const char *>(t.data) + 2 * (offset_of(t, run.row, token + row, head, p.heads) + column);
      const uint32_t at = shared_address(tile) + row * kRow + 16 * piece;
      copy_pieces<8>(slow, [&](int i, auto copy) {
        const bool there = row + 8 * i < count && column < t.dim;
        copy(at + 8 * i * kRow, there ? from + 16 * i * t.strides.token : t.data, there);
      });
    };
    load(p.k, k_tile);
    if constexpr (kScores) load(p.q, q_tile);
    copies_commit();
  };
  load_columns(0);
  if (thread < kChunk) {
    float g = 0, b = 0;
    if (thread < count) {
      const int64_t t = token + thread;
      b = load_element(p.beta, p.beta_dtype, offset_of(p.beta_strides, run.row, t, head));
      if constexpr (kDecay) {
        g = clamped_log2(p.decay == Decay::kHead
                             ? static_cast<const float *>(p.g)[head]
                             : load_element(p.g, p.decay_dtype, offset_of(p.g_strides, run.row, t, head)));
      }
    }
    beta[thread] = b;
    if constexpr (kDecay) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(~0u, g, step);
        if (lane >= step) g += before;
      }
      sums[thread] = g;
    }
  }
  copies_wait<0>();
  __syncthreads();
  if constexpr (kDecay) {
    if (warp == 1) sums[thread] += sums[31];
    __syncthreads();
  }
  if (thread < kChunk) {
    float *const factors = reinterpret_cast<float *>(to + kFactors);
    const float last = kDecay ? sums[kChunk - 1] : 0, mine = kDecay ? sums[thread] : 0;
    factors[thread] = kDecay ? exp2_fast(mine) : 1;
    factors[kToEnd / 4 + thread] = kDecay ? exp2_fast(last - mine) : 1;
    factors[kBeta / 4 + thread] = beta[thread];
    float none = 0;
    if (thread == 0) factors[kWhole / 4] = kDecay ? state_decay(last, none) : 1;
    factors[kSums / 4 + thread] = mine;
  }

  // Scores: rows 16 warp .. of A and P, up to the diagonal.
  const int r = lane / 4, q2 = 2 * (lane % 4);
  float kk[8][4] = {}, qk[8][4] = {};
  for (int first = 0;;) {
    const uint32_t left = shared_address(k_tile) + (16 * warp + lane % 16) * kRow + lane / 16 * 16;
    const uint32_t right = shared_address(k_tile) + (lane % 8 + lane / 16 * 8) * kRow + lane / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[4], c[4] = {};
      load_matrices(a, left + 32 * step);
      if constexpr (kScores) load_matrices(c, left + kTileBytes + 32 * step);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (n <= warp) {
          uint32_t b[4];
          load_matrices(b, right + 16 * n * kRow + 32 * step);
          mma::multiply<T>(kk[2 * n], a, b[0], b[1]);
          mma::multiply<T>(kk[2 * n + 1], a, b[2], b[3]);
          if constexpr (kScores) {
            mma::multiply<T>(qk[2 * n], c, b[0], b[1]);
            mma::multiply<T>(qk[2 * n + 1], c, b[2], b[3]);
          }
        }
    }
    first += kDim;
    if (first >= p.k.dim) break;
    __syncthreads();  // they have been read
    load_columns(first);
    copies_wait<0>();
    __syncthreads();
  }
  __syncthreads();  // k has been read
  float bound = 1;
#pragma unroll
  for (int n = 0; n < 8; ++n)
    if (n / 2 <= warp) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 16 * warp + 8 * h + r, j = 8 * n + q2;
        float x = kk[n][2 * h], y = kk[n][2 * h + 1], u = qk[n][2 * h], v = qk[n][2 * h + 1];
        if (kDecay && i / 2 == j / 2) bound *= norm_of_token(beta[i], i == j ? x : y);
        if constexpr (kDecay) {
          const float2 at = *reinterpret_cast<const float2 *>(sums + j);
          const float d0 = exp2_fast(fminf(sums[i] - at.x, 0)), d1 = exp2_fast(fminf(sums[i] - at.y, 0));
          x *= d0, y *= d1, u *= d0, v *= d1;
        }
        *reinterpret_cast<float2 *>(square + i * kSquare + j) = float2{j < i ? x : 0, j + 1 < i ? y : 0};
        if constexpr (kScores) {
          u = j <= i ? u : 0, v = j + 1 <= i ? v : 0;
          const uint32_t high = pack<T>(u, v);
          put(to + kPairP, 2 * warp + h, n, lane, high, pack_rest<T>(u, v, high));
        }
      }
    }
  if constexpr (kDecay) store_bound(bound, warp == 3 ? sums[kChunk - 1] : 0, to);
  __syncwarp();
  solve_square<T>(square, beta, to);
}

// Which slots are whose. One block.
__global__ void __launch_bounds__(1024) number_slots(const DeltaInputs p, const Slots slots, bool stretches) {
  __shared__ int32_t warps[32];
  __shared__ int32_t before;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  if (thread == 0) before = 0;
  __syncthreads();
  for (int64_t r0 = 0; r0 < p.num_runs; r0 += 1024) {
    const int64_t r = r0 + thread;
    const int32_t chunks = r < p.num_runs ? (p.runs[r].length + kChunk - 1) / kChunk : 0;
    int32_t sum = chunks;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t x = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += x;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int32_t first = before + sum - chunks;
    for (int w = 0; w < warp; ++w) first += warps[w];
    if (r < p.num_runs) slots.first[r] = first;
    __syncthreads();
    if (thread == 1023) before = first + chunks;
    for (int i = 0; i < 32; ++i) {  // a warp writes the entries of its runs, one after another
      const int32_t from = __shfl_sync(~0u, first, i), n = __shfl_sync(~0u, chunks, i);
      for (int c = lane; c < n; c += 32) slots.run[from + c] = int32_t(r0 + 32 * warp + i);
      if (!stretches || n == 0) continue;
      const int32_t to = p.runs[r0 + 32 * warp + i].checkpoint;
      for (int s = lane; s * slots.of_stretch < n; s += 32) slots.stretch[to + s] = from + s * slots.of_stretch;
    }
    __syncthreads();
  }
  for (int64_t s = before + thread; s < slots.most; s += 1024) slots.run[s] = -1;
}

template <typename T>
int launch(const DeltaInputs &p, const Slots &slots, Stream stream) {
  const bool none = p.decay == Decay::kNone, scores = p.q.data != nullptr;
  const auto kernel = scores ? none ? prepare<T, false, true> : prepare<T, true, true>
                      : none ? prepare<T, false, false>
                             : prepare<T, true, false>;
  kernel<<<dim3(unsigned(slots.most), unsigned(p.heads)), kThreads, shared_bytes(scores), stream>>>(p, slots);
  return cudaGetLastError();
}
template <typename T>
int load() {
  return load_kernels(prepare<T, false, false>, prepare<T, false, true>, prepare<T, true, false>,
                      prepare<T, true, true>);
}

}  // namespace

int launch_number_slots(const DeltaInputs &p, const Slots &slots, bool stretches, Stream stream) {
  if (!slots.run) return cudaSuccess;
  number_slots<<<1, 1024, 0, stream>>>(p, slots, stretches);
  return cudaGetLastError();
}

int launch_prepare(const DeltaInputs &p, const Slots &slots, Stream stream) {
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, slots, stream) : launch<__half>(p, slots, stream);
}

int load_prepare() {
  if (const int error = load_kernels(number_slots)) return error;
  if (const int error = load<__nv_bfloat16>()) return error;
  return load<__half>();
}

}  // namespace lasp::gpu::delta_hopper
