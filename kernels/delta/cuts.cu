#include "cuts.h"

#include <algorithm>

#include "layout.cuh"

namespace lasp::gpu::delta_hopper {
namespace {

// Few runs that are long do not fill the GPU: they are cut in parts, which are walked twice. As many as should take
// the least time, by microseconds of a chunk on an H200; fewer where it is nearly the same. Where parts can
// forget (can_forget), M is counted as nothing, as if all did. If none does, a pass should take 5% longer for it.
// Of blocks with two slices, and per channel with one.
struct Costs {
  double states, outputs, back;
};
constexpr Costs kPairs = {2.5, 3.6, kBack}, kChannels = {1.9, 2.5, 2.15};
const Costs &costs_of(const DeltaInputs &p) { return p.decay == Decay::kChannel ? kChannels : kPairs; }
constexpr double kScan = 3, kLaunches = 15;
constexpr double kAlone = 1.6;  // in a block of one slice, for ends, where decay is not per channel

// Of so many blocks of two slices, and others of one. These start last, and first fill the multiprocessors that the
// last round of pairs leaves idle.
double time_of_ends(int64_t pairs, int64_t singles) {
  const int64_t last = pairs % kMultiprocessors;
  const int64_t beside = last > 0 ? int64_t(kPairs.states / kAlone) * (kMultiprocessors - last) : 0;
  return rounds(pairs) * kPairs.states + rounds(std::max(singles - beside, int64_t{0})) * kAlone;
}

// A walk beside the preparation, where decay is per channel. Its multiprocessors first prepare so many chunks that
// the others can keep ahead of it. As for other cuts, `time` leaves out what the preparation alone takes.
Cut beside_preparation(const DeltaInputs &p, int64_t walks, int64_t chunks, double of_chunk) {
  constexpr double kPrepare = 5.5;  // a chunk of one head, on a multiprocessor
  const double all = double(chunks) * p.heads, walk = of_chunk * double(chunks);
  const double rest = double(kMultiprocessors - walks) * walk / kPrepare;
  Cut cut;
  cut.early = int32_t(std::max(all - rest, std::min(all, 4.0 * p.heads)));
  cut.time = (cut.early - all) * kPrepare / kMultiprocessors + walk + kLaunches;
  return cut;
}

}  // namespace

int32_t of_stretch(const DeltaInputs &p) { return p.spacing / kChunk; }
double rounds(int64_t blocks) { return double((blocks + kMultiprocessors - 1) / kMultiprocessors); }
int64_t blocks_of(const DeltaInputs &p, int64_t num_runs, int32_t columns) {
  const int64_t of_block = p.decay == Decay::kChannel ? 1 : 2;
  return num_runs * p.heads * ((slices_of(columns) + of_block - 1) / of_block);
}
Cut cut_of(const DeltaInputs &p, int64_t num_runs, bool reversed) {
  constexpr int64_t kMost = 64, kLeast = 8;                 // parts, chunks of a part
  const int64_t chunks = (p.tokens + kChunk - 1) / kChunk;  // of a run, at most
  const int32_t columns = std::min(p.v.dim, kDim);
  const int32_t keys = can_forget(p) ? 0 : p.k.dim;  // columns of M
  const int64_t walks = blocks_of(p, num_runs, columns), of_maps = blocks_of(p, num_runs, keys),
                of_both = blocks_of(p, num_runs, slices_of(columns) * kSlice + keys);
  const Costs &costs = costs_of(p);
  const double result = reversed ? costs.back : costs.outputs, state = reversed ? costs.back : costs.states;
  // In halves, the ends of all parts are found, also of a run that is whole, with M.
  const auto of_ends = [&](int64_t parts) {
    if (reversed && p.in_halves) return rounds(parts * of_maps) * costs.states + rounds(parts * walks) * costs.back;
    if (p.in_halves) return rounds(parts * of_both) * costs.states;
    return reversed ? rounds((parts - 2) * of_maps) * costs.states + rounds((parts - 1) * walks) * costs.back
                    : rounds(walks + (parts - 2) * of_both) * costs.states;
  };
  const bool may_walk_alone = !reversed && !p.in_halves && p.decay == Decay::kNone;
  Cut best;
  best.time = (p.in_halves ? rounds(reversed ? walks : of_both) * state : 0) * double(chunks);
  best.time += rounds(walks) * result * double(chunks);
  if (walks > kMultiprocessors) return best;
  if (p.decay == Decay::kChannel && !p.in_halves && num_runs == 1 && p.v.dim <= kDim && chunks > kLeast)
    if (const Cut beside = beside_preparation(p, walks, chunks, result); beside.time < best.time) best = beside;
  for (int64_t parts = 2; parts <= std::min(kMost, chunks / kLeast); ++parts) {
    int64_t own = (chunks + parts - 1) / parts;
    if (const int64_t stretches = round_up(own, of_stretch(p)); 16 * stretches <= 17 * own) own = stretches;
    if (own * (parts - 1) >= chunks) continue;
    double ends = of_ends(parts);
    const double alone = time_of_ends((parts - 1) * walks, (parts - 2) * num_runs * p.heads * slices_of(keys));
    const bool maps_alone = may_walk_alone && alone < ends;
    if (maps_alone) ends = alone;
    const double time = (ends + rounds(parts * walks) * result) * double(own) + kScan * double(parts) + kLaunches;
    if (time < 0.95 * best.time) best = {int32_t(parts), int32_t(own), maps_alone, 0, time};
  }
  return best;
}
bool has_kept_maps(const DeltaInputs &p, const Cut &cut) { return cut.parts > (p.in_halves ? 1 : 2); }
BackCut back_cut_of(const DeltaInputs &p, int64_t num_runs, int64_t maps_runs) {
  BackCut best{cut_of(p, num_runs, true)};
  if (maps_runs == 0) return best;
  Cut kept = cut_of(p, maps_runs, false);
  const int64_t walks = blocks_of(p, num_runs, std::min(p.v.dim, kDim));
  const int64_t ends = p.in_halves ? kept.parts : kept.parts - 1;
  kept.time = (rounds(ends * walks) + rounds(kept.parts * walks)) * costs_of(p).back * double(kept.chunks) +
              kScan * double(kept.parts) + kLaunches;
  if (has_kept_maps(p, kept) && kept.time <= best.time) best = {kept, true};
  return best;
}

}  // namespace lasp::gpu::delta_hopper
