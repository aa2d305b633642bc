// Loads, stores, atomics and addresses: ld, st, atom, red, cvta, mapa.
#include "instructions/convert.h"
#include "instructions/lanes.h"

namespace emulator {
namespace {

enum class Space { kGlobal, kShared, kGeneric, kLocal, kParameters, kUnknown };

// What an opcode says besides the operation and the type: where, and how, which changes nothing here.
Space space_of(const Parts &p, std::string_view operation = {}) {
  constexpr std::string_view kHow[] = {"volatile", "relaxed", "acquire", "release", "acq_rel", "weak", "cta",
                                       "cluster",  "gpu",     "sys",     "nc",      "ca",      "cg",   "cs",
                                       "lu",       "cv",      "wb",      "wt",      "v2",      "v4",   "noftz"};
  Space space = Space::kGeneric;
  for (int n = 1; n < p.count - 1; ++n) {
    const std::string_view s = p[n];
    if (s == "shared" || s == "shared::cta" || s == "shared::cluster") {
      space = Space::kShared;
    } else if (s == "global") {
      space = Space::kGlobal;
    } else if (s == "local") {
      space = Space::kLocal;
    } else if (s == "param") {
      space = Space::kParameters;
    } else if (s != operation && !s.starts_with("L1::") && !s.starts_with("L2::")) {
      bool known = false;
      for (const std::string_view how : kHow) known |= s == how;
      if (!known) return Space::kUnknown;
    }
  }
  return space;
}

template <Space S>
std::byte *at(const Warp &w, int lane, uint64_t address, size_t bytes, bool write) {
  if constexpr (S == Space::kGlobal) return global_memory(address, bytes, write);
  if constexpr (S == Space::kShared) return shared_memory(*w.block, address, bytes);
  if constexpr (S == Space::kLocal) return local_memory(w, lane, address, bytes);
  if constexpr (S == Space::kParameters)
    return const_cast<std::byte *>(parameter_memory(*w.block, address, bytes));  // which are loaded alone
  return generic_memory(*w.block, address, bytes, write);
}

// detail: how many values a lane has.
template <class T, Space S>
void load(Warp &w, const Instruction &i, uint32_t lanes) {
  const auto count = static_cast<int>(i.detail);
  const size_t bytes = sizeof(T) * i.detail;
  const Operand &from = i[count];
  each_lane(lanes, [&](int l) {
    T values[4];  // first all of them: the address may be in a register that is written
    std::memcpy(values, at<S>(w, l, w.address(from, l), bytes, false), bytes);
    for (int n = 0; n < count; ++n) set_lane(w, i[n], l, static_cast<uint64_t>(values[n]));  // with its sign
  });
}
template <class T, Space S>
void store(Warp &w, const Instruction &i, uint32_t lanes) {
  const auto count = static_cast<int>(i.detail);
  const size_t bytes = sizeof(T) * i.detail;
  each_lane(lanes, [&](int l) {
    T values[4];
    for (int n = 0; n < count; ++n) values[n] = static_cast<T>(lane_bits(w, i[1 + n], l));
    std::memcpy(at<S>(w, l, w.address(i[0], l), bytes, true), values, bytes);
  });
}

template <class T>
T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(Wrap<T>(a) + Wrap<T>(b));
  return a + b;
}
enum class Operation { kAdd, kMin, kMax };
template <class T, Operation O>
T combined(T a, T b) {
  if (O == Operation::kAdd) return sum(a, b);
  return (O == Operation::kMin) == (a < b) ? a : b;
}

// atom d, [a], b and red [a], b; detail: 1 with a result.
template <class T, Operation O, Space S>
void update(Warp &w, const Instruction &i, uint32_t lanes) {
  const auto first = static_cast<int>(i.detail);
  each_lane(lanes, [&](int l) {
    std::byte *p = at<S>(w, l, w.address(i[first], l), sizeof(T), true);
    T old;
    std::memcpy(&old, p, sizeof(T));
    const T value = combined<T, O>(old, read<T>(static_cast<Stored<T>>(lane_bits(w, i[first + 1], l))));
    std::memcpy(p, &value, sizeof(T));
    if (first == 1) set_lane(w, i[0], l, bits_of<T>(old));
  });
}

// red.global.add.noftz.v4.f16x2 [a], {...}
template <float From(uint16_t), uint16_t To(float)>
void add_pairs(Warp &w, const Instruction &i, uint32_t lanes) {
  const auto count = static_cast<size_t>(i.count - 1);
  each_lane(lanes, [&](int l) {
    auto *p = global_memory(w.address(i[0], l), 4 * count, true);
    for (size_t n = 0; n < 2 * count; ++n) {
      uint16_t old;
      std::memcpy(&old, p + 2 * n, 2);
      const auto bits = static_cast<uint16_t>(w.u32(i[static_cast<int>(1 + n / 2)])[l] >> (16 * (n & 1)));
      old = To(From(old) + From(bits));
      std::memcpy(p + 2 * n, &old, 2);
    }
  });
}

// The handler F<T, S> of a type and a space that are known when the program runs.
template <template <class, Space> class F, class T>
Handler in_space(Space s) {
  switch (s) {
    case Space::kGlobal: return F<T, Space::kGlobal>::run;
    case Space::kShared: return F<T, Space::kShared>::run;
    case Space::kGeneric: return F<T, Space::kGeneric>::run;
    case Space::kLocal: return F<T, Space::kLocal>::run;
    case Space::kParameters: return F<T, Space::kParameters>::run;
    case Space::kUnknown: break;
  }
  return nullptr;
}
template <template <class, Space> class F>
Handler of_type(std::string_view type, Space s) {
  if (type == "u8" || type == "b8") return in_space<F, uint8_t>(s);
  if (type == "s8") return in_space<F, int8_t>(s);
  if (type == "u16" || type == "b16") return in_space<F, uint16_t>(s);
  if (type == "s16") return in_space<F, int16_t>(s);
  if (type == "u32" || type == "b32" || type == "f32") return in_space<F, uint32_t>(s);
  if (type == "s32") return in_space<F, int32_t>(s);
  if (type == "u64" || type == "b64" || type == "f64" || type == "s64") return in_space<F, uint64_t>(s);
  return nullptr;
}

template <class T, Space S>
struct Load {
  static constexpr Handler run = load<T, S>;
};
template <class T, Space S>
struct Store {
  static constexpr Handler run = store<T, S>;
};
template <Operation O>
struct Update {
  template <class T, Space S>
  struct Of {
    static constexpr Handler run = update<T, O, S>;
  };
};

template <Operation O>
Handler of_atomic(std::string_view type, Space s) {
  if (O == Operation::kAdd && type == "f32") return in_space<Update<O>::template Of, float>(s);
  if (O == Operation::kAdd && type == "f64") return in_space<Update<O>::template Of, double>(s);
  if (type == "u32") return in_space<Update<O>::template Of, uint32_t>(s);
  if (type == "s32") return in_space<Update<O>::template Of, int32_t>(s);
  if (type == "u64") return in_space<Update<O>::template Of, uint64_t>(s);
  if (type == "s64") return in_space<Update<O>::template Of, int64_t>(s);
  return nullptr;
}

Handler atomic(const Parts &p, Instruction &i) {
  const bool returns = p[0] == "atom", pairs = p.last() == "f16x2" || p.last() == "bf16x2";
  const std::string_view operation = p.has("add") ? "add" : p.has("min") ? "min" : "max";
  const Space s = space_of(p, operation);
  if (!p.has(operation) || s == Space::kParameters || s == Space::kLocal || s == Space::kUnknown) return nullptr;
  i.detail = returns ? 1 : 0;
  if (pairs) {
    const int count = p.has("v4") ? 4 : p.has("v2") ? 2 : 1;
    if (returns || operation != "add" || s != Space::kGlobal || i.count != count + 1) return nullptr;
    return p.last() == "f16x2" ? add_pairs<from_half, to_half> : add_pairs<from_bfloat16, to_bfloat16>;
  }
  if (i.count != (returns ? 3 : 2) || p.has("v2") || p.has("v4")) return nullptr;
  if (operation == "add") return of_atomic<Operation::kAdd>(p.last(), s);
  if (operation == "min") return of_atomic<Operation::kMin>(p.last(), s);
  return of_atomic<Operation::kMax>(p.last(), s);
}

Handler access(const Parts &p, Instruction &i) {
  const Space s = space_of(p);
  i.detail = p.has("v4") ? 4 : p.has("v2") ? 2 : 1;
  if (i.count != i.detail + 1 || p.has("noftz")) return nullptr;
  for (int n = 0; n < i.count; ++n) {
    if (i[n].words == 0) return nullptr;
  }
  if (p[0] == "ld") return of_type<Load>(p.last(), s);
  return s == Space::kParameters ? nullptr : of_type<Store>(p.last(), s);
}

// mapa d, address, rank: the same place in the shared memory of another block.
void map_shared(Warp &w, const Instruction &i, uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const uint64_t address = w.u32(i[1])[l], rank = w.u32(i[2])[l];
    set_lane(w, i[0], l, (address & 0xffffff) | (rank + 1) << 24);
  });
}
void map_generic(Warp &w, const Instruction &i, uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const uint64_t address = w.u64(i[1])[l] - kSharedWindow, rank = w.u32(i[2])[l];
    set_lane(w, i[0], l, kSharedWindow + ((address & 0xffffff) | (rank + 1) << 24));
  });
}
Handler map(std::string_view opcode, const Instruction &i) {
  if (opcode == "mapa.shared::cluster.u32" && are<uint32_t, uint32_t, uint32_t>(i)) return map_shared;
  return opcode == "mapa.u64" && are<uint64_t, uint64_t, uint32_t>(i) ? map_generic : nullptr;
}

// cvta: between a space's addresses and generic ones, which differ in shared memory alone.
Handler address(const Parts &p, const Instruction &i) {
  const bool to = p[1] == "to";
  const std::string_view space = p[to ? 2 : 1];
  if (p.count != (to ? 4 : 3) || p.last() != "u64" || i.count != 2 || i[0].words != 2 || i[1].words != 2)
    return nullptr;
  if (space == "global" || space == "local" || space == "param")
    return lanewise<uint64_t, uint64_t>(i, [](uint64_t a) { return a; });
  if (space != "shared" && space != "shared::cta" && space != "shared::cluster") return nullptr;
  if (to) return lanewise<uint64_t, uint64_t>(i, [](uint64_t a) { return a - kSharedWindow; });
  return lanewise<uint64_t, uint64_t>(i, [](uint64_t a) { return a + kSharedWindow; });
}

}  // namespace

Handler memory_instruction(std::string_view opcode, Instruction &i) {
  const Parts p(opcode);
  const std::string_view name = p[0];
  if (name == "cvta") return address(p, i);
  if (name == "mapa") return map(opcode, i);
  if (name == "atom" || name == "red") return atomic(p, i);
  return name == "ld" || name == "st" ? access(p, i) : nullptr;
}

}  // namespace emulator
