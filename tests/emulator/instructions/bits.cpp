// Logic, shifts, and single bits: PTX ISA, "Logic and shift instructions", and prmt, bfi, bfind, brev, popc, clz.
#include <algorithm>

#include "instructions/arithmetic.h"

namespace emulator {
namespace {

template <class T>
Handler logic(std::string_view name, const Instruction &i) {
  if (name == "and") return lanewise<T, T, T>(i, [](T a, T b) { return static_cast<T>(a & b); });
  if (name == "or") return lanewise<T, T, T>(i, [](T a, T b) { return static_cast<T>(a | b); });
  if (name == "xor") return lanewise<T, T, T>(i, [](T a, T b) { return static_cast<T>(a ^ b); });
  if (name == "not") return lanewise<T, T>(i, [](T a) { return static_cast<T>(~a); });
  return nullptr;
}

// By more than there are bits: nothing is left, or the sign alone.
template <class T>
T shifted_left(T a, uint32_t n) {
  return n < 8 * sizeof(T) ? static_cast<T>(Wrap<T>(a) << n) : T(0);
}
template <class T>
T shifted_right(T a, uint32_t n) {
  constexpr uint32_t kMost = 8 * sizeof(T) - 1;
  if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (n < kMost ? n : kMost));
  return n <= kMost ? static_cast<T>(a >> n) : T(0);
}
template <class T>
Handler shift(std::string_view name, const Instruction &i) {
  if (name == "shl") return lanewise<T, T, uint32_t>(i, [](T a, uint32_t n) { return shifted_left(a, n); });
  return lanewise<T, T, uint32_t>(i, [](T a, uint32_t n) { return shifted_right(a, n); });
}

// prmt: four of the eight bytes, or their signs.
uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t d = 0;
  for (int n = 0; n < 4; ++n) {
    const uint32_t s = selector >> (4 * n) & 15;
    auto byte = static_cast<uint32_t>(bytes >> (8 * (s & 7)) & 255);
    if (s & 8) byte = byte & 128 ? 255 : 0;
    d |= byte << (8 * n);
  }
  return d;
}

uint32_t reversed(uint32_t a) {
  uint32_t d = 0;
  for (int n = 0; n < 32; ++n) d |= (a >> n & 1) << (31 - n);
  return d;
}

// bfi: the lowest bits of `a` in their place in `b`.
uint32_t inserted(uint32_t a, uint32_t b, uint32_t position, uint32_t length) {
  const uint32_t at = std::min(position & 255, 32u), bits = std::min(length & 255, 32u);
  const uint64_t mask = ((uint64_t{1} << bits) - 1) << at;
  return static_cast<uint32_t>(((uint64_t{a} << at) & mask) | (b & ~mask));
}

uint32_t leading_zeros(uint32_t a) { return a == 0 ? 32 : static_cast<uint32_t>(__builtin_clz(a)); }
uint32_t ones(uint32_t a) { return static_cast<uint32_t>(__builtin_popcount(a)); }

}  // namespace

Handler bit_instruction(const Parts &p, const Instruction &i) {
  using U = uint32_t;
  const std::string_view name = p[0], type = p.last();
  if (name == "bfind" && type == "u32") {
    if (p.only({})) return lanewise<U, U>(i, [](U a) { return a == 0 ? ~U(0) : 31 - leading_zeros(a); });
    if (!p.only({"shiftamt"})) return nullptr;
    return lanewise<U, U>(i, [](U a) { return a == 0 ? ~U(0) : leading_zeros(a); });
  }
  if (p.count != 2) return nullptr;
  if (name == "shr" || name == "shl")
    return with_integer(type, [&](auto t) { return shift<decltype(t)>(name, i); });
  if (type[0] != 'b') return nullptr;
  if (type == "b32") {
    if (name == "prmt") return lanewise<U, U, U, U>(i, [](U a, U b, U c) { return permute(a, b, c); });
    if (name == "bfi") return lanewise<U, U, U, U, U>(i, [](U a, U b, U c, U d) { return inserted(a, b, c, d); });
    if (name == "brev") return lanewise<U, U>(i, [](U a) { return reversed(a); });
    if (name == "popc") return lanewise<U, U>(i, [](U a) { return ones(a); });
    if (name == "clz") return lanewise<U, U>(i, [](U a) { return leading_zeros(a); });
  }
  return with_integer(type, [&](auto t) { return logic<decltype(t)>(name, i); });
}

}  // namespace emulator
