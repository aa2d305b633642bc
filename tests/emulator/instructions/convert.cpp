// cvt: conversions between types of registers. PTX ISA, "Data movement and conversion instructions: cvt".
#include "instructions/convert.h"

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <limits>

#include "instructions/arithmetic.h"

namespace emulator {

uint16_t to_half(float x) { return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }
float from_half(uint16_t bits) { return _cvtsh_ss(bits); }
uint16_t to_bfloat16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

namespace {

// Integers between their source and their target.
using Wide = __int128;

enum class Rounding : uint8_t { kNone, kNearest, kZero, kDown, kUp };  // to integral values

double integral(double x, Rounding r) {
  switch (r) {
    case Rounding::kNone: return x;
    case Rounding::kNearest: return std::nearbyint(x);
    case Rounding::kZero: return std::trunc(x);
    case Rounding::kDown: return std::floor(x);
    case Rounding::kUp: return std::ceil(x);
  }
  return x;
}

template <class D>
D clamped(Wide x) {
  constexpr Wide kLeast = std::numeric_limits<D>::min(), kMost = std::numeric_limits<D>::max();
  return static_cast<D>(x < kLeast ? kLeast : x > kMost ? kMost : x);
}
// NaN is 0, or the highest bit alone where one of the types has 64.
template <class D, class S>
D integer_of(S x, Rounding r) {
  const double value = integral(x, r);
  if (std::isnan(value)) {
    const bool zero = sizeof(S) < 8 && sizeof(D) < 8;
    return zero ? D(0) : static_cast<D>(std::make_unsigned_t<D>(1) << (8 * sizeof(D) - 1));
  }
  const double limited = std::fmin(std::fmax(value, -0x1p100), 0x1p100);
  return clamped<D>(static_cast<Wide>(limited));
}

template <class D, class S, Rounding R, bool kSaturates>
D converted(S x) {
  if constexpr (std::is_floating_point_v<D>) {
    if constexpr (std::is_integral_v<S>) return static_cast<D>(x);
    const double value = integral(static_cast<double>(x), R);
    if (kSaturates) return static_cast<D>(std::isnan(value) || value <= 0 ? 0 : std::fmin(value, 1));
    return static_cast<D>(value);
  } else if constexpr (std::is_floating_point_v<S>) {
    return integer_of<D>(x, R);
  } else {
    return kSaturates ? clamped<D>(x) : static_cast<D>(x);
  }
}

// Source and target may lie in registers that are wider than their types. An integer fills the target's, with its
// sign.
template <class D, class S, Rounding R, bool kSaturates>
void convert(Warp &w, const Instruction &i, uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const D value = converted<D, S, R, kSaturates>(read<S>(static_cast<Stored<S>>(lane_bits(w, i[1], l))));
    if constexpr (std::is_floating_point_v<D>) {
      set_lane(w, i[0], l, bits_of<D>(value));
    } else {
      set_lane(w, i[0], l, static_cast<uint64_t>(static_cast<Wide>(value)));
    }
  });
}
// The frequent ones, in registers that are as wide as their types.
template <class D, class S>
Handler plain(const Instruction &i) {
  if (are<D, S>(i)) return lanewise<D, S>(i, [](S x) { return static_cast<D>(x); });
  return convert<D, S, Rounding::kNone, false>;
}

// How the value is rounded, as an opcode between "cvt" and its types says.
struct Mode {
  Rounding rounding = Rounding::kNone;
  bool nearest = false, saturates = false, known = true;

  explicit Mode(const Parts &p) {
    for (int n = 1; n < p.count - 2; ++n) {
      const std::string_view s = p[n];
      if (s == "rn") {
        nearest = true;
      } else if (s == "sat") {
        saturates = true;
      } else if (s == "rni" || s == "rzi" || s == "rmi" || s == "rpi") {
        rounding = s == "rni"   ? Rounding::kNearest
                   : s == "rzi" ? Rounding::kZero
                   : s == "rmi" ? Rounding::kDown
                                : Rounding::kUp;
      } else {
        known = false;
      }
    }
  }
};

template <class D, class S, bool kSaturates>
Handler rounded(Rounding r) {
  switch (r) {
    case Rounding::kNone: return convert<D, S, Rounding::kNone, kSaturates>;
    case Rounding::kNearest: return convert<D, S, Rounding::kNearest, kSaturates>;
    case Rounding::kZero: return convert<D, S, Rounding::kZero, kSaturates>;
    case Rounding::kDown: return convert<D, S, Rounding::kDown, kSaturates>;
    case Rounding::kUp: return convert<D, S, Rounding::kUp, kSaturates>;
  }
  return nullptr;
}

// Which modes PTX has for the two types: .rn for what may be inexact, one to integers for what becomes integral.
template <class D, class S>
Handler of_types(const Mode &mode, const Instruction &i) {
  constexpr bool kFromFloat = std::is_floating_point_v<S>, kToFloat = std::is_floating_point_v<D>;
  constexpr bool kInexact = kToFloat && (!kFromFloat || sizeof(D) < sizeof(S));
  constexpr bool kIntegral = kFromFloat && (!kToFloat || sizeof(D) == sizeof(S));
  const bool has_rounding = mode.rounding != Rounding::kNone;
  if (mode.nearest != kInexact || (has_rounding && !kIntegral)) return nullptr;
  if (kFromFloat && !kToFloat && !has_rounding) return nullptr;
  if (kToFloat && !kFromFloat && mode.saturates) return nullptr;
  if constexpr (!kFromFloat && !kToFloat) {
    return mode.saturates ? convert<D, S, Rounding::kNone, true> : plain<D, S>(i);
  } else {
    return mode.saturates ? rounded<D, S, true>(mode.rounding) : rounded<D, S, false>(mode.rounding);
  }
}

template <class Body>
Handler with_any(std::string_view type, const Body &body) {
  if (type == "s8") return body(int8_t());
  if (type == "u8") return body(uint8_t());
  if (type[0] == 'b') return nullptr;
  if (Handler h = with_float(type, body)) return h;
  return with_integer(type, body);
}

template <uint16_t F(float)>
Handler pair(const Instruction &i) {
  return lanewise<uint32_t, float, float>(
      i, [](float high, float low) { return static_cast<uint32_t>(F(high)) << 16 | F(low); });
}
template <uint16_t F(float)>
Handler narrowed(const Instruction &i) {
  return lanewise<uint16_t, float>(i, [](float x) { return F(x); });
}
template <float F(uint16_t)>
Handler widened(const Instruction &i) {
  return lanewise<float, uint16_t>(i, [](uint16_t x) { return F(x); });
}

// To and from types of 16 bits, by way of float.
Handler of_halves(const Parts &p, const Mode &mode, const Instruction &i) {
  const std::string_view to = p[p.count - 2], from = p.last();
  if (mode.saturates || mode.rounding != Rounding::kNone) return nullptr;
  if (to == "f32" && !mode.nearest) {
    if (from == "f16") return widened<from_half>(i);
    if (from == "bf16") return widened<from_bfloat16>(i);
  }
  if (from != "f32" || !mode.nearest) return nullptr;
  if (to == "f16") return narrowed<to_half>(i);
  if (to == "bf16") return narrowed<to_bfloat16>(i);
  if (to == "f16x2") return pair<to_half>(i);
  return to == "bf16x2" ? pair<to_bfloat16>(i) : nullptr;
}

}  // namespace

Handler conversion_instruction(const Parts &p, const Instruction &i) {
  const Mode mode(p);
  if (p.count < 3 || !mode.known) return nullptr;
  if (Handler h = of_halves(p, mode, i)) return h;
  if (i.count != 2 || i[0].sink || i[0].words == 0 || i[1].words == 0) return nullptr;
  return with_any(p[p.count - 2], [&](auto d) {
    return with_any(p.last(), [&](auto s) { return of_types<decltype(d), decltype(s)>(mode, i); });
  });
}

}  // namespace emulator
