// What the lanes of a warp tell each other: shuffles, votes, elect. Each lane executes them with the lanes of the
// mask in its last operand, which machine.cpp has waited for.
#include "instructions/control.h"

namespace emulator {
namespace {

// Calls `body` with each set of lanes that name one another.
template <class Body>
void each_mask(const Warp &w, const Instruction &i, uint32_t lanes, const Body &body) {
  while (lanes != 0) {
    const uint32_t mask = w.u32(i[i.count - 1])[__builtin_ctz(lanes)];
    uint32_t same = 0;
    each_lane(lanes, [&](int l) { same |= uint32_t{w.u32(i[i.count - 1])[l] == mask} << l; });
    if ((mask & w.alive) != same) throw Fault("the lanes of a mask are not those that execute it");
    body(same);
    lanes &= ~same;
  }
}

enum class Shuffle { kIndex, kUp, kDown, kButterfly };

// PTX ISA, "shfl.sync": where a lane's value comes from; -1: the lane is outside of its segment.
template <Shuffle S>
int source(int lane, int by, uint32_t c) {
  const int clamp = static_cast<int>(c & 31), segment = static_cast<int>(c >> 8 & 31);
  const int first = lane & segment, last = first | (clamp & ~segment);
  if (S == Shuffle::kUp) return lane - by >= last ? lane - by : -1;  // with a clamp of 0, "last" is the first there
  const int from = S == Shuffle::kDown ? lane + by : S == Shuffle::kButterfly ? lane ^ by : first | (by & ~segment);
  return from <= last ? from : -1;
}

// shfl.sync.mode.b32 d|p, a, b, c, mask. A value of a lane that takes no part means nothing: it is all ones.
template <Shuffle S>
void shuffle(Warp &w, const Instruction &i, uint32_t lanes) {
  const bool tells = i.sizes[0] == 2;
  const Operand &a = i[tells ? 2 : 1], &b = i[tells ? 3 : 2], &c = i[tells ? 4 : 3];
  uint32_t values[kLanes], inside = 0;
  std::memcpy(values, w.u32(a), sizeof values);
  each_mask(w, i, lanes, [&](uint32_t those) {
    each_lane(those, [&](int l) {
      const int from = source<S>(l, static_cast<int>(w.u32(b)[l] & 31), w.u32(c)[l]);
      const bool known = from < 0 || (those >> from & 1) != 0;
      set_lane(w, i[0], l, known ? values[from < 0 ? l : from] : ~0u);
      inside |= uint32_t{from >= 0} << l;
    });
  });
  if (tells) set_predicate(w, i[1], lanes, inside);
}
template <Shuffle S>
Handler shuffle_of(const Instruction &i) {
  const bool tells = i.sizes[0] == 2;
  if (i.count != (tells ? 6 : 5) || (tells && !i[1].sink && i[1].words != 0)) return nullptr;
  for (int n = tells ? 2 : 1; n < i.count; ++n) {
    if (i[n].words != 1) return nullptr;
  }
  return i[0].words == 1 ? shuffle<S> : nullptr;
}

// vote.sync.mode d, p, mask
enum class Vote { kAny, kAll, kBallot };
template <Vote V>
void vote(Warp &w, const Instruction &i, uint32_t lanes) {
  each_mask(w, i, lanes, [&](uint32_t those) {
    const uint32_t p = w.predicate(i[1]) & those;
    if (V == Vote::kBallot) {
      each_lane(those, [&](int l) { set_lane(w, i[0], l, p); });
    } else {
      set_predicate(w, i[0], those, (V == Vote::kAny ? p != 0 : p == those) ? those : 0);
    }
  });
}

// elect.sync d|p, mask
void elect(Warp &w, const Instruction &i, uint32_t lanes) {
  each_mask(w, i, lanes, [&](uint32_t those) {
    const int leader = __builtin_ctz(those);
    each_lane(those, [&](int l) { set_lane(w, i[0], l, static_cast<uint32_t>(leader)); });
    set_predicate(w, i[1], those, 1u << leader);
  });
}

void nothing(Warp &w, const Instruction &i, uint32_t lanes) {
  each_mask(w, i, lanes, [](uint32_t) {});
}

}  // namespace

Handler warp_instruction(const Parts &p, Instruction &i) {
  i.meet = Instruction::kMask;
  if (i.count == 0 || i[i.count - 1].words != 1) return nullptr;
  if (p[0] == "bar") return p.count == 3 && p[2] == "sync" && i.count == 1 ? nothing : nullptr;
  if (p[1] != "sync") return nullptr;
  if (p[0] == "elect") return p.count == 2 && i.count == 3 && i[1].words == 0 ? elect : nullptr;
  if (p.count != 4) return nullptr;
  const std::string_view mode = p[2];
  if (p[0] == "vote") {
    if (i.count != 3 || i[1].words != 0 || i[0].words != (mode == "ballot" ? 1 : 0)) return nullptr;
    return mode == "any"      ? vote<Vote::kAny>
           : mode == "all"    ? vote<Vote::kAll>
           : mode == "ballot" ? vote<Vote::kBallot>
                              : nullptr;
  }
  if (p[0] != "shfl" || p.last() != "b32") return nullptr;
  if (mode == "idx") return shuffle_of<Shuffle::kIndex>(i);
  if (mode == "up") return shuffle_of<Shuffle::kUp>(i);
  if (mode == "down") return shuffle_of<Shuffle::kDown>(i);
  return mode == "bfly" ? shuffle_of<Shuffle::kButterfly>(i) : nullptr;
}

}  // namespace emulator
