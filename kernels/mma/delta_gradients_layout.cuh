// What the gradients of stretches by mma.sync are given, and their shared memory (delta_gradients.cuh).
#pragma once

#include "delta_walk.cuh"

namespace lasp::gpu::mma_delta {

constexpr int kGradientThreads = 256, kMostRows = 128;  // of K at once, of 256 at most

struct GradientPass : DeltaGradients {
  const void *errors = nullptr, *written = nullptr;  // E and Z, [stretches, H, 64, V]
  float *token_d_g = nullptr;                        // decay per head: [B, H, T]
  DType d_g_dtype = DType::kFloat32;
};

// Shared memory. First tiles of 64 columns of V: do, Z, E, and of S and dS 128 rows of K. Then k and q, P and R in
// two parts each, and the pairs of dg. kMore: of more than 128 rows P and R stay while the next tiles come.
template <bool kMore>
struct GradientMemory {
  static constexpr int kTile = kChunk * kNarrow, kStateTile = kMostRows * kNarrow, kWide = 2 * kMostRows + 16;
  static constexpr int kDO = 0, kZ = kTile, kE = 2 * kTile, kState = 3 * kTile, kDState = kState + kStateTile,
                       kFirst = kDState + kStateTile;
  static constexpr int kK = 0, kQ = kChunk * kWide, kBehindQ = 2 * kChunk * kWide;
  static constexpr int kPHigh = kMore ? kFirst : kBehindQ, kPLow = kPHigh + kTile, kRHigh = kPLow + kTile,
                       kRLow = kRHigh + kTile, kPairs = kMore ? kBehindQ : kRLow + kTile;
  static constexpr int kPairRow = kChunk + 1;  // floats
  static constexpr int kSecond = kMore ? kRLow + kTile : kPairs + 4 * kChunk * kPairRow;
  static constexpr int kFactorsAt = (kFirst > kSecond ? kFirst : kSecond) / 16 * 16 + 16;
  // Of each group: sums over its rows of q X + k Y and of k W; of each warp: <S, dS>.
  static constexpr int kReaders = kFactorsAt + delta_hopper::kFactorBytes, kWriters = kReaders + 8 * kChunk,
                       kThrough = kWriters + 8 * kChunk;
  static constexpr int kScores = kThrough + 32;  // of each thread, in float32
  static constexpr int kBytes = kMore ? kScores + 4 * kGradientThreads * 4 * kTokens8 : kScores;
};

}  // namespace lasp::gpu::mma_delta
