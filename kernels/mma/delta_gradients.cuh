// All gradients of a stretch of one chunk under the delta rule by mma.sync, from what the walks have kept of it:
// the state S before it, the gradient R of the state after it, E and Z. R and Z are over `scale`; dS = scale R.
// Stretches do not meet. With D_ij = 2^(G_i - G_j):
//
//   P_ij = scale beta_j D_ij (do_i . E_j), j <= i      R_ij = -scale beta_i beta_j D_ij (Z_i . E_j), j < i
//   X_i = scale 2^G_i S do_i     Y_i = -scale 2^G_i beta_i S Z_i     W_j = 2^(G_C - G_j) beta_j dS E_j
//   dq = X + P k     dk = Y + W + R k + P^T q + R^T k     d_beta_i = scale Z_i . E_i     dv_i = scale beta_i Z_i
//   dg_t = 2^G_C <S, dS> + sum over i >= t of (q_i X_i + k_i Y_i) + sum over j < t of k_j W_j
//          + sum over i >= t > j of (P_ij q_i + R_ij k_i) k_j
//
// as delta_stretches.cu has them, each pair of tokens in dg as it is. Products take 16 bits, P and R as a high and
// a low part. A block owns a (stretch, head): two groups of four warps, whose warps have 16 tokens each. The first
// group finds P, the other R; then each has 64 rows of K. Of more than 128 rows, the next 128 follow.
#pragma once

#include "delta_gradients_tiles.cuh"

namespace lasp::gpu::mma_delta {

template <typename T, bool kDecay, bool kMore>
struct Gradients : GradientTiles<T, kMore> {
  using Tiles = GradientTiles<T, kMore>;
  using M = typename Tiles::M;
  using Tiles::copy_slice, Tiles::copy_keys, Tiles::multiply_states;
  using Tiles::factor, Tiles::row, Tiles::column, Tiles::kept, Tiles::stage_of;
  using Tiles::load_left, Tiles::load_right, Tiles::load_kept_left, Tiles::load_kept_right;
  using Tiles::p, Tiles::place, Tiles::memory, Tiles::shared, Tiles::thread, Tiles::lane, Tiles::warp, Tiles::group,
      Tiles::stages;

  // dv of the warp's tokens and 16 columns from the left operand z; where it is not just rounded to 16 bits, also
  // from what rounding took from Z.
  __device__ __forceinline__ void store_written(const uint32_t (&z)[4], int column_first) const {
    if (column_first >= p.v.dim) return;
    const Result<T> to{p.d_v, p.staged[2], p.adds[2]};
    const int64_t at = offset_of(p.d_v, place.run.row, place.run.begin, place.head, p.heads) + column_first;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = 16 * warp + lane / 4 + i % 2 * 8, column = i / 2 * 8 + lane % 4 * 2;
      float2 x = unpack<T>(z[i]);
      if (p.staged[2] || p.adds[2]) {
        const int matrix = p.k.dim / 8 + kTokens8 + 2 * warp + i % 2;
        const char *const rest = kept(true) + (column_first / 8 + i / 2) * kept_columns(p, true);
        uint32_t pair = *reinterpret_cast<const uint32_t *>(rest + matrix * kMatrix + 4 * lane);
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair));
        const float2 less = unpack<T>(pair);
        x.x += less.x, x.y += less.y;
      }
      const float f = p.scale * factor(kBeta, t);
      if (t < place.run.length) to.put(at + t * p.d_v.strides.token + column, f * x.x, f * x.y);
    }
  }

  // Adds to x, y, w and, with the first rows of K, to scores the products over 64 columns of V from `first` on;
  // then also stores dv of these columns.
  __device__ __forceinline__ void multiply_slice(uint32_t stage, int first_row, int first, Tokens &scores,
                                                 Tokens &x, Tokens &y, Tokens &w) const {
    const bool first_rows = !kMore || first_row == 0;
#pragma unroll 1  // the code of one step is what instruction caches hold
    for (int step = 0; step < kSlice / 16; ++step) {
      uint32_t d_o[4], z[4], e[4];
      load_left(d_o, stage + M::kDO, kNarrow, step);
      load_kept_left(z, stage + M::kZ, step), load_kept_left(e, stage + M::kE, step);
      if (first_rows && step % 2 == group) store_written(z, first + 16 * step);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        if (first_rows && n <= warp) {
          load_kept_right(b, stage + M::kE, kTokens8, 16 * n, step);
          if (group == 0) {
            multiply_16<T>(scores[2 * n], scores[2 * n + 1], d_o, b);
          } else {
            multiply_16<T>(scores[2 * n], scores[2 * n + 1], z, b);
          }
        }
        const int rows = 64 * group + 16 * n;
        if (first_row + rows >= p.k.dim) continue;
        load_kept_right(b, stage + M::kState, kMostRows / 8, rows, step);
        multiply_16<T>(x[2 * n], x[2 * n + 1], d_o, b);
        multiply_16<T>(y[2 * n], y[2 * n + 1], z, b);
        load_kept_right(b, stage + M::kDState, kMostRows / 8, rows, step);
        multiply_16<T>(w[2 * n], w[2 * n + 1], e, b);
      }
    }
  }

  // d_beta: of each token its Z . E, of the second group's scores.
  __device__ __forceinline__ void store_d_beta(const Tokens &scores) const {
    float sums[2] = {};
#pragma unroll
    for (int n = 0; n < kTokens8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (row(i) == column(n, i)) sums[i / 2] = scores[n][i];
    if (lane / 8 != lane % 4) return;  // others have no token's
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (const int t = row(2 * half); t < place.run.length)
        put_element(p.d_beta, p.d_beta_dtype,
                    offset_of(p.d_beta_strides, place.run.row, place.run.begin + t, place.head),
                    p.scale * sums[half], p.d_beta_adds);
  }
  // The group's scores with their factors, P or R, and rounded to shared memory.
  __device__ __forceinline__ void finish_scores(Tokens &scores) const {
    const int high = group == 0 ? M::kPHigh : M::kRHigh, low = high + M::kTile;
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      if (n / 2 > warp) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = row(i), j = column(n, i);
        float f = p.scale * factor(kBeta, j);
        if (group == 1) f *= -factor(kBeta, t);
        if constexpr (kDecay) f *= exp2_fast(fminf(factor(kSums, t) - factor(kSums, j), 0));
        scores[n][i] = j < t || (group == 0 && j == t) ? f * scores[n][i] : 0;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t x = pack<T>(scores[n][2 * half], scores[n][2 * half + 1]);
        char *const to = memory + row(2 * half) * kNarrow + 2 * column(n, 0);
        *reinterpret_cast<uint32_t *>(to + high) = x;
        *reinterpret_cast<uint32_t *>(to + low) = pack_rest<T>(scores[n][2 * half], scores[n][2 * half + 1], x);
      }
    }
  }

  // dq += P k and dk += R k + P^T q + R^T k, of the group's rows of K.
  __device__ __forceinline__ void multiply_scores(Tokens &d_q, Tokens &d_k) const {
    const int column = 128 * group;  // bytes
#pragma unroll
    for (int block = 0; block < kChunk / 16; ++block) {
      const uint32_t rows =
          shared + (16 * block + lane / 8 % 2 * 8 + lane % 8) * M::kWide + column + lane / 16 * 16;
      uint32_t a[4][4];
      if (block <= warp) {
        constexpr int kTiles[] = {M::kPHigh, M::kPLow, M::kRHigh, M::kRLow};
#pragma unroll
        for (int i = 0; i < 4; ++i) load_left(a[i], shared + kTiles[i], kNarrow, block);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          uint32_t k[4];
          load_matrices_transposed(k, rows + M::kK + 32 * n);
          multiply_16<T>(d_q[2 * n], d_q[2 * n + 1], a[1], k);
          multiply_16<T>(d_q[2 * n], d_q[2 * n + 1], a[0], k);
          multiply_16<T>(d_k[2 * n], d_k[2 * n + 1], a[3], k);
          multiply_16<T>(d_k[2 * n], d_k[2 * n + 1], a[2], k);
        }
      }
      if (block >= warp) {
        constexpr int kTiles[] = {M::kPHigh, M::kPLow, M::kRHigh, M::kRLow};
        const uint32_t from =
            shared + (16 * block + lane / 16 * 8 + lane % 8) * kNarrow + 2 * (16 * warp + lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) load_matrices_transposed(a[i], from + kTiles[i]);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          uint32_t q[4], k[4];
          load_matrices_transposed(q, rows + M::kQ + 32 * n);
          load_matrices_transposed(k, rows + M::kK + 32 * n);
          multiply_16<T>(d_k[2 * n], d_k[2 * n + 1], a[1], q);
          multiply_16<T>(d_k[2 * n], d_k[2 * n + 1], a[0], q);
          multiply_16<T>(d_k[2 * n], d_k[2 * n + 1], a[3], k);
          multiply_16<T>(d_k[2 * n], d_k[2 * n + 1], a[2], k);
        }
      }
    }
  }

  // What X, Y and W have in dg: sums over the group's rows of K, by token. `adds`: to those of other rows.
  __device__ __forceinline__ void sum_rows(const Tokens &x, const Tokens &y, const Tokens &w, bool adds) const {
    float readers[2] = {}, writers[2] = {};
#pragma unroll
    for (int n = 0; n < kTokens8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const char *const at = memory + row(2 * half) * M::kWide + 128 * group + 2 * column(n, 0);
        const float2 k = unpack<T>(*reinterpret_cast<const uint32_t *>(at + M::kK)),
                     q = unpack<T>(*reinterpret_cast<const uint32_t *>(at + M::kQ));
        const int i = 2 * half;
        readers[half] += q.x * x[n][i] + q.y * x[n][i + 1] + k.x * y[n][i] + k.y * y[n][i + 1];
        writers[half] += k.x * w[n][i] + k.y * w[n][i + 1];
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        readers[half] += __shfl_xor_sync(~0u, readers[half], step);
        writers[half] += __shfl_xor_sync(~0u, writers[half], step);
      }
      const int at = group * kChunk + row(2 * half);
      if (lane % 4 == 0) {
        float &all_readers = reinterpret_cast<float *>(memory + M::kReaders)[at];
        float &all_writers = reinterpret_cast<float *>(memory + M::kWriters)[at];
        all_readers = adds ? all_readers + readers[half] : readers[half];
        all_writers = adds ? all_writers + writers[half] : writers[half];
      }
    }
  }
  // Adds to the group's q k or k k, by which its scores count in dg, the products over 128 columns of K.
  __device__ __forceinline__ void multiply_keys(Tokens &products, int first_row) const {
    for (int step = 0; step < kMostRows / 16 && first_row + 16 * step < p.k.dim; ++step) {
      uint32_t a[4];
      load_left(a, shared + (group == 0 ? M::kQ : M::kK), M::kWide, step);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (n <= warp) {
          uint32_t b[4];
          load_right(b, shared + M::kK, M::kWide, 16 * n, step);
          multiply_16<T>(products[2 * n], products[2 * n + 1], a, b);
        }
    }
  }
  // kMore: the scores of this thread wait in float32 for the other rows. In 16 bits strong decays would be lost.
  __device__ __forceinline__ float *waiting_scores() const {
    return reinterpret_cast<float *>(memory + M::kScores) + thread;
  }
  __device__ __forceinline__ void save_scores(const Tokens &scores) const {
#pragma unroll
    for (int i = 0; i < 4 * kTokens8; ++i) waiting_scores()[i * kGradientThreads] = scores[i / 4][i % 4];
  }
  __device__ __forceinline__ void load_scores(Tokens &scores) const {
#pragma unroll
    for (int i = 0; i < 4 * kTokens8; ++i) scores[i / 4][i % 4] = waiting_scores()[i * kGradientThreads];
  }
  __device__ __forceinline__ void put_pairs(const Tokens &pairs, bool adds) const {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float &to = reinterpret_cast<float *>(memory + M::kPairs)[row(i) * M::kPairRow + column(n, i)];
        if (n / 2 <= warp) to = adds ? to + pairs[n][i] : pairs[n][i];
      }
  }
  static constexpr int kQuarter = kChunk / 4;
  __device__ __forceinline__ void store_d_g() const {
    float *const pairs = reinterpret_cast<float *>(memory + M::kPairs), *const of_quarters =
                                                                            reinterpret_cast<float *>(memory +
                                                                                                      M::kQuarters);
    {  // over i >= t, of token j: running sums in each quarter of the chunk, and the quarter's total
      const int j = thread % kChunk, end = (thread / kChunk + 1) * kQuarter;
      float sum = 0;
#pragma unroll
      for (int n = 1; n <= kQuarter; ++n) {
        float &x = pairs[(end - n) * M::kPairRow + j];
        if (end - n > j) x = sum += x;
      }
      of_quarters[thread] = sum;
    }
    __syncthreads();
    // Four threads of token t add up a quarter each.
    const int t = thread / 4, begin = thread % 4 * kQuarter;
    const float *const readers = reinterpret_cast<const float *>(memory + M::kReaders),
                       *const writers = reinterpret_cast<const float *>(memory + M::kWriters),
                       *const through = reinterpret_cast<const float *>(memory + M::kThrough);
    float sum = 0, all = 0;
#pragma unroll 4
    for (int j = begin; j < begin + kQuarter; ++j) {
      if (j >= t) {
        sum += readers[j] + readers[kChunk + j];
        continue;
      }
      sum += pairs[t * M::kPairRow + j] + writers[j] + writers[kChunk + j];
      for (int later = t / kQuarter + 1; later < kChunk / kQuarter; ++later) sum += of_quarters[later * kChunk + j];
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (thread % 4 > 0 || t >= place.run.length) return;
#pragma unroll
    for (int i = 0; i < kGradientThreads / 32; ++i) all += through[i];
    sum = fmaf(factor(kWhole, 0), all, sum);
    if (p.decay == Decay::kHead) {
      p.token_d_g[(place.run.row * p.heads + place.head) * p.tokens + place.run.begin + t] = sum;
    } else {
      put_element(p.d_g, p.d_g_dtype, offset_of(p.d_g_strides, place.run.row, place.run.begin + t, place.head), sum,
                  p.d_g_adds);
    }
  }
  __device__ __forceinline__ void store(const Result<T> &to, const Tokens &x, int first_row) const {
    const int64_t at = offset_of(to.to, place.run.row, place.run.begin, place.head, p.heads);
#pragma unroll
    for (int n = 0; n < kTokens8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = row(2 * half), d = first_row + 64 * group + column(n, 0);
        if (t < place.run.length && d < p.k.dim)
          to.put(at + t * to.to.strides.token + d, x[n][2 * half], x[n][2 * half + 1]);
      }
  }

  // dq and dk of 128 rows of K, and what these have in dg. With the first of them also P, R, d_beta and dv.
  __device__ __forceinline__ void find_rows(int first_row, Tokens &scores, float &through) const {
    const bool first_rows = !kMore || first_row == 0;
    Tokens x = {}, y = {}, w = {};
#pragma unroll
    for (auto &tile : scores)
#pragma unroll
      for (float &score : tile) score = 0;
    const int slices = delta_hopper::slices_of(p.v.dim);
    for (int n = 1 - stages; n < slices; ++n) {
      const int next = n + stages - 1;
      if (next < slices) copy_slice(stage_of(next), first_row, next * kSlice);
      if (n < 0) continue;
      if (next > n && next < slices) {
        mma::copies_wait<1>();
      } else {
        mma::copies_wait<0>();
      }
      __syncthreads();
      multiply_slice(stage_of(n), first_row, n * kSlice, scores, x, y, w);
      if (kDecay && p.d_g != nullptr) through += multiply_states(stage_of(n));
      __syncthreads();
    }
    copy_keys(first_row);
    if (first_rows) {
      if (group == 1) store_d_beta(scores);
      finish_scores(scores);
      if constexpr (kMore && kDecay) save_scores(scores);
    }
#pragma unroll
    for (int n = 0; n < kTokens8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = row(i);
        const float to_token = kDecay ? factor(kToToken, t) : 1, to_end = kDecay ? factor(kToEnd, t) : 1;
        x[n][i] *= p.scale * to_token;
        y[n][i] *= -p.scale * to_token * factor(kBeta, t);
        w[n][i] *= p.scale * to_end * factor(kBeta, t);
      }
    mma::copies_wait<0>();
    __syncthreads();
    if (kDecay && p.d_g != nullptr) sum_rows(x, y, w, !first_rows);
#pragma unroll
    for (int n = 0; n < kTokens8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) y[n][i] += w[n][i];
    multiply_scores(x, y);
    store(Result<T>{p.d_q, p.staged[0], p.adds[0]}, x, first_row);
    store(Result<T>{p.d_k, p.staged[1], p.adds[1]}, y, first_row);
  }

  // dg from what all rows of K have left, when the last of them are in k's and q's place.
  __device__ __forceinline__ void find_d_g(Tokens &scores, float through) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) through += __shfl_xor_sync(~0u, through, step);
    if (lane == 0) reinterpret_cast<float *>(memory + M::kThrough)[thread / 32] = p.scale * through;
    Tokens products = {};
    if constexpr (kMore) {
      multiply_keys(products, kMostRows);
      __syncthreads();
      copy_keys(0);
      mma::copies_wait<0>();
      __syncthreads();
    }
    multiply_keys(products, 0);
    if constexpr (kMore) load_scores(scores);
#pragma unroll
    for (int n = 0; n < kTokens8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] *= products[n][i];
    if (group == 0) put_pairs(scores, false);
    __syncthreads();
    if (group == 1) put_pairs(scores, true);
    __syncthreads();
    store_d_g();
  }

  __device__ __forceinline__ void run() const {
    if (thread < delta_hopper::kFactorBytes / 16)
      mma::copy_16(shared + M::kFactorsAt + 16 * thread, kept(true) + kept_factors(p) + 16 * thread, true);
    Tokens scores;
    float through = 0;
#pragma unroll 1  // the code of one turn alone is what instruction caches hold
    for (int first_row = 0; first_row < (kMore ? p.k.dim : kMostRows); first_row += kMostRows) {
      if (first_row > 0) __syncthreads();  // nobody reads k and q any more
      find_rows(first_row, scores, through);
    }
    if constexpr (kDecay)
      if (p.d_g != nullptr) find_d_g(scores, through);
  }
};

template <typename T, bool kDecay, bool kMore>
__global__ void __launch_bounds__(kGradientThreads, 1)
    gradients(const int64_t first, const GradientPass p, const int stages) {
  extern __shared__ __align__(16) char shared[];
  __shared__ Place place;
  if (threadIdx.x == 0) {
    place.start(p, first + blockIdx.x, 1);
    place.slow = !begins_on_piece(p.k.data) || !begins_on_piece(p.q.data) || !begins_on_piece(p.d_o.data);
  }
  __syncthreads();
  if (place.chunks == 0) return;
  const int thread = threadIdx.x;
  Gradients<T, kDecay, kMore>{
      {p, place, shared, shared_address(shared), thread, thread % 32, thread / 32 % 4, thread / 128, stages}}
      .run();
}

}  // namespace lasp::gpu::mma_delta
