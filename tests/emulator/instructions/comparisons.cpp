// Comparisons, what is chosen by them, and the logic of predicates.
#include <cmath>

#include "instructions/arithmetic.h"

namespace emulator {
namespace {

// The handler of p = f(a, b); null where the operands do not fit: "p|q" has one more.
template <class T, class F>
Handler comparison(const Instruction &i, F) {
  if (!are<bool, T, T>(i)) return nullptr;
  return [](Warp &w, const Instruction &instruction, uint32_t lanes) {
    const Stored<T> *a = lanes_of<T>(w, instruction[1]), *b = lanes_of<T>(w, instruction[2]);
    uint32_t result = 0;
    for (int l = 0; l < kLanes; ++l) result |= uint32_t{F()(read<T>(a[l]), read<T>(b[l]))} << l;
    set_predicate(w, instruction[0], lanes, result);
  };
}

template <class T>
Handler ordered(std::string_view how, const Instruction &i) {
  if (how == "eq") return comparison<T>(i, [](T a, T b) { return a == b; });
  if (how == "lt") return comparison<T>(i, [](T a, T b) { return a < b; });
  if (how == "le") return comparison<T>(i, [](T a, T b) { return a <= b; });
  if (how == "gt") return comparison<T>(i, [](T a, T b) { return b < a; });
  if (how == "ge") return comparison<T>(i, [](T a, T b) { return b <= a; });
  return nullptr;
}
template <class T>
Handler of_integers(std::string_view how, const Instruction &i) {
  if (how == "ne") return comparison<T>(i, [](T a, T b) { return a != b; });
  if constexpr (std::is_unsigned_v<T>) {
    if (how == "lo") return ordered<T>("lt", i);
    if (how == "ls") return ordered<T>("le", i);
    if (how == "hi") return ordered<T>("gt", i);
    if (how == "hs") return ordered<T>("ge", i);
  }
  return ordered<T>(how, i);
}
// Those with a u, "unordered", are true where one of the two is NaN; "ne" is not.
template <class T>
Handler of_floats(std::string_view how, const Instruction &i) {
  if (how == "ne") return comparison<T>(i, [](T a, T b) { return a < b || b < a; });
  if (how == "equ") return comparison<T>(i, [](T a, T b) { return !(a < b || b < a); });
  if (how == "neu") return comparison<T>(i, [](T a, T b) { return !(a == b); });
  if (how == "ltu") return comparison<T>(i, [](T a, T b) { return !(b <= a); });
  if (how == "leu") return comparison<T>(i, [](T a, T b) { return !(b < a); });
  if (how == "gtu") return comparison<T>(i, [](T a, T b) { return !(a <= b); });
  if (how == "geu") return comparison<T>(i, [](T a, T b) { return !(a < b); });
  if (how == "nan") return comparison<T>(i, [](T a, T b) { return std::isnan(a) || std::isnan(b); });
  if (how == "num") return comparison<T>(i, [](T a, T b) { return !std::isnan(a) && !std::isnan(b); });
  return ordered<T>(how, i);
}

template <class T>
void select(Warp &w, const Instruction &i, uint32_t lanes) {
  const Stored<T> *a = lanes_of<T>(w, i[1]), *b = lanes_of<T>(w, i[2]);
  Stored<T> *d = lanes_of<T>(w, i[0]);
  const uint32_t p = w.predicate(i[3]);
  each_lane(lanes, [&](int l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
}
template <class T>
Handler selection(const Instruction &i) {
  return are<T, T, T, bool>(i) ? select<T> : nullptr;
}

// The handler of d = f(p, q), whose operands are bits of all lanes.
template <class F>
Handler of_predicates(const Instruction &i, F) {
  if (!are<bool, bool, bool>(i)) return nullptr;
  return [](Warp &w, const Instruction &instruction, uint32_t lanes) {
    set_predicate(w, instruction[0], lanes, F()(w.predicate(instruction[1]), w.predicate(instruction[2])));
  };
}
void invert(Warp &w, const Instruction &i, uint32_t lanes) { set_predicate(w, i[0], lanes, ~w.predicate(i[1])); }

Handler logic(std::string_view name, const Instruction &i) {
  if (name == "and") return of_predicates(i, [](uint32_t p, uint32_t q) { return p & q; });
  if (name == "or") return of_predicates(i, [](uint32_t p, uint32_t q) { return p | q; });
  if (name == "xor") return of_predicates(i, [](uint32_t p, uint32_t q) { return p ^ q; });
  return name == "not" && are<bool, bool>(i) ? invert : nullptr;
}

}  // namespace

Handler comparison_instruction(const Parts &p, const Instruction &i) {
  const std::string_view type = p.last();
  if (p[0] == "setp") {
    if (p.count != 3) return nullptr;  // not with another predicate
    if (Handler h = with_float(type, [&](auto t) { return of_floats<decltype(t)>(p[1], i); })) return h;
    return with_integer(type, [&](auto t) { return of_integers<decltype(t)>(p[1], i); });
  }
  if (p.count != 2) return nullptr;
  if (p[0] != "selp") return logic(p[0], i);
  if (Handler h = with_float(type, [&](auto t) { return selection<decltype(t)>(i); })) return h;
  return with_integer(type, [&](auto t) { return selection<decltype(t)>(i); });
}

}  // namespace emulator
