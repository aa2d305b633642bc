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

// How the walk goes through parts: as many of them at once, and of each as many stretches.
struct Windows {
  int64_t units, of_launch;
  int32_t chunks_of_part, stretches;
};
Windows windows_of(const DeltaReversed &p, const DeltaGradients &g, int32_t parts, int32_t chunks) {
  Windows to;
  to.units = p.num_runs * parts;
  to.of_launch = std::min(to.units, window_runs(g));
  to.chunks_of_part = chunks > 0 ? chunks : int32_t((p.tokens + kChunk - 1) / kChunk);
  const int64_t of_part = (to.chunks_of_part + of_stretch(p) - 1) / of_stretch(p);
  to.stretches = int32_t(std::min(of_part, window_runs(g) / to.of_launch));
  return to;
}

// Microseconds of a chunk in a block of gradients, of a stretch and of a part, and in chunks what a block takes to
// begin: on an H100, by its launches' times.
constexpr double kGradients = 9.5, kOfPart = 11.3, kBegin = 1.5;

}  // namespace

int64_t window_runs(const DeltaGradients &p) { return std::min(p.num_runs, delta_window(p.spacing, p.heads)); }
int64_t window_chunks(const DeltaGradients &p) { return window_runs(p) * p.heads * of_stretch(p); }
int64_t partial_bytes(const DeltaGradients &p) {
  if (p.decay == Decay::kChannel) return round_up(window_chunks(p) * channel::Left::kBytes, 256);
  return p.decay == Decay::kHead ? round_up(4 * p.num_runs * p.heads, 256) : 0;
}

bool can_walk_once(const DeltaReversed &p, const DeltaGradients &g) {
  if (!p.d_checkpoints || p.decay == Decay::kChannel || p.v.dim > kDim) return false;
  if (g.prepared_runs == 0 || g.num_runs == 0 || gradients::writes_directly(g)) return false;
  return back_cut_of(p, p.num_runs, p.maps_runs).chunks % of_stretch(p) == 0;
}

bool walks_once(const DeltaReversed &p, const DeltaGradients &g) {
  // A block has all of a part: it should be as long as the others, which runs of a packed batch seldom are.
  if (!can_walk_once(p, g) || p.num_runs > p.batch) return false;
  const BackCut cut = back_cut_of(p, p.num_runs, p.maps_runs);
  const Windows windows = windows_of(p, g, cut.parts, cut.chunks);
  const double chunks = windows.chunks_of_part, begins = chunks / (windows.stretches * of_stretch(p)) * kBegin;
  const double once = double(windows.units / windows.of_launch) * rounds(windows.of_launch * p.heads) +
                      rounds(windows.units % windows.of_launch * p.heads);
  const int64_t stretches = (p.tokens + p.spacing - 1) / p.spacing * p.batch, window = window_runs(g);
  const double of_stretches =
      double(stretches / window) * rounds(window * p.heads) + rounds(stretches % window * p.heads);
  const double results = rounds(cut.parts * blocks_of(p, p.num_runs, p.v.dim)) * kBack * chunks;
  return once * (chunks * kOfPart + begins * kGradients) <
         results + of_stretches * (of_stretch(p) + kBegin) * kGradients;
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
  const int32_t last = (windows.chunks_of_part - 1) / kept.window.chunks * kept.window.chunks;
  for (int64_t first = 0; first < windows.units; first += windows.of_launch) {
    kept.window.first_unit = first, kept.window.units = std::min(windows.of_launch, windows.units - first);
    for (int32_t begin = last; begin >= 0; begin -= kept.window.chunks) {
      kept.window.begin = begin;
      if (const int error = launch_stretches(states, of_states, kept, stream)) return error;
      if (const int error = launch_gradients_of_parts(p, slots, kept, g.workspace, stream)) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta_hopper
