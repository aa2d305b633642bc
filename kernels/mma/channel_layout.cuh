// What the parts of the backward walks with per-channel decay share: their parameters, where everything lies in
// shared memory, and the copies of a chunk's tokens into it.
//
// Two walks, each the mirror of the other (launch.h, ChannelBackward):
//   forward   state S  [K, V]   a = do, b = v,  c = k, y = dq; also x = dq without the pairs (t, t), in float32
//   reversed  state dS [K, V]   a = v,  b = do, c = q, y = dk; also d_g, from q x - k y
#pragma once

#include "../state_decay.cuh"
#include "ptx.cuh"

namespace lasp::gpu::mma::channel {

constexpr int kChunk = 16;  // tokens

struct Walk {
  Tensor a, b, c, y;
  // Reversed with x: k. Forward: where the low halves of x go if it is not float32, which is where dk goes later.
  Tensor partner;
  int32_t heads = 0;
  bool decay_is_float = true;
  const void *g = nullptr;
  Strides g_strides;
  float scale = 1, log2_scale = 0;
  const Run *runs = nullptr;
  const float *state = nullptr;  // by Run::state; null: zero
  float in_scale = 1;
  // Forward: written; reversed: read, and d_g put in its place. Null: neither is wanted. Where d_g has 16 bits a
  // number of x waits in two halves, bit by bit: the high one in its place in d_g, the low one in that in dk.
  void *x = nullptr;
  Strides x_strides;
  bool x_is_float = true;
  // <S_E, dS_E> at the end of each run: [num_runs, H, K]. Forward writes it, with dS_E by Run::state of far_runs.
  float *ends = nullptr;
  const Run *far_runs = nullptr;
  const float *far_state = nullptr;  // null: zero
  // A wider state goes by tiles of its rows, all in one launch, and of its columns, a launch each. What is a sum
  // over columns is added up: y, x and ends, and of reversed walks d_g, where the first one takes all of x.
  int32_t row_tiles = 1;
  int64_t state_row = 0, state_size = 0;  // floats of a row of the whole state, and of all of it
  bool adds = false;                      // not the first columns
};

// Tensors as the block sees them: token 0 is its run's first; and its own part of `ends` and far_state.
enum Role { kA, kB, kC, kG, kPartner, kX, kY, kEnds, kFar, kRoles };
struct Source {
  char *base;
  uint32_t token_bytes, unused;
};

// Offsets in shared memory, bytes. Rows of tiles are padded by 16 bytes, so that those of eight tokens meet all
// banks.
template <int kRows, int kColumns, bool kReversed>
struct Layout {
  static constexpr int kThreads = 2 * kRows;  // a warp has 16 rows of the state: channels
  static constexpr int kWide = 2 * kColumns + 16, kNarrow = 2 * kRows + 16, kFull = 4 * kRows + 16;
  static constexpr int kScoreRow = 4 * (kChunk + 8), kStagingRow = 48;
  // A stage: what is read of one chunk.
  static constexpr int kAt = 0, kBt = kChunk * kWide, kCt = 2 * kChunk * kWide, kGt = kCt + kChunk * kNarrow;
  static constexpr int kPartnerT = kGt + kChunk * kFull, kXt = kPartnerT + kChunk * kNarrow;
  static constexpr int kStageBytes = kReversed ? kXt + kChunk * kFull : kPartnerT;
  // Before the stages: where the tensors are; two chunks' scores, in float32 and as a right operand; and for each
  // warp a staging tile of 16 tokens by 16 channels.
  static constexpr int kScores = kRoles * int(sizeof(Source)), kScoreBytes = kChunk * kScoreRow;
  static constexpr int kOperand = kScores + 2 * kScoreBytes, kOperandBytes = 32 * 32;
  static constexpr int kStaging = kOperand + 2 * kOperandBytes, kStagingBytes = kChunk * kStagingRow;
  static constexpr int kBoundary =
      kStaging + kRows / 16 * kStagingBytes;           // [kRows] float: <S, dS> at the chunk's end
  static constexpr int kLeft = kBoundary + 4 * kRows;  // [kRows] float: the state is 2^this times s
  static constexpr int kFirstStage = kLeft + 4 * kRows;
  // Two blocks to a multiprocessor with 227 KiB.
  static constexpr int kStages = kFirstStage + 4 * kStageBytes <= (113 << 10) ? 4 : 3;
  static constexpr int kBytes = kFirstStage + kStages * kStageBytes;
  static_assert(kScores % 16 == 0 && kFirstStage % 16 == 0);
};

// Copies 16 tokens of rows of row_bytes (at most 16 kPieces) by kThreads threads. Tokens that are not there become
// zeros.
template <int kPieces, int kStride, int kThreads>
__device__ __forceinline__ void copy_tile(uint32_t to, const Source &from, int row_bytes, uint32_t token, int count,
                                          int thread) {
  constexpr int kStep = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0 && (kChunk % kStep == 0 || kStep % kChunk == 0));
  const int piece = thread % kPieces * 16;
  if (kPieces * 16 != row_bytes && piece >= row_bytes) return;
#pragma unroll
  for (int i = 0; i < kChunk; i += kStep) {
    const int row = i + thread / kPieces;
    if (kStep > kChunk && row >= kChunk) return;
    copy_16(to + row * kStride + piece, from.base + uint64_t{token + row} * from.token_bytes + piece, row < count);
  }
}

}  // namespace lasp::gpu::mma::channel
