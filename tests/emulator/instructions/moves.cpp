// mov: from register to register, and between one and those of its halves or quarters.
#include <functional>

#include "instructions/arithmetic.h"

namespace emulator {
namespace {

void move_predicate(Warp &w, const Instruction &i, uint32_t lanes) {
  set_predicate(w, i[0], lanes, w.predicate(i[1]));
}

// detail: bits of a part.
uint64_t mask_of(const Instruction &i) { return (uint64_t{1} << i.detail) - 1; }
void pack(Warp &w, const Instruction &i, uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    uint64_t value = 0;
    for (int n = 1; n < i.count; ++n) {
      value |= (lane_bits(w, i[n], l) & mask_of(i)) << (static_cast<uint64_t>(n - 1) * i.detail);
    }
    set_lane(w, i[0], l, value);
  });
}
void unpack(Warp &w, const Instruction &i, uint32_t lanes) {
  const int parts = i.count - 1;
  each_lane(lanes, [&](int l) {
    const uint64_t value = lane_bits(w, i[parts], l);
    for (int n = 0; n < parts; ++n) {
      set_lane(w, i[n], l, value >> (static_cast<uint64_t>(n) * i.detail) & mask_of(i));
    }
  });
}

}  // namespace

Handler move_instruction(const Parts &p, Instruction &i) {
  const std::string_view type = p.last();
  if (p.count != 2 || i.written != 2) return nullptr;
  if (type == "pred") return are<bool, bool>(i) ? move_predicate : nullptr;
  const bool packs = i.sizes[1] > 1, unpacks = i.sizes[0] > 1;
  if (!packs && !unpacks) {
    if (Handler h =
            with_float(type, [&](auto t) { return lanewise<decltype(t), decltype(t)>(i, std::identity()); }))
      return h;
    return with_integer(type, [&](auto t) { return lanewise<decltype(t), decltype(t)>(i, std::identity()); });
  }
  const int parts = i.count - 1, bits = type == "b32" ? 32 : type == "b64" ? 64 : 0;
  const Operand &whole = i[packs ? 0 : parts];
  if (bits == 0 || (packs && unpacks) || (parts != 2 && parts != 4) || whole.words != bits / 32) return nullptr;
  i.detail = static_cast<uint64_t>(bits / parts);
  for (int n = 0; n < i.count; ++n) {
    if (i[n].words == 0) return nullptr;
  }
  return packs ? pack : unpack;
}

}  // namespace emulator
