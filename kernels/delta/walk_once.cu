// All gradients on the walk back: whether a pass takes them so, and in which launches.
#include "walk_once.h"

#include <algorithm>

#include "channel_gradients.cuh"
#include "cuts.h"
#include "forward.h"
#include "gradients.h"
#include "gradients_results.cuh"
#include "passes.h"

namespace lasp::gpu::delta_hopper {
namespace {

// Microseconds of a chunk in a block of gradients, of a stretch and of a part, and in chunks what a block takes to
// begin: on an H100, by its launches' times.
constexpr double kGradients = 9.5, kOfPart = 11.3, kBegin = 1.5;

// Rounds of `units`, so many in a launch, of which each has as many blocks.
double rounds_of(int64_t units, int64_t of_launch, int64_t blocks) {
  return double(units / of_launch) * rounds(of_launch * blocks) + rounds(units % of_launch * blocks);
}

// How the walk goes through parts: as many of them at once, and of each as many stretches. The fewer at once, the
// longer blocks are, and so the fewer begin; but they should fill the GPU.
struct Windows {
  int64_t units, of_launch;
  int32_t chunks_of_part, stretches;
  double time;
};
Windows windows_of(const DeltaReversed &p, const DeltaGradients &g, int32_t parts, int32_t chunks) {
  Windows best;
  best.units = p.num_runs * parts;
  best.chunks_of_part = chunks > 0 ? chunks : int32_t((p.tokens + kChunk - 1) / kChunk);
  const int32_t groups = groups_of(p.v.dim);
  const int64_t of_part = (best.chunks_of_part + of_stretch(p) - 1) / of_stretch(p);
  const int64_t room = std::max(window_runs(g) / groups, int64_t{1});
  for (int64_t units = 1; units <= std::min(best.units, room); ++units) {
    const auto stretches = int32_t(std::min(of_part, room / units));
    const double begins = double((of_part + stretches - 1) / stretches) * kBegin * kGradients;
    const double time =
        rounds_of(best.units, units, p.heads * groups) * (double(best.chunks_of_part) * kOfPart + begins);
    if (units == 1 || time <= best.time) best.of_launch = units, best.stretches = stretches, best.time = time;
  }
  return best;
}

}  // namespace

int64_t window_runs(const DeltaGradients &p) { return std::min(p.num_runs, delta_window(p.spacing, p.heads)); }
int64_t window_chunks(const DeltaGradients &p) {
  return std::max(window_runs(p), int64_t{groups_of(p.v.dim)}) * p.heads * of_stretch(p);
}
int64_t partial_bytes(const DeltaGradients &p) {
  if (p.decay == Decay::kChannel) return round_up(window_chunks(p) * channel::Left::kBytes, 256);
  return p.decay == Decay::kHead ? round_up(4 * p.num_runs * p.heads, 256) : 0;
}

bool can_walk_once(const DeltaReversed &p, const DeltaGradients &g) {
  if (!p.d_checkpoints || p.decay == Decay::kChannel) return false;
  const int32_t groups = groups_of(p.v.dim);  // two blocks add up what they find of a head
  if (groups > 2 || (groups == 2 && g.d_q.heads != g.heads)) return false;
  if (g.prepared_runs == 0 || g.num_runs == 0 || gradients::writes_directly(g)) return false;
  return back_cut_of(p, p.num_runs, p.maps_runs).chunks % of_stretch(p) == 0;
}

bool walks_once(const DeltaReversed &p, const DeltaGradients &g) {
  // A block has all of a part: it should be as long as the others, which runs of a packed batch seldom are.
  if (!can_walk_once(p, g) || p.num_runs > p.batch) return false;
  const BackCut cut = back_cut_of(p, p.num_runs, p.maps_runs);
  const Windows windows = windows_of(p, g, cut.parts, cut.chunks);
  const int64_t stretches = (p.tokens + p.spacing - 1) / p.spacing * p.batch;
  const double results =
      rounds(cut.parts * blocks_of(p, p.num_runs, std::min(p.v.dim, kDim))) * kBack * windows.chunks_of_part;
  const double of_stretches = rounds_of(stretches, window_runs(g), p.heads) * (of_stretch(p) + kBegin) * kGradients;
  return windows.time < groups_of(p.v.dim) * (results + of_stretches);
}

int run_walk_once(const DeltaReversed &p, const Slots &slots, Stream stream) {
  const DeltaGradients &g = *p.gradients;
  const Windows windows = windows_of(p, g, slots.parts, slots.chunks);
  DeltaForward states;
  static_cast<DeltaInputs &>(states) = p;
  states.filter = p.filter;
  Slots of_states = slots;
  of_states.phase = Phase::kWhole;  // of every part
  Stretches kept;
  kept.checkpoints = g.checkpoints;
  kept.data = reinterpret_cast<char *>(g.workspace) + partial_bytes(g);
  kept.of_stretch = kept.window.chunks = windows.stretches * of_stretch(p);
  kept.groups = groups_of(p.v.dim);
  const int32_t last = (windows.chunks_of_part - 1) / kept.window.chunks * kept.window.chunks;
  for (int64_t first = 0; first < windows.units; first += windows.of_launch) {
    kept.window.first_unit = first, kept.window.units = std::min(windows.of_launch, windows.units - first);
    for (int32_t begin = last; begin >= 0; begin -= kept.window.chunks) {
      kept.window.begin = begin;
      if (const int error = launch_stretches(states, of_states, kept, false, stream)) return error;
      if (const int error = launch_gradients_of_parts(p, slots, kept, g.workspace, stream)) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta_hopper
