// A prefill over ranks, and the rest of the tokens by lasp_step on the state that it left.
#pragma once

#include "differential/draw.h"

namespace lasp_test {

struct Decoded {
  std::string complaints;
  std::vector<double> o;      // [B, T - prefill, H, V]
  std::vector<double> state;  // after the last token
};

Decoded prefill_and_decode(const Drawn &drawn, const CaseData &data);

// Tokens [begin, T) of each row of a [B, T, width] tensor, or [0, end).
template <class T>
std::vector<T> part_of_rows(const std::vector<T> &x, const Case &c, int64_t begin, int64_t end) {
  std::vector<T> part;
  if (x.empty()) return part;
  const int64_t row = static_cast<int64_t>(x.size()) / c.batch, width = row / c.tokens;
  for (int64_t b = 0; b < c.batch; ++b)
    part.insert(part.end(), x.begin() + b * row + begin * width, x.begin() + b * row + end * width);
  return part;
}

}  // namespace lasp_test
