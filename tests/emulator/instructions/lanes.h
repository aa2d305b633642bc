// How a handler goes through the lanes of a warp.
#pragma once

#include <bit>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "machine/machine.h"

namespace emulator {

// Values of up to 32 bits have a word in the register file, others two.
template <class T>
using Stored = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
T read(Stored<T> bits) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<T>(bits);
  } else {
    return static_cast<T>(bits);
  }
}
template <class T>
Stored<T> bits_of(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<Stored<T>>(value);
  } else {
    return static_cast<Stored<T>>(static_cast<std::make_unsigned_t<T>>(value));
  }
}

template <class T>
Stored<T> *lanes_of(const Warp &w, const Operand &o) {
  return reinterpret_cast<Stored<T> *>(w.file + o.slot);
}

// Of an operand whose register may be wider than the type (ld.param.s32 into a register of 64 bits).
inline uint64_t lane_bits(const Warp &w, const Operand &o, int lane) {
  return o.words == 2 ? w.u64(o)[lane] : w.u32(o)[lane];
}
inline void set_lane(const Warp &w, const Operand &o, int lane, uint64_t value) {
  if (o.sink) return;
  if (o.words == 2) {
    w.u64(o)[lane] = value;
  } else {
    w.u32(o)[lane] = static_cast<uint32_t>(value);
  }
}
inline void set_predicate(const Warp &w, const Operand &o, uint32_t lanes, uint32_t bits) {
  if (o.sink) return;
  uint32_t &p = w.predicate(o);
  p = (p & ~lanes) | (bits & lanes);
}

template <class Body>
void each_lane(uint32_t lanes, const Body &body) {
  for (; lanes != 0; lanes &= lanes - 1) body(__builtin_ctz(lanes));
}

// d = f(a...) for the lanes; whole warps in a loop that the compiler makes vectors of.
template <class D, class... A, class F>
void map_lanes(const Warp &w, const Instruction &i, uint32_t lanes, const F &f) {
  Stored<D> *to = lanes_of<D>(w, i[0]);
  [&]<size_t... N>(std::index_sequence<N...>) {
    const auto sources = std::make_tuple(lanes_of<A>(w, i[N + 1])...);
    const auto one = [&](int lane) {
      to[lane] = bits_of<D>(static_cast<D>(f(read<A>(std::get<N>(sources)[lane])...)));
    };
    if (lanes == kAllLanes) {
#pragma GCC ivdep
      for (int lane = 0; lane < kLanes; ++lane) one(lane);
    } else {
      each_lane(lanes, one);
    }
  }
  (std::index_sequence_for<A...>());
}

// Whether the operands are registers as wide as these types; bool: predicates.
template <class... T>
bool are(const Instruction &i) {
  if (i.count != sizeof...(T)) return false;
  int n = 0;
  const auto fits = [&](uint8_t words) { return !i[n].sink && i[n++].words == words; };
  return (fits(std::is_same_v<T, bool> ? 0 : sizeof(Stored<T>) / 4) && ...);
}
// The handler of d = f(a...), lane by lane; null where the operands do not fit. F keeps nothing.
template <class D, class... A, class F>
Handler lanewise(const Instruction &i, F) {
  if (!are<D, A...>(i)) return nullptr;
  return [](Warp &w, const Instruction &instruction, uint32_t lanes) {
    map_lanes<D, A...>(w, instruction, lanes, F());
  };
}

// The parts of an opcode between dots.
struct Parts {
  std::string_view all[12];
  int count = 0;
  explicit Parts(std::string_view opcode) {
    while (count < 12) {
      const size_t dot = opcode.find('.');
      all[count++] = opcode.substr(0, dot);
      if (dot == std::string_view::npos) break;
      opcode.remove_prefix(dot + 1);
    }
  }
  std::string_view operator[](int n) const { return n >= 0 && n < count ? all[n] : std::string_view(); }
  std::string_view last() const { return all[count - 1]; }
  bool has(std::string_view part) const {
    for (int n = 0; n < count; ++n) {
      if (all[n] == part) return true;
    }
    return false;
  }
  // Whether all that stands between the name and the type is among these.
  bool only(std::initializer_list<std::string_view> known) const {
    for (int n = 1; n < count - 1; ++n) {
      bool found = false;
      for (const std::string_view k : known) found |= k == all[n];
      if (!found) return false;
    }
    return true;
  }
};

// Calls `body` with a value of the type that a suffix names; null where it names none.
template <class Body>
Handler with_integer(std::string_view type, const Body &body) {
  if (type == "s32") return body(int32_t());
  if (type == "u32" || type == "b32") return body(uint32_t());
  if (type == "s64") return body(int64_t());
  if (type == "u64" || type == "b64") return body(uint64_t());
  if (type == "s16") return body(int16_t());
  if (type == "u16" || type == "b16") return body(uint16_t());
  return nullptr;
}
template <class Body>
Handler with_float(std::string_view type, const Body &body) {
  if (type == "f32") return body(float());
  if (type == "f64") return body(double());
  return nullptr;
}

// Sums and products of integers wrap: they are computed in this type.
template <class T>
using Wrap = std::make_unsigned_t<std::common_type_t<T, int32_t>>;

}  // namespace emulator
