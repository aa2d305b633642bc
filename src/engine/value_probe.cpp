#include "engine/value_probe.h"

#include <cstring>

namespace lasp {
namespace {

// Of an element's bits: where its exponent lies. No type needs its value for what is looked for.
struct Format {
  uint32_t sign, exponent;
};
Format format_of(DType type) {
  switch (type) {
    case DType::kBFloat16: return {0x8000, 0x7f80};
    case DType::kFloat16: return {0x8000, 0x7c00};
    case DType::kFloat32: break;
  }
  return {0x80000000, 0x7f800000};
}

std::optional<ValueFault> fault_of(uint32_t bits, const Format &format, bool is_decay) {
  const uint32_t magnitude = bits & (format.sign - 1);
  const bool negative = (bits & format.sign) != 0;
  if (magnitude > format.exponent) return ValueFault::kNan;
  if (is_decay) return !negative && magnitude != 0 ? std::optional(ValueFault::kAboveZero) : std::nullopt;
  return magnitude == format.exponent ? std::optional(ValueFault::kInfinity) : std::nullopt;
}

uint32_t bits_at(const ValueProbe &probe, int64_t at) {
  if (probe.type == DType::kFloat32) {
    uint32_t bits = 0;
    std::memcpy(&bits, static_cast<const char *>(probe.data) + at * 4, 4);
    return bits;
  }
  uint16_t half = 0;
  std::memcpy(&half, static_cast<const char *>(probe.data) + at * 2, 2);
  return half;
}

}  // namespace

std::optional<ValueFound> find_value(std::span<const ValueProbe> probes) {
  for (size_t i = 0; i < probes.size(); ++i) {
    const ValueProbe &p = probes[i];
    const Format format = format_of(p.type);
    int64_t element = 0;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t t = 0; t < p.tokens; ++t)
        for (int64_t h = 0; h < p.heads; ++h) {
          const int64_t from = p.layout.offset(b, t, h);
          for (int64_t d = 0; d < p.dim; ++d, ++element)
            if (const auto fault = fault_of(bits_at(p, from + d), format, p.is_decay))
              return ValueFound{i, element, *fault};
        }
  }
  return std::nullopt;
}

}  // namespace lasp
