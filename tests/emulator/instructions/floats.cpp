// Arithmetic of float and double: PTX ISA, "Floating point instructions". Approximations of a GPU are exact here.
#include <cfenv>
#include <cmath>
#include <limits>

#include "instructions/arithmetic.h"

namespace emulator {
namespace {

// A number where one of the two is none, and -0 before +0.
template <class T>
T least(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T>
T most(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return b < a || (a == b && !std::signbit(a)) ? a : b;
}

template <class T>
bool any_nan(T a, T b) {
  return std::isnan(a) || std::isnan(b);
}

template <class T>
Handler extreme(const Parts &p, const Instruction &i) {
  constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
  if (!p.only({"NaN"})) return nullptr;
  if (p.has("NaN")) {
    if (sizeof(T) == 8) return nullptr;
    if (p[0] == "min") return lanewise<T, T, T>(i, [](T a, T b) { return any_nan(a, b) ? kNaN : least(a, b); });
    return lanewise<T, T, T>(i, [](T a, T b) { return any_nan(a, b) ? kNaN : most(a, b); });
  }
  if (p[0] == "min") return lanewise<T, T, T>(i, [](T a, T b) { return least(a, b); });
  return lanewise<T, T, T>(i, [](T a, T b) { return most(a, b); });
}

// Rounded to nearest.
template <class T>
Handler rounded(std::string_view name, const Instruction &i) {
  if (name == "add") return lanewise<T, T, T>(i, [](T a, T b) { return a + b; });
  if (name == "sub") return lanewise<T, T, T>(i, [](T a, T b) { return a - b; });
  if (name == "mul") return lanewise<T, T, T>(i, [](T a, T b) { return a * b; });
  if (name == "fma") return lanewise<T, T, T, T>(i, [](T a, T b, T c) { return std::fma(a, b, c); });
  return nullptr;
}
template <class T>
Handler approximate(std::string_view name, const Instruction &i) {
  if (name == "div") return lanewise<T, T, T>(i, [](T a, T b) { return a / b; });
  if (name == "rcp") return lanewise<T, T>(i, [](T a) { return 1 / a; });
  if (name == "sqrt") return lanewise<T, T>(i, [](T a) { return std::sqrt(a); });
  if (name == "rsqrt") return lanewise<T, T>(i, [](T a) { return 1 / std::sqrt(a); });
  return nullptr;
}

template <class T>
Handler of_type(const Parts &p, const Instruction &i) {
  const std::string_view name = p[0];
  if (name == "min" || name == "max") return extreme<T>(p, i);
  if (name == "neg") return p.count == 2 ? lanewise<T, T>(i, [](T a) { return -a; }) : nullptr;
  if (name == "abs") return p.count == 2 ? lanewise<T, T>(i, [](T a) { return std::fabs(a); }) : nullptr;
  if (p.only({"rn"})) {
    if (Handler h = rounded<T>(name, i)) return h;
  }
  return p.only({"rn", "approx", "full"}) ? approximate<T>(name, i) : nullptr;
}

// fma.rm: towards minus infinity.
void fma_down(Warp &w, const Instruction &i, uint32_t lanes) {
  std::fesetround(FE_DOWNWARD);
  each_lane(lanes, [&](int l) {
    volatile float a = w.f32(i[1])[l], b = w.f32(i[2])[l], c = w.f32(i[3])[l];
    volatile float d = std::fma(a, b, c);
    w.f32(i[0])[l] = d;
  });
  std::fesetround(FE_TONEAREST);
}

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// What there is of float alone.
Handler single(const Parts &p, const Instruction &i) {
  if (p[0] == "fma" && p.has("rm"))
    return p.only({"rm"}) && are<float, float, float, float>(i) ? fma_down : nullptr;
  if (p[0] == "ex2" && p.only({"approx"})) return lanewise<float, float>(i, [](float a) { return std::exp2(a); });
  if (p[0] == "ex2" && p.only({"approx", "ftz"}))
    return lanewise<float, float>(i, [](float a) { return flushed(std::exp2(flushed(a))); });
  if (p[0] == "lg2" && p.only({"approx"})) return lanewise<float, float>(i, [](float a) { return std::log2(a); });
  return of_type<float>(p, i);
}

}  // namespace

Handler float_instruction(const Parts &p, const Instruction &i) {
  if (p.last() == "f32") return single(p, i);
  return p.last() == "f64" && !p.has("approx") && !p.has("full") ? of_type<double>(p, i) : nullptr;
}

}  // namespace emulator
