// The inputs of a measured problem: each element is a function of its global index alone, so that any rank, and the
// reference, can make any part of them.
#pragma once

#include <cstdint>

#include "config.h"
#include "memory.h"

namespace bench {

class Inputs {
 public:
  enum Tensor : uint64_t { kQ = 1, kK, kV, kDecay, kDO, kBeta };

  explicit Inputs(const Shape &shape) : shape_(shape) {}

  // Elements [b, t, h, 0 .. width-1], as the library sees them: rounded to the problem's dtype.
  void row(Tensor tensor, int64_t b, int64_t t, int32_t h, float *out) const;
  float element(Tensor tensor, int64_t b, int64_t t, int32_t h, int32_t d) const;
  // Log decay of output head h, channel k (of all channels alike but for channel decay).
  float log_decay(int64_t b, int64_t t, int32_t h, int32_t k) const;

  int32_t heads(Tensor tensor) const;
  int32_t width(Tensor tensor) const;

  // One rank's tokens of a tensor [B, T, heads, width], contiguous.
  Memory make(Tensor tensor, int64_t first_token, int64_t end_token) const;
  // Decay as the problem's kind wants it: [H], [B, T, H] or [B, T, H, K], in Shape::decay_dtype(); empty for none.
  Memory make_decay(int64_t first_token, int64_t end_token) const;
  // How much each token writes under the delta rule, from 0 to 1: [B, T, H], float32; else empty.
  Memory make_beta(int64_t first_token, int64_t end_token) const;

 private:
  uint64_t index(Tensor tensor, int64_t b, int64_t t, int32_t h, int32_t d) const;

  Shape shape_;
};

}  // namespace bench
