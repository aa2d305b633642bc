// What one thread needs while it works on one chunk and head. Allocated once, with the backend: the passes allocate
// nothing.
#pragma once

#include <cstddef>
#include <memory>

#include "core/problem.h"
#include "core/workspace.h"

namespace lasp::cpu {

// The decay inside one chunk, as the arithmetic wants it. Null pointers stand for ones.
struct ChunkDecay {
  const float *in = nullptr;     // [length] from the chunk's start to after token i; not for channel decay
  const float *out = nullptr;    // [length] from after token j to the chunk's end; not for channel decay
  const float *total = nullptr;  // over the whole chunk, coded (../decay.h): one, or one per channel
  const double *log_total = nullptr;
  const float *toeplitz = nullptr;  // per-head decay: D_ij = toeplitz[j - i]
};

struct Scratch {
  // `states`: running states kept at once.
  Scratch(const Problem &problem, int32_t states);

  ChunkDecay decay;
  // Gathered or converted inputs, and operands with their decay.
  float *q, *k, *v, *d_o, *q_in, *k_out;
  // Outputs on their way to 16-bit tensors.
  float *o, *dq, *dk, *dv, *dg;
  // Score matrices [chunk, chunk], a row of decays, column sums of the decay gradient.
  float *score, *grad, *decay_row, *column_sums;
  float *wide;    // [chunk, max(K, V)] a product before it is scaled and added
  float *turned;  // [max(K, V), chunk + 8 or max(K, V)] an operand, transposed
  double *run;    // [states, K, V] running states
  float *part;    // [K, V] a chunk's part of one, or one before the chunk
  float *joined;  // [K, max(K, V)] a state that came from another segment, or one before it is moved on
  double *sums;   // [chunk] inclusive sums of g
  float *in, *out, *total;
  double *log_total;         // [K]
  double *dots, *dg_tokens;  // [chunk]; and of states [K]
  uint16_t *shorts;          // [chunk] 16-bit values gathered with a stride
  // Channel decay only.
  float *g, *step, *head, *tail;        // [chunk, K]
  double *block_log, *outward;          // [blocks, K]
  float *block_in, *block_out, *level;  // [blocks, K]; level: [levels, blocks, K]
  float *mixed, *acc_q, *acc_k;         // [chunk, K]
  float *block_work;                    // [16, K]
  // Delta rule only; delta_chunk.h has the names.
  float *beta;                  // [chunk]
  float *key_score, *solved;    // [chunk, chunk] decayed k_i . k_j, and the inverse T'
  float *key_grad;              // [chunk, chunk] of key_score
  double *solving;              // [chunk + 1, chunk]
  float *k_in;                  // [chunk, K] keys decayed from the chunk's start
  float *wide_k;                // [chunk, K] a second product before it is scaled and added
  float *errors, *written;      // [chunk, max(K, V)] E and U
  float *d_written, *d_errors;  // [chunk, max(K, V)] their gradients
  float *acc_query, *acc_key;   // [chunk, K] channel decay: sums of queries, then of keys

 private:
  void place(Carver &carver, const Problem &problem, int32_t states);
  void place_delta(Carver &carver, const Problem &problem);
  struct Free {
    void operator()(std::byte *p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace lasp::cpu
