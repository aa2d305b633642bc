#include "inputs.h"

#include <cmath>

#include "float_bits.h"

namespace bench {
namespace {

// splitmix64's output function: neighbouring indices give unrelated numbers.
uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

float uniform(uint64_t index) { return static_cast<float>(scramble(index) >> 40) * 0x1p-24f; }  // [0, 1)
float centred(uint64_t index) { return (uniform(index) * 2.0f - 1.0f) * 1.7320508f; }           // variance 1

}  // namespace

int32_t Inputs::heads(Tensor tensor) const {
  switch (tensor) {
    case kQ: return shape_.heads_q;
    case kK: return shape_.heads_k;
    case kV: return shape_.heads_v;
    default: return shape_.heads();
  }
}

int32_t Inputs::width(Tensor tensor) const {
  switch (tensor) {
    case kV:
    case kDO: return shape_.head_dim_v;
    case kDecay: return shape_.decay == LASP_DECAY_CHANNEL ? shape_.head_dim_k : 1;
    case kBeta: return 1;
    default: return shape_.head_dim_k;
  }
}

uint64_t Inputs::index(Tensor tensor, int64_t b, int64_t t, int32_t h, int32_t d) const {
  const auto place = static_cast<uint64_t>(((b * shape_.tokens + t) * heads(tensor) + h) * width(tensor) + d);
  return (static_cast<uint64_t>(tensor) << 56) + place;
}

void Inputs::row(Tensor tensor, int64_t b, int64_t t, int32_t h, float *out) const {
  const uint64_t first = index(tensor, b, t, h, 0);
  const int32_t count = width(tensor);
  for (int32_t d = 0; d < count; ++d) out[d] = rounded(centred(first + static_cast<uint64_t>(d)), shape_.dtype);
}

float Inputs::element(Tensor tensor, int64_t b, int64_t t, int32_t h, int32_t d) const {
  return rounded(centred(index(tensor, b, t, h, d)), shape_.dtype);
}

// Slopes as in RetNet and TransNormerLLM: from one half (a token is soon forgotten) to 1/256. A decay that depends
// on the data lies between nothing and twice the slope.
float Inputs::log_decay(int64_t b, int64_t t, int32_t h, int32_t k) const {
  if (shape_.decay == LASP_DECAY_NONE) return 0;
  const float slope = std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(shape_.heads()));
  if (shape_.decay == LASP_DECAY_HEAD) return -slope;
  const uint64_t at = index(kDecay, b, t, h, shape_.decay == LASP_DECAY_CHANNEL ? k : 0);
  return rounded(-2.0f * slope * uniform(at), shape_.decay_dtype());
}

Memory Inputs::make(Tensor tensor, int64_t first_token, int64_t end_token) const {
  const int32_t count = width(tensor), all_heads = heads(tensor);
  const int64_t elements = shape_.batch * (end_token - first_token) * all_heads * count;
  Memory memory(static_cast<size_t>(elements) * dtype_bytes(shape_.dtype));
  int64_t to = 0;
  for (int64_t b = 0; b < shape_.batch; ++b)
    for (int64_t t = first_token; t < end_token; ++t)
      for (int32_t h = 0; h < all_heads; ++h) {
        const uint64_t first = index(tensor, b, t, h, 0);
        float squares = 0;  // the delta rule wants keys of length 1
        for (int32_t d = 0; tensor == kK && d < count; ++d)
          squares += centred(first + static_cast<uint64_t>(d)) * centred(first + static_cast<uint64_t>(d));
        const float length = tensor == kK && shape_.delta() ? std::sqrt(squares) : 1;
        for (int32_t d = 0; d < count; ++d, ++to)
          store(memory.data(), to, shape_.dtype, centred(first + static_cast<uint64_t>(d)) / length);
      }
  return memory;
}

Memory Inputs::make_decay(int64_t first_token, int64_t end_token) const {
  if (shape_.decay == LASP_DECAY_NONE) return {};
  const bool per_head = shape_.decay == LASP_DECAY_HEAD;
  const int64_t rows = per_head ? 1 : shape_.batch * (end_token - first_token);
  const int32_t dtype = shape_.decay_dtype();
  Memory memory(static_cast<size_t>(rows * shape_.heads() * width(kDecay)) * dtype_bytes(dtype));
  int64_t to = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t b = per_head ? 0 : row / (end_token - first_token);
    const int64_t t = per_head ? 0 : first_token + row % (end_token - first_token);
    for (int32_t h = 0; h < shape_.heads(); ++h)
      for (int32_t k = 0; k < width(kDecay); ++k) store(memory.data(), to++, dtype, log_decay(b, t, h, k));
  }
  return memory;
}

Memory Inputs::make_beta(int64_t first_token, int64_t end_token) const {
  if (!shape_.delta()) return {};
  Memory memory(static_cast<size_t>(shape_.batch * (end_token - first_token) * shape_.heads()) * sizeof(float));
  auto *to = static_cast<float *>(memory.data());
  for (int64_t b = 0; b < shape_.batch; ++b)
    for (int64_t t = first_token; t < end_token; ++t)
      for (int32_t h = 0; h < shape_.heads(); ++h) *to++ = uniform(index(kBeta, b, t, h, 0));
  return memory;
}

}  // namespace bench
