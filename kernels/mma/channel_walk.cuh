// The backward walks with per-channel decay (channel_layout.cuh). A block walks a run of one head in chunks of 16
// tokens; each warp has 16 channels, the rows of the state [K, V], as float32 accumulators. Rounded in place they
// are the left operand of y^T = state a^T; c^T times the decay is the left operand of their update. All that
// belongs to a channel stays in the four lanes that own its row.
// Per channel, with G the log2 decay from the state's end of the chunk to a token (forward: the sum up to it;
// reversed: the sum after it), P = a b^T, and the state 2^L s:
//   y_t = scale 2^(L + G_t) (s a_t + sum over tokens u between t and that end of (2^(-G_u - L) c_u) P_tu)
//   state' = 2^(L + total) (s + sum over u of (2^(-G_u - L) c_u) b_u^T)
// One left operand serves scores and update; s is scaled only when L would leave its limits. Where a chunk's decay
// is too strong for that a warp takes differences of G pair by pair. All factors of products but the inputs are a
// high and a low 16-bit part: x and y producer d_g, a sum over the whole run of terms of both signs.
#pragma once

#include "channel_memory.cuh"

namespace lasp::gpu::mma::channel {

template <typename T, int kRows, int kColumns, bool kReversed, bool kPlain>
struct Walker : WalkerMemory<T, kRows, kColumns, kReversed, kPlain> {
  using Memory = WalkerMemory<T, kRows, kColumns, kReversed, kPlain>;
  using Memory::p, Memory::shared, Memory::warp, Memory::lane, Memory::stage, Memory::channel, Memory::write_pair,
      Memory::write_word, Memory::write_float, Memory::load_channels, Memory::load_x, Memory::store_x,
      Memory::store_y;
  using L = Layout<kRows, kColumns, kReversed>;
  static constexpr int kSteps = kColumns / 16, kWarps = kRows / 16;
  float s[2 * kSteps][4];

  __device__ Walker(const Walk &walk, const void *memory) : Memory(walk, memory) {}

  // P of the chunk in a stage, by two of the warps, eight columns each: as it is, and without the pairs that y
  // leaves out as the right operand that it is for y, a high and a low part.
  __device__ __forceinline__ void score(int of_stage, int copy, int half) const {
    const uint32_t a_at = stage(of_stage) + L::kAt + fragment_offset(L::kWide);
    const uint32_t b_at = stage(of_stage) + L::kBt + (lane % 8 + 8 * half) * L::kWide + lane / 8 * 16;
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      uint32_t b[4];
      load_matrices(b, b_at + 32 * step);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
        load_matrices(a, a_at + 32 * (step + i));
        const uint32_t left_operand[4] = {a[0], a[2], a[1], a[3]};
        multiply<T>(sum, left_operand, b[2 * i], b[2 * i + 1]);
      }
    }
    const int row = lane / 4, column = 8 * half + lane % 4 * 2;
    const uint32_t to = shared + L::kScores + copy * L::kScoreBytes + row * L::kScoreRow + column * 4;
    write_pair(to, sum[0], sum[1]);
    write_pair(to + 8 * L::kScoreRow, sum[2], sum[3]);
    const uint32_t operand = shared + L::kOperand + copy * L::kOperandBytes + lane * 16 + half * 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // rows 8 i + row
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (kReversed ? column + j <= row + 8 * i : column + j >= row + 8 * i) sum[2 * i + j] = 0;
      const uint32_t high = pack<T>(sum[2 * i], sum[2 * i + 1]);
      write_word(operand + i * 512, high);
      write_word(operand + i * 512 + 8, pack_rest<T>(sum[2 * i], sum[2 * i + 1], high));
    }
  }

  __device__ __forceinline__ void read_decays(Elements &to, uint32_t tile) const {
    read_log2_decays<T>(to, tile + L::kGt + 2 * (lane % 4) * L::kFull, L::kFull, channel(), p.decay_is_float);
  }

  __device__ __forceinline__ void scale_state(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] *= factor[j / 2];
  }

  // y += s a.
  __device__ __forceinline__ void multiply_state(float (&y)[2][4], uint32_t tile) const {
    const uint32_t at = tile + L::kAt + fragment_offset(L::kWide);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[4], high[4], low[4];
      load_matrices(b, at + 32 * step);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // left operand's registers: (row half, column half) = (i % 2, i / 2)
        const float *const x = s[2 * step + i / 2] + i % 2 * 2;
        high[i] = pack<T>(x[0], x[1]);
        low[i] = pack_rest<T>(x[0], x[1], high[i]);
      }
      multiply<T>(y[0], high, b[0], b[1]);
      multiply<T>(y[1], high, b[2], b[3]);
      multiply<T>(y[0], low, b[0], b[1]);
      multiply<T>(y[1], low, b[2], b[3]);
    }
  }

  // s += c b^T.
  __device__ __forceinline__ void update_state(uint32_t tile, const uint32_t (&high)[4], const uint32_t (&low)[4]) {
    const uint32_t at = tile + L::kBt + update_offset(L::kWide);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[4];
      load_matrices_transposed(b, at + 32 * step);
      multiply<T>(s[2 * step], high, b[0], b[1]);
      multiply<T>(s[2 * step + 1], high, b[2], b[3]);
      multiply<T>(s[2 * step], low, b[0], b[1]);
      multiply<T>(s[2 * step + 1], low, b[2], b[3]);
    }
  }

  // y += c P, of pairs of different tokens.
  __device__ __forceinline__ void multiply_scores(float (&y)[2][4], int copy, const uint32_t (&high)[4],
                                                  const uint32_t (&low)[4]) const {
    const uint32_t at = shared + L::kOperand + copy * L::kOperandBytes + thread_again() % 32 * 16;
    const uint4 first = load_shared_16(at), second = load_shared_16(at + 512);
    multiply<T>(y[0], high, first.x, first.y);
    multiply<T>(y[1], high, second.x, second.y);
    multiply<T>(y[0], low, first.x, first.y);
    multiply<T>(y[1], low, second.x, second.y);
    multiply<T>(y[0], high, first.z, first.w);
    multiply<T>(y[1], high, second.z, second.w);
  }

  // The same pair by pair, for any decay; y in its own scale.
  __device__ __forceinline__ void add_pairs(Elements &y, const Elements &sums, const uint32_t (&c_raw)[4],
                                            uint32_t from) const {
#pragma unroll 1
    for (int other = 0; other < kChunk; ++other) {
      const int source = other / 2 % 4;
      float score[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) score[e] = p.scale * read_shared(from + token_of(e) * L::kScoreRow + other * 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float even = other < 8 ? sums[h][0] : sums[h][2], odd = other < 8 ? sums[h][1] : sums[h][3];
        const float g = __shfl_sync(~0u, other % 2 ? odd : even, source, 4);
        const float2 two = unpack<T>(__shfl_sync(~0u, other < 8 ? c_raw[h] : c_raw[2 + h], source, 4));
        const float x = other % 2 ? two.y : two.x;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int token = token_of(e);
          if (kReversed ? other > token : other < token)
            y[h][e] = fmaf(exp2_fast(sums[h][e] - g) * x, score[e], y[h][e]);
        }
      }
    }
  }

  // c times 2^(from - G), a high and a low part.
  static __device__ __forceinline__ void scale_tokens(uint32_t (&high)[4], uint32_t (&low)[4],
                                                      const uint32_t (&c_raw)[4], const Elements &sums,
                                                      const float (&from)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = i % 2, e = i / 2 * 2;
      const float2 c = unpack<T>(c_raw[i]);
      const float x = exp2_fast(from[h] - sums[h][e]) * c.x, next = exp2_fast(from[h] - sums[h][e + 1]) * c.y;
      high[i] = pack<T>(x, next);
      low[i] = pack_rest<T>(x, next, high[i]);
    }
  }
  __device__ __forceinline__ void finish_y(Elements &out, const float (&y)[2][4], const Elements &sums,
                                           const float (&log2_left)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float from = log2_left[h] + p.log2_scale;
#pragma unroll
      for (int e = 0; e < 4; ++e) out[h][e] = exp2_fast(from + sums[h][e]) * y[e / 2][2 * h + e % 2];
    }
  }

  // Makes L fit this chunk; false where there is no such L for some channel of the warp (L is 0 then).
  __device__ __forceinline__ bool choose_left(float (&log2_left)[2], const Elements &sums,
                                              const float (&total)[2]) {
    bool beyond = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      beyond |= fabsf(log2_left[h] + total[h]) > kLimit<T>;
#pragma unroll
      for (int e = 0; e < 4; ++e) beyond |= fabsf(log2_left[h] + sums[h][e]) > kLimit<T>;
    }
    if (!__any_sync(~0u, beyond)) return true;
    float chosen[2], factor[2];
    beyond = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      chosen[h] = fabsf(total[h]) > kLimit<T> ? -0.5f * total[h] : 0.0f;
      beyond |= fabsf(chosen[h] + total[h]) > kLimit<T>;
#pragma unroll
      for (int e = 0; e < 4; ++e) beyond |= fabsf(chosen[h] + sums[h][e]) > kLimit<T>;
    }
    beyond = __any_sync(~0u, beyond);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (beyond) chosen[h] = 0;
      factor[h] = exp2_fast(log2_left[h] - chosen[h]);
      log2_left[h] = chosen[h];
    }
    scale_state(factor);
    return !beyond;
  }

  __device__ __forceinline__ void step(const Source *tensors, int of_stage, int copy, int chunk, int32_t length) {
    const uint32_t tile = stage(of_stage), scores = shared + L::kScores + copy * L::kScoreBytes;
    Elements sums;
    float total[2];
    read_decays(sums, tile);
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h] = running_sums < kReversed ? Sum::kAfter : Sum::kForward > (sums[h]);
    const uint32_t left_at = shared + L::kLeft + 4 * channel();
    float log2_left[2] = {read_shared(left_at), read_shared(left_at + 32)};
    const bool fits = choose_left(log2_left, sums, total);  // the warp meets there: all have read
    write_float(left_at, fits ? log2_left[0] + total[0] : 0);
    write_float(left_at + 32, fits ? log2_left[1] + total[1] : 0);

    float y[2][4] = {};
    multiply_state(y, tile);
    uint32_t c_raw[4], high[4], low[4];
    load_channels(c_raw, tile + L::kCt);
    Elements out;
    if (fits) {
      scale_tokens(high, low, c_raw, sums, {-log2_left[0], -log2_left[1]});
      multiply_scores(y, copy, high, low);
      finish_y(out, y, sums, log2_left);
    } else {
      finish_y(out, y, sums, {0, 0});
      add_pairs(out, sums, c_raw, scores);
      scale_state({exp2_fast(total[0]), exp2_fast(total[1])});
      if (!kReversed) {
        const int last = min(kChunk, length - chunk * kChunk) - 1;
        total[0] = sum_to_last(sums[0], last), total[1] = sum_to_last(sums[1], last);
      }
      scale_tokens(high, low, c_raw, sums, {total[0], total[1]});
    }
    update_state(tile, high, low);

    const uint32_t token = uint32_t(chunk) * kChunk;
    const int count = min(kChunk, length - chunk * kChunk);
    Elements c;
    load_channels(c_raw, tile + L::kCt);
    widen<T>(c, c_raw);
    if (p.x) {
      Elements terms;
      if (kReversed) decay_gradient(terms, out, c, tile, fits);
      store_x(kReversed ? terms : out, tensors, token, count);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float same = p.scale * read_shared(scores + token_of(e) * (L::kScoreRow + 4));
#pragma unroll
      for (int h = 0; h < 2; ++h) out[h][e] = fmaf(c[h][e], same, out[h][e]);
    }
    store_y(out, tensors[kY], token, count);
  }

  // d_g[t] = <state, gradient> at the chunk's end + the sum of q x - k y from t on. That inner product waits in
  // shared memory between chunks; the lanes of a row all write the same.
  __device__ __forceinline__ void decay_gradient(Elements &terms, const Elements &y, const Elements &q,
                                                 uint32_t tile, bool fits) const {
    load_x(terms, tile);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e) terms[h][e] *= q[h][e];
    uint32_t partner_raw[4];
    load_channels(partner_raw, tile + L::kPartnerT);
    Elements k;
    widen<T>(k, partner_raw);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e) terms[h][e] -= k[h][e] * y[h][e];
    const uint32_t boundary_at = shared + L::kBoundary + 4 * channel();
    float boundary[2] = {read_shared(boundary_at), read_shared(boundary_at + 32)};
    __syncwarp();  // the lanes of a row write it again
    if (!fits) {
      Elements g;
      read_decays(g, tile);
      sum_and_stop(terms, boundary, g, [this] { return lane % 4; });
      write_float(boundary_at, boundary[0]), write_float(boundary_at + 32, boundary[1]);
      return;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = running_sums<Sum::kBackward>(terms[h]);
#pragma unroll
      for (int e = 0; e < 4; ++e) terms[h][e] += boundary[h];
      write_float(boundary_at + 32 * h, boundary[h] + total);
    }
  }

  __device__ __forceinline__ void read_state(int64_t state, int64_t head, int64_t tile) {
    const int64_t at =
        (state * p.heads + head) * p.state_size + (tile * kRows + channel()) * p.state_row + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i) {
      float2 x = {0, 0};
      if (p.state) x = *reinterpret_cast<const float2 *>(p.state + at + i % 2 * 8 * p.state_row + i / 2 * 8);
      s[i / 2][i % 2 * 2] = x.x * p.in_scale, s[i / 2][i % 2 * 2 + 1] = x.y * p.in_scale;
    }
  }
  __device__ __forceinline__ float *end(const Source *tensors) const {
    return reinterpret_cast<float *>(tensors[kEnds].base) + channel();
  }
  // Forward: <S, dS> of each channel at the run's end.
  __device__ __forceinline__ void write_ends(const Source *tensors) const {
    float sum[2] = {0, 0};
    if (p.far_state) {
      const float *const from =
          reinterpret_cast<const float *>(tensors[kFar].base) + channel() * p.state_row + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) {
        const float2 x = *reinterpret_cast<const float2 *>(from + i % 2 * 8 * p.state_row + i / 2 * 8);
        sum[i % 2] = fmaf(s[i / 2][i % 2 * 2], x.x, fmaf(s[i / 2][i % 2 * 2 + 1], x.y, sum[i % 2]));
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
      float &to = end(tensors)[8 * h];
      if (lane % 4 == 0)
        to = (this->adds() ? to : 0.0f) +
             sum[h] * exp2_fast(read_shared(shared + L::kLeft + 4 * channel() + 32 * h));
    }
  }
};

}  // namespace lasp::gpu::mma::channel
