// What the results should be: the recurrence in float64, token by token, no chunks and no ranks. Exact for a part
// of the result that reaches every token of every rank but is cheap: two (batch row, head) samples, of each o and
// dv a few value columns, of each dq, dk and channel d_decay a few key rows. Columns of the state do not mix, nor
// do its rows, so a few of them can be followed alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "config.h"

namespace bench {

// Known values of one tensor at one batch row and one of its heads.
struct Sample {
  int64_t batch_row = 0;
  int32_t head = 0;
  std::vector<int32_t> dims;   // which elements of the head's vector
  std::vector<double> values;  // [tokens][dims]
};

struct Reference {
  std::vector<Sample> o, dq, dk, dv;
  std::vector<Sample>
      d_decay;  // scalar: dims {0}; channel: a few channels; head: values [1], the sum over all tokens
  std::vector<double> d_decay_size;  // per-head decay: the sum of the sizes of the terms of that sum
  std::string left_out;              // what was not worked out because it would take too long; "" for nothing
};

// Uses up to `threads` threads.
Reference make_reference(const Shape &shape, bool backward, int threads);

// Largest relative Frobenius error that float32 arithmetic with chunks of `chunk` tokens and the rounding of
// results to the problem's dtype explain: 4 u sqrt(K + V + C + T / C) + u', where u is float32's unit roundoff
// (sums of n terms in any order err by about u sqrt(n) of their norm; a result passes through sums of K, V and C
// terms and T / C updates of the state), and u' is twice the dtype's.
double tolerance(const Shape &shape, int32_t chunk);
// On a GPU, whose tensor cores take 16-bit operands, results of 16-bit tensors are right to 4e-3.
double tolerance(const Config &config, int32_t chunk);

}  // namespace bench
