// Arithmetic of integers: PTX ISA, "Integer arithmetic instructions".
#include "instructions/arithmetic.h"

namespace emulator {
namespace {

// PTX leaves a division by zero open; the GPU gives all ones.
template <class T>
T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return static_cast<T>(Wrap<T>(0) - Wrap<T>(a));
  }
  return static_cast<T>(a / b);
}
template <class T>
T remainder(T a, T b) {
  return b == 0 ? a : static_cast<T>(Wrap<T>(a) - Wrap<T>(quotient(a, b)) * Wrap<T>(b));
}

template <class T>
Handler plain(std::string_view name, const Instruction &i) {
  using W = Wrap<T>;
  if (name == "add") return lanewise<T, T, T>(i, [](T a, T b) { return static_cast<T>(W(a) + W(b)); });
  if (name == "sub") return lanewise<T, T, T>(i, [](T a, T b) { return static_cast<T>(W(a) - W(b)); });
  if (name == "div") return lanewise<T, T, T>(i, [](T a, T b) { return quotient(a, b); });
  if (name == "rem") return lanewise<T, T, T>(i, [](T a, T b) { return remainder(a, b); });
  if (name == "neg") return lanewise<T, T>(i, [](T a) { return static_cast<T>(W(0) - W(a)); });
  if (name == "abs") return lanewise<T, T>(i, [](T a) { return static_cast<T>(a < T(0) ? W(0) - W(a) : W(a)); });
  if (name == "min") return lanewise<T, T, T>(i, [](T a, T b) { return a < b ? a : b; });
  if (name == "max") return lanewise<T, T, T>(i, [](T a, T b) { return b < a ? a : b; });
  return nullptr;
}

// mul.lo, mad.lo
template <class T>
Handler low(std::string_view name, const Instruction &i) {
  using W = Wrap<T>;
  if (name == "mul") return lanewise<T, T, T>(i, [](T a, T b) { return static_cast<T>(W(a) * W(b)); });
  if (name == "mad")
    return lanewise<T, T, T, T>(i, [](T a, T b, T c) { return static_cast<T>(W(a) * W(b) + W(c)); });
  return nullptr;
}

// mul.wide, mad.wide
template <class T, class Wide>
Handler wide(std::string_view name, const Instruction &i) {
  if (name == "mul") return lanewise<Wide, T, T>(i, [](T a, T b) { return static_cast<Wide>(Wide(a) * Wide(b)); });
  if (name == "mad")
    return lanewise<Wide, T, T, Wide>(
        i, [](T a, T b, Wide c) { return static_cast<Wide>(Wrap<Wide>(Wide(a) * Wide(b)) + Wrap<Wide>(c)); });
  return nullptr;
}
Handler wide_of(std::string_view name, std::string_view type, const Instruction &i) {
  if (type == "s32") return wide<int32_t, int64_t>(name, i);
  if (type == "u32") return wide<uint32_t, uint64_t>(name, i);
  if (type == "s16") return wide<int16_t, int32_t>(name, i);
  if (type == "u16") return wide<uint16_t, uint32_t>(name, i);
  return nullptr;
}

// mul.hi
template <class T, class Wide>
Handler high(const Instruction &i) {
  return lanewise<T, T, T>(i, [](T a, T b) { return static_cast<T>(Wide(a) * Wide(b) >> (8 * sizeof(T))); });
}
Handler high_of(std::string_view type, const Instruction &i) {
  if (type == "u32") return high<uint32_t, uint64_t>(i);
  if (type == "s32") return high<int32_t, int64_t>(i);
  if (type == "u64") return high<uint64_t, unsigned __int128>(i);
  if (type == "s64") return high<int64_t, __int128>(i);
  return nullptr;
}

}  // namespace

Handler integer_instruction(const Parts &p, const Instruction &i) {
  const std::string_view name = p[0], type = p.last();
  if (name == "mul" || name == "mad") {
    if (p.count != 3) return nullptr;
    if (p[1] == "wide") return wide_of(name, type, i);
    if (p[1] == "hi") return name == "mul" ? high_of(type, i) : nullptr;
    if (p[1] != "lo") return nullptr;
    return with_integer(type, [&](auto t) { return low<decltype(t)>(name, i); });
  }
  if (p.count != 2 || type[0] == 'b') return nullptr;
  return with_integer(type, [&](auto t) { return plain<decltype(t)>(name, i); });
}

}  // namespace emulator
