// What the gradients of stretches by mma.sync are given, and their shared memory (delta_gradients.cuh).
#pragma once

#include "delta_kept.h"
#include "delta_walk.cuh"

namespace lasp::gpu::mma_delta {

constexpr int kGradientThreads = 256, kMostRows = 128;  // of K at once, of 256 at most

struct GradientPass : DeltaGradients {
  float *token_d_g = nullptr;  // decay per head: [B, H, T]
  DType d_g_dtype = DType::kFloat32;
};

// A gradient: where it goes, in float32 or as T; `adds`: joins what is there.
template <typename T>
struct Result {
  Tensor to;
  bool float32 = false, adds = false;
  __device__ __forceinline__ void put(int64_t at, float x) const {
    if (float32) {
      float &there = static_cast<float *>(to.data)[at];
      there = adds ? there + x : x;
    } else {
      T &there = static_cast<T *>(to.data)[at];
      there = T(adds ? float(there) + x : x);
    }
  }
  // Two neighbours, the first at an even place.
  __device__ __forceinline__ void put(int64_t at, float x, float y) const {
    if (!float32 && !adds && (reinterpret_cast<uintptr_t>(to.data) & 3) == 0) {
      *reinterpret_cast<uint32_t *>(static_cast<T *>(to.data) + at) = pack<T>(x, y);
    } else {
      put(at, x), put(at + 1, y);
    }
  }
};

constexpr int kNarrow = row_bytes(kSlice);  // of a tile [64 tokens, 64 columns]

// Shared memory. What stays; then one or two stages, each with 64 columns of V of do, Z, E, and of S and R 128 rows
// of K. In the place of stages then k and q, P and R in two parts each, and the pairs of dg. kMore: of more than
// 128 rows P and R stay while the next tiles come.
template <bool kMore>
struct GradientMemory {
  static constexpr int kTile = kChunk * kNarrow, kWide = row_bytes(kMostRows);
  static constexpr int kKeptTokens = kSlice / 8 * kTokens8 * kMatrix,
                       kKeptRows = kSlice / 8 * (kMostRows / 8) * kMatrix;
  // Of each group: sums over its rows of q X + k Y and of k W; of each warp: <S, dS>.
  static constexpr int kFactorsAt = 0, kReaders = delta_hopper::kFactorBytes, kWriters = kReaders + 8 * kChunk,
                       kThrough = kWriters + 8 * kChunk;
  static constexpr int kScores = kThrough + 32;  // of each thread, in float32
  static constexpr int kStages = kMore ? kScores + 4 * kGradientThreads * 4 * kTokens8 + 4 * kTile : kScores;
  // In a stage.
  static constexpr int kDO = 0, kZ = kTile, kE = kZ + kKeptTokens, kState = kE + kKeptTokens,
                       kDState = kState + kKeptRows, kStage = kDState + kKeptRows;
  static constexpr int kK = kStages, kQ = kK + kChunk * kWide, kBehindQ = kQ + kChunk * kWide;
  static constexpr int kPHigh = kMore ? kStages - 4 * kTile : kBehindQ, kPLow = kPHigh + kTile,
                       kRHigh = kPLow + kTile, kRLow = kRHigh + kTile, kPairs = kMore ? kBehindQ : kRLow + kTile;
  static constexpr int kPairRow = kChunk + 1;                       // floats
  static constexpr int kQuarters = kPairs + 4 * kChunk * kPairRow;  // sums of pairs: 4 of each token
  static constexpr int kBehindPairs = kQuarters + 16 * kChunk;
  static constexpr int bytes(int stages) {
    const int behind = kStages + stages * kStage;
    return behind > kBehindPairs ? behind : kBehindPairs;
  }
};

}  // namespace lasp::gpu::mma_delta
