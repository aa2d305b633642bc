// A chunk made ready for the state warps by the producer warps, for each kind of decay: scaled operands, scores,
// factors of y and of the state.
#pragma once

#include "apply_decay.cuh"
#include "copy.cuh"
#include "scores.cuh"

namespace lasp::gpu::mma {

// Reads this thread's decays of a chunk and sums them. Whether any channel's are too steep for a pivot.
template <typename T, int kDim, Kind kKind>
__device__ __forceinline__ bool read_shares(const Producer<T, kDim, kKind> &producer, int chunk,
                                            Share<T, kDim, kKind> (&shares)[Share<T, kDim, kKind>::kCount]) {
  using L = Layout<kDim, kKind>;
  bool steep = false;
#pragma unroll
  for (int i = 0; i < Share<T, kDim, kKind>::kCount; ++i) {
    Share<T, kDim, kKind> &s = shares[i];
    s.read(producer, i, producer.stage());
    if (!s.exists) continue;
    float2 total;
    steep |= s.sum(total);
    reinterpret_cast<float2 *>(producer.memory + L::kTotals + s.late * L::kDecayBytes)[s.pair] = total;
  }
  return sync_some_or<kProducerThreads>(1, steep);
}

// Scales b, and a where y is wanted, from the pivot or from the chunk's ends.
template <bool kReads, typename T, int kDim>
__device__ __forceinline__ void scale_columns(const Share<T, kDim, Kind::kColumns> &s, const char *totals, char *a,
                                              char *b, char *rest, bool direct) {
  using L = Layout<kDim, Kind::kColumns>;
  uint32_t of_a[kHalf], of_b[kHalf];
  if constexpr (kReads) s.read_tile(of_a, a, L::kWide);
  s.read_tile(of_b, b, L::kWide);
  const auto put = [&](int r, float2 reading, float2 writing) {
    uint32_t low;
    if constexpr (kReads)
      *reinterpret_cast<uint32_t *>(s.at(a, L::kWide, r)) = scale_pair<T>(of_a[r], reading, nullptr);
    *reinterpret_cast<uint32_t *>(s.at(b, L::kWide, r)) = scale_pair<T>(of_b[r], writing, &low);
    *reinterpret_cast<uint32_t *>(s.at(rest, L::kWide, r)) = low;
  };
  if (direct) {
    s.from_ends(reinterpret_cast<const float2 *>(totals + !s.late * L::kDecayBytes)[s.pair], put);
  } else {
    s.from_pivot(put);
  }
}

// Columns of the state decay: a and b are scaled, scores come from the scaled ones.
template <typename T, int kDim>
__device__ __forceinline__ void prepare_columns(const Producer<T, kDim, Kind::kColumns> &producer,
                                                Copy<kDim, Kind::kColumns> &copy, int chunk) {
  using L = Layout<kDim, Kind::kColumns>;
  using S = Share<T, kDim, Kind::kColumns>;
  const Scores<T, kDim, Kind::kColumns> scores{producer};
  char *const stage = producer.stage(), *const a = stage + L::kA, *const b = stage + L::kB;
  char *const rest = producer.memory + L::kRest + copy_of(chunk) * L::kRestBytes;
  const char *const totals = producer.memory + L::kTotals;
  const bool reads = producer.p.y.data != nullptr;
  S shares[S::kCount];
  const bool direct = read_shares(producer, chunk, shares);
  if (direct) {
    if (reads) scores.compute_direct(chunk);
    sync_some<kProducerThreads>(1);
  }
#pragma unroll
  for (int i = 0; i < S::kCount; ++i) {
    if (!shares[i].exists) continue;
    if (reads) {
      scale_columns<true>(shares[i], totals, a, b, rest, direct);
    } else {
      scale_columns<false>(shares[i], totals, a, b, rest, direct);
    }
  }
  if (reads && !direct) sync_some<kProducerThreads>(1);
  if (copy.mine) {
    StateDecay<T, kDim, Kind::kColumns>{producer}.template put<kProducerThreads / 2>(
        chunk, direct, producer.thread - kProducerThreads / 2);
    copy.load();
  } else if (reads && !direct) {
    scores.compute(chunk, [](int, int) { return 1.0f; });
  }
}

// A steep chunk whose rows decay: a thread has a row of y (a column of c). Beside the to_end it forms y inside the
// chunk in float32, which takes the place of the decays.
template <typename T, int kDim>
__device__ __forceinline__ void prepare_rows_direct(const Producer<T, kDim, Kind::kRows> &producer, int chunk,
                                                    char *factors, char *rest) {
  using L = Layout<kDim, Kind::kRows>;
  char *const stage = producer.stage();
  const float *const scores = reinterpret_cast<const float *>(producer.memory + L::kExact);
  const int row = producer.thread;
  const bool mine = row < L::kRows;
  const auto decay = [&](int i) {
    return log2_decay(load_element(stage + L::kG, producer.p.decay_dtype, i * L::kChannels + row));
  };
  float value[kChunk], sum[kChunk];
  if (mine) {
    float prefix = 0, suffix = 0;
#pragma unroll 1
    for (int i = 0; i < kChunk; ++i) {
      prefix += decay(i);
      reinterpret_cast<float *>(factors + i * L::kFactorRow)[row] = exp2_fast(prefix);
    }
#pragma unroll
    for (int i = kChunk - 1; i >= 0; --i) {
      uint16_t *const at = reinterpret_cast<uint16_t *>(stage + L::kC + i * L::kNarrow) + row;
      value[i] = unpack<T>(*at).x;
      const float scaled = value[i] * exp2_fast(suffix);
      const uint32_t high = pack<T>(scaled, 0);
      *at = static_cast<uint16_t>(high);
      reinterpret_cast<uint16_t *>(rest + i * L::kNarrow)[row] =
          static_cast<uint16_t>(pack_rest<T>(scaled, 0, high));
      suffix += decay(i);
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      sum[i] = 0;
      const float ratio = exp2_fast(decay(i));
#pragma unroll
      for (int j = 0; j <= i; ++j) {
        if (j < i) value[j] *= ratio;
        sum[i] = fmaf(scores[i * kChunk + j], value[j], sum[i]);
      }
    }
  }
  sync_some<kProducerThreads>(1);
  if (mine) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) reinterpret_cast<float *>(stage + L::kG)[i * L::kRows + row] = sum[i];
  }
}

// Rows of the state decay: c is scaled, and y after the product; scores have no decay.
template <typename T, int kDim>
__device__ __forceinline__ void prepare_rows(const Producer<T, kDim, Kind::kRows> &producer,
                                             Copy<kDim, Kind::kRows> &copy, int chunk) {
  using L = Layout<kDim, Kind::kRows>;
  using S = Share<T, kDim, Kind::kRows>;
  char *const c = producer.stage() + L::kC;
  char *const rest = producer.memory + L::kRest + copy_of(chunk) * L::kRestBytes;
  char *const factors = producer.memory + L::kFactors + copy_of(chunk) * L::kFactorBytes;
  if (copy.mine) {
    copy.load();
  } else if (producer.p.y.data) {
    Scores<T, kDim, Kind::kRows>{producer}.compute(chunk, [](int, int) { return 1.0f; });
  }
  S shares[S::kCount];
  const bool direct = read_shares(producer, chunk, shares);
  StateDecay<T, kDim, Kind::kRows>{producer}.template put<kProducerThreads>(chunk, direct, producer.thread);
  if (direct) return prepare_rows_direct<T, kDim>(producer, chunk, factors, rest);
#pragma unroll
  for (int i = 0; i < S::kCount; ++i) {
    const S &s = shares[i];
    if (!s.exists) continue;
    uint32_t of_c[kHalf];
    s.read_tile(of_c, c, L::kNarrow);
    s.from_pivot([&](int r, float2 reading, float2 writing) {
      uint32_t low;
      *reinterpret_cast<uint32_t *>(s.at(c, L::kNarrow, r)) = scale_pair<T>(of_c[r], writing, &low);
      *reinterpret_cast<uint32_t *>(s.at(rest, L::kNarrow, r)) = low;
      *reinterpret_cast<float2 *>(s.at(factors + 4 * s.pair, L::kFactorRow, r)) = reading;
    });
  }
}

// Tokens decay: scores and y are multiplied in float32, b is scaled for the state, whose decay is one number.
template <typename T, int kDim>
__device__ __forceinline__ void prepare_tokens(Producer<T, kDim, Kind::kToken> &producer,
                                               Copy<kDim, Kind::kToken> &copy, int chunk) {
  using L = Layout<kDim, Kind::kToken>;
  const Scores<T, kDim, Kind::kToken> scores{producer};
  const bool reads = producer.p.y.data != nullptr;
  if (copy.mine) copy.load();
  if (producer.p.decay == Decay::kNone) {
    if (reads && !copy.mine) scores.compute(chunk, [](int, int) { return 1.0f; });
    return;
  }
  producer.read_token_decay(chunk + 1);
  float decay[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    decay[i] = reinterpret_cast<const float *>(producer.memory + L::kTokens)[copy_of(chunk) * kChunk + i];
  const auto sum = [&](int begin, int end) {  // of rows [begin, end)
    float x = 0;
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      if (i >= begin && i < end) x += decay[i];
    return x;
  };
  if (reads && !copy.mine) scores.compute(chunk, [&](int i, int j) { return exp2_fast(sum(j + 1, i + 1)); });
  float *const to_end = reinterpret_cast<float *>(producer.memory + L::kToEnd);
  const int row = producer.thread - kProducerThreads / 2;  // the warps that have no scores
  if (row >= 0 && row < kChunk) {
    reinterpret_cast<float *>(producer.memory + L::kFactors + copy_of(chunk) * L::kFactorBytes)[row] =
        exp2_fast(sum(0, row + 1));
    to_end[row] = exp2_fast(sum(row + 1, kChunk));
    if (row == 0) {
      float &compensation = *reinterpret_cast<float *>(producer.memory + L::kCompensation);
      *reinterpret_cast<float *>(producer.memory + L::kAfter + copy_of(chunk) * L::kDecayBytes) =
          state_decay(sum(0, kChunk), compensation);
    }
  }
  sync_some<kProducerThreads>(1);
  constexpr int kQuads = kDim / 4, kCount = kChunk * kQuads / kProducerThreads;  // of four elements
  char *const b = producer.stage() + L::kB + producer.thread % kQuads * 8;
  char *const rest = producer.memory + L::kRest + copy_of(chunk) * L::kRestBytes + producer.thread % kQuads * 8;
  uint2 quad[kCount];
  const auto row_of = [&](int i) { return (producer.thread + i * kProducerThreads) / kQuads; };
#pragma unroll
  for (int i = 0; i < kCount; ++i) quad[i] = *reinterpret_cast<const uint2 *>(b + row_of(i) * L::kWide);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float2 factor = {to_end[row_of(i)], to_end[row_of(i)]};
    uint2 low;
    const uint2 high = {scale_pair<T>(quad[i].x, factor, &low.x), scale_pair<T>(quad[i].y, factor, &low.y)};
    *reinterpret_cast<uint2 *>(b + row_of(i) * L::kWide) = high;
    *reinterpret_cast<uint2 *>(rest + row_of(i) * L::kWide) = low;
  }
  producer.put_token_decay(chunk + 1);
}

// The producer warps' whole walk: one chunk ahead of the state warps. All warps meet after each.
template <typename T, int kDim, Kind kKind>
__device__ __forceinline__ void run_producer(const PassParams &p, const Part &part, char *memory) {
  Producer<T, kDim, kKind> producer(p, part, memory);
  if constexpr (kKind == Kind::kToken) {
    producer.read_token_decay(0);
    producer.put_token_decay(0);
  }
  Copy<kDim, kKind> copy(p, part, memory, producer.thread);
  copy.begin();
  sync_all();
#pragma unroll 1
  for (int chunk = 0; chunk <= part.chunks; ++chunk) {
    if (chunk < part.chunks) {
      if constexpr (kKind == Kind::kToken) prepare_tokens<T, kDim>(producer, copy, chunk);
      if constexpr (kKind == Kind::kColumns) prepare_columns<T, kDim>(producer, copy, chunk);
      if constexpr (kKind == Kind::kRows) prepare_rows<T, kDim>(producer, copy, chunk);
    } else if constexpr (kKind != Kind::kToken) {
      StateDecay<T, kDim, kKind>{producer}.put_pending(chunk);
    }
    producer.ring.next(p.stages);
    if (copy.mine) copy.wait();
    sync_all();
  }
}

}  // namespace lasp::gpu::mma
