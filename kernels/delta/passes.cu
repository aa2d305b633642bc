// The three launches of the fast delta kernels: what they refuse, the workspace they need, and their order.
#include "passes.h"

#include <cmath>

#include "channel_gradients.cuh"
#include "channel_walks.h"
#include "cuts.h"
#include "forward.h"
#include "gradients.h"
#include "layout.cuh"
#include "reversed.h"
#include "walk_once.h"

namespace lasp::gpu::delta_hopper {
namespace {

// Rows all begin as the tensor does, counted in pieces of 16 bytes; where that is not on one, copies are slow.
bool even(const Tensor &t) {
  return t.strides.batch % 8 == 0 && t.strides.token % 8 == 0 && t.strides.head % 8 == 0;
}
constexpr const char *kStrides = "needs strides that are multiples of 8";
const char *inputs_refusal(const DeltaInputs &p) {
  if (p.dtype == DType::kFloat32) return "needs 16-bit tensors";
  const auto fits = [](int32_t dim, int32_t most) { return dim % 16 == 0 && dim >= 32 && dim <= most; };
  if (!fits(p.k.dim, kDim)) return "needs K to be a multiple of 16 from 32 to 128";
  if (!fits(p.v.dim, 4 * kDim)) return "needs V to be a multiple of 16 from 32 to 512";
  if (p.heads > 65535) return "needs at most 65535 heads";
  for (const Tensor *t : {&p.q, &p.k, &p.v})
    if (!even(*t)) return kStrides;
  return nullptr;
}
// Walks back hold the gradient of the state over `scale`.
bool divides(float scale) { return std::isnormal(scale) && std::isnormal(1 / scale); }
constexpr const char *kScale = "divides by the scale";

int32_t slot_bytes(const PassInputs &p) { return p.decay == Decay::kChannel ? channel::kBytes : kSlotBytes; }
int32_t slot_bytes(const DeltaForward &p) { return p.decay == Decay::kChannel ? channel::kBytes : kSlotWithoutP; }
int64_t floats(int64_t bytes) { return round_up(bytes, 256) / 4; }
int64_t most_slots(int64_t tokens, int64_t num_runs) { return tokens / kChunk + num_runs; }

// Of num_runs runs' slots, as many bytes each.
int64_t whole_bytes(const PassInputs &p, int64_t num_runs, int32_t bytes) {
  return round_up(slots_bytes(num_runs, most_slots(p.batch * p.tokens, num_runs), p.heads, bytes), 256);
}
int64_t state_floats(const PassInputs &p, int64_t num_runs, const Cut &cut) {
  return num_runs * cut.parts * p.heads * kDim * kDim;
}
// Of how many groups of columns the states of parts are kept at once: between halves of all, and for one walk back.
int64_t kept_groups(const DeltaForward &p) { return p.in_halves ? groups_of(p.v.dim) : 1; }
int64_t kept_groups(const DeltaReversed &p) { return groups_of(p.v.dim); }
int64_t forgets_bytes(const PassInputs &p, int64_t num_runs, const Cut &cut) {
  return round_up(4 * num_runs * cut.parts * p.heads, 256);
}
// Of num_runs runs or fewer, which may be cut where more are not.
template <typename Pass, typename CutOf>
int64_t walk_workspace(const Pass &p, CutOf cut_of_runs) {
  int64_t most = 0;
  for (int64_t runs = 1; runs <= std::min(p.num_runs, kMultiprocessors / p.heads); ++runs) {
    const Cut cut = cut_of_runs(runs);
    if (cut.early > 0)
      most =
          std::max(most, round_up(channel::beside_bytes(most_slots(p.batch * p.tokens, p.num_runs), p.heads), 256));
    if (cut.parts > 1)
      most = std::max(most, (2 + kept_groups(p)) * 4 * state_floats(p, runs, cut) + forgets_bytes(p, runs, cut));
  }
  return floats(whole_bytes(p, p.num_runs, slot_bytes(p)) + most);
}
// Stretches find their chunks' slots by numbers.
bool serves_stretches(const DeltaForward &) { return false; }
bool serves_stretches(const DeltaReversed &p) { return p.d_checkpoints && !p.gradients; }
template <typename Pass>
Slots place_walk(const Pass &p, const Cut &cut) {
  Slots slots = place_slots(p.num_runs, most_slots(p.batch * p.tokens, p.num_runs), slot_bytes(p), p.workspace);
  if (!serves_stretches(p)) place_by_runs(slots, p);
  slots.filter = p.filter, slots.of_stretch = of_stretch(p);
  slots.parts = cut.parts, slots.chunks = cut.chunks, slots.columns = p.v.dim;
  slots.maps_alone = cut.maps_alone;
  const int64_t floats = state_floats(p, p.num_runs, cut);
  slots.states = p.workspace + whole_bytes(p, p.num_runs, slots.bytes) / 4;
  slots.maps = slots.states + kept_groups(p) * floats, slots.totals = slots.maps + floats;
  return slots;
}

// Where V is more than 128, so many columns of it at a time. They have all in common that keys alone decide: what
// chunks are, and M. Tensors and states lose the columns before `first`.
template <typename T>
void skip(T *&data, int64_t elements) {
  if (data) data += elements;
}
void skip_bytes(const void *&data, int64_t bytes) {
  if (data) data = static_cast<const char *>(data) + bytes;
}
void skip_bytes(void *&data, int64_t bytes) {
  if (data) data = static_cast<char *>(data) + bytes;
}
void narrow(Tensor &t, int32_t first, int32_t of_element = 2) {
  skip_bytes(t.data, int64_t{of_element} * first);
  t.dim = std::min(t.dim - first, kDim);
}
DeltaForward columns_of(DeltaForward p, int32_t first) {
  narrow(p.v, first), narrow(p.o, first);
  skip(p.state_in, first), skip(p.state_out, first), skip(p.edge_state, first), skip(p.leaving, first);
  skip_bytes(p.checkpoints, 2 * first);
  if (first > 0) p.transition = nullptr;
  return p;
}
DeltaReversed columns_of(DeltaReversed p, int32_t first) {
  narrow(p.v, first), narrow(p.d_o, first);
  skip(p.d_state_in, first), skip(p.d_state_out, first), skip(p.d_edge_state, first), skip(p.d_leaving, first);
  skip_bytes(p.d_checkpoints, 2 * first);
  return p;
}
// All but those of v are sums over V.
DeltaGradients columns_of(DeltaGradients p, int32_t first) {
  narrow(p.v, first), narrow(p.d_o, first), narrow(p.d_v, first, p.staged[2] ? 4 : 2);
  skip_bytes(p.checkpoints, 2 * first), skip_bytes(p.d_checkpoints, 2 * first);
  if (first > 0) p.adds[0] = p.adds[1] = p.d_beta_adds = p.d_g_adds = true;
  return p;
}

int prepare(const DeltaInputs &p, const Slots &slots, bool stretches, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  if (const int error = launch_number_slots(p, slots, stretches, stream)) return error;
  return p.decay == Decay::kChannel ? channel::launch_prepare(p, slots, {}, stream)
                                    : launch_prepare(p, slots, stream);
}

// Of a run that is walked beside its preparation, all of it.
template <typename Pass, typename Walk>
int run_beside(const Pass &p, const Slots &slots, const Cut &cut, bool reversed, Walk walk, Stream stream) {
  channel::Beside beside;
  beside.ready = reinterpret_cast<int32_t *>(slots.states);  // there are no parts
  beside.early = cut.early, beside.walks = int32_t(p.heads * slices_of(p.v.dim)), beside.reversed = reversed;
  if (const int error = launch_number_slots(p, slots, serves_stretches(p), stream)) return error;
  if (const int error = channel::launch_prepare(p, slots, beside, stream)) return error;
  return walk(beside);
}

}  // namespace

const char *forward_refusal(const DeltaForward &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  return even(p.o) ? nullptr : kStrides;
}
int64_t forward_workspace(const DeltaForward &p) {
  return walk_workspace(p, [&](int64_t runs) { return cut_of(p, runs, false); });
}
int64_t maps_floats(const DeltaForward &p) {
  const Cut cut = cut_of(p, p.num_runs, false);
  return has_kept_maps(p, cut) ? state_floats(p, p.num_runs, cut) : 0;
}
namespace {

// Of independent runs what enters is known: a whole one is walked at once, and parts need no map to what enters.
bool knows_entering(RunFilter filter) { return filter == RunFilter::kIndependent; }
// Slots for a launch that has the columns from `first` on.
Slots columns_of(Slots slots, const DeltaInputs &p, int32_t first) {
  slots.first_column = first, slots.states += first / kDim * slots.of_group(p);
  return slots;
}
// each(the pass and the slots) of all columns, 128 at a time.
template <typename Pass, typename Each>
int by_columns(const Pass &p, const Slots &slots, Each each) {
  for (int32_t first = 0; first < p.v.dim; first += kDim)
    if (const int error = each(columns_of(p, first), columns_of(slots, p, first))) return error;
  return cudaSuccess;
}

// The ends of all parts and what leaves the run; or where it is whole, a walk without other results.
int run_own(const DeltaForward &p, const Slots &all, Stream stream) {
  const bool known = knows_entering(p.filter);
  return by_columns(p, all, [&](const DeltaForward &own, Slots slots) -> int {
    if (slots.parts == 1 && known) return launch_forward(own, slots, stream);
    DeltaForward walk = own;
    walk.q.data = walk.o.data = walk.checkpoints = nullptr, walk.edge_state = nullptr;
    slots.own = true, slots.leaving = own.leaving, slots.transition = own.transition;
    if (slots.parts == 1) return own.leaving || own.transition ? launch_forward(walk, slots, stream) : cudaSuccess;
    const bool with_maps = slots.first_column == 0;  // which keys alone decide
    slots.phase = with_maps ? Phase::kEnds : Phase::kStates;
    if (const int error = launch_forward(walk, slots, stream)) return error;
    return launch_scan_parts(own, slots, false, !known && with_maps, stream);
  });
}
int run_own(const DeltaReversed &p, const Slots &all, bool kept, Stream stream) {
  const bool known = knows_entering(p.filter);
  if (all.parts > 1 && !kept) {
    DeltaForward maps{{static_cast<const DeltaInputs &>(columns_of(p, 0))}};
    maps.filter = p.filter;
    Slots slots = all;
    slots.own = true, slots.phase = Phase::kMaps;
    if (const int error = launch_forward(maps, slots, stream)) return error;
  }
  return by_columns(p, all, [&](const DeltaReversed &own, Slots slots) -> int {
    if (slots.parts == 1 && known && !p.gradients) return launch_reversed(own, slots, stream);
    DeltaReversed walk = own;
    walk.d_checkpoints = nullptr, walk.d_edge_state = nullptr;
    slots.own = true, slots.leaving = own.d_leaving;
    if (slots.parts == 1) return own.d_leaving ? launch_reversed(walk, slots, stream) : cudaSuccess;
    slots.phase = Phase::kEnds;
    if (const int error = launch_reversed(walk, slots, stream)) return error;
    return launch_scan_parts(own, slots, true, !known && slots.first_column == 0, stream);
  });
}
int run_entered(const DeltaForward &p, const Slots &all, Stream stream) {
  const bool known = knows_entering(p.filter);
  if (all.parts == 1 && known) return cudaSuccess;
  return by_columns(p, all, [&](const DeltaForward &own, Slots slots) -> int {
    if (slots.parts > 1) slots.phase = Phase::kResults;
    if (slots.parts > 1 && !known)
      if (const int error = launch_enter_parts(own, slots, false, own.state_in, stream)) return error;
    return launch_forward(own, slots, stream);
  });
}
// From what enters each part.
int run_results(const DeltaReversed &p, const Slots &all, Stream stream) {
  if (p.gradients && p.d_checkpoints) return run_walk_once(p, all, stream);
  return by_columns(
      p, all, [&](const DeltaReversed &own, const Slots &slots) { return launch_reversed(own, slots, stream); });
}
int run_entered(const DeltaReversed &p, Slots all, Stream stream) {
  const bool known = knows_entering(p.filter);
  if (all.parts == 1) return known && !p.gradients ? cudaSuccess : run_results(p, all, stream);
  all.phase = Phase::kResults;
  if (!known)
    if (const int error = by_columns(p, all, [&](const DeltaReversed &own, const Slots &slots) {
          return launch_enter_parts(own, slots, true, own.d_state_in, stream);
        }))
      return error;
  return run_results(p, all, stream);
}

}  // namespace
int run_forward(const DeltaForward &p, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  // Not in parts, which read what enters the run while its end is written.
  const bool in_place = p.state_in != nullptr && p.state_in == p.state_out;
  Cut cut = cut_of(p, p.num_runs, false);
  if (in_place && cut.parts > 1) cut = {};
  Slots slots = place_walk(p, cut);
  slots.kept_maps = p.maps, slots.maps_to_end = p.in_halves && p.maps;
  if (cut.early > 0 && p.half == DeltaHalf::kBoth) {
    const auto walk = [&](const channel::Beside &beside) {
      return channel::launch_forward(p, slots, {}, beside, true, stream);
    };
    return run_beside(p, slots, cut, false, walk, stream);
  }
  DeltaInputs chunks = p;
  if (p.decay != Decay::kChannel) chunks.q.data = nullptr;  // walks find P
  if (p.half != DeltaHalf::kEntered)
    if (const int error = prepare(chunks, slots, false, stream)) return error;
  if (p.half == DeltaHalf::kOwn) return run_own(p, slots, stream);
  if (p.half == DeltaHalf::kEntered) return run_entered(p, slots, stream);
  for (int32_t first = 0; first < p.v.dim; first += kDim) {
    const DeltaForward own = columns_of(p, first);
    slots.first_column = first;
    if (slots.parts > 1) {
      slots.phase = first == 0 ? Phase::kEnds : Phase::kStates;
      if (const int error = launch_forward(own, slots, stream)) return error;
      if (const int error = launch_scan_parts(own, slots, false, own.transition != nullptr, stream)) return error;
      slots.phase = Phase::kResults;
    }
    if (const int error = launch_forward(own, slots, stream)) return error;
  }
  return cudaSuccess;
}

const char *reversed_refusal(const DeltaReversed &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  if (!divides(p.scale)) return kScale;
  return even(p.d_o) ? nullptr : kStrides;
}
int64_t reversed_workspace(const DeltaReversed &p) {
  return walk_workspace(p, [&](int64_t runs) { return back_cut_of(p, runs, p.maps_runs); });
}
int run_reversed(const DeltaReversed &p, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  const bool in_place = p.d_state_in != nullptr && p.d_state_in == p.d_state_out;
  BackCut cut = back_cut_of(p, p.num_runs, p.maps_runs);
  if (in_place && cut.parts > 1) cut = {};
  Slots slots = place_walk(p, cut);
  if (cut.early > 0 && p.half == DeltaHalf::kBoth) {
    const auto walk = [&](const channel::Beside &beside) {
      return channel::launch_reversed(p, slots, beside, stream);
    };
    return run_beside(p, slots, cut, true, walk, stream);
  }
  if (p.half != DeltaHalf::kEntered)
    if (const int error = prepare(p, slots, serves_stretches(p), stream)) return error;
  if (p.half == DeltaHalf::kOwn) {
    if (cut.kept) slots.kept_maps = p.maps;
    return run_own(p, slots, cut.kept, stream);
  }
  if (p.half == DeltaHalf::kEntered) return run_entered(p, slots, stream);
  if (slots.parts > 1) {
    DeltaForward maps{{static_cast<const DeltaInputs &>(columns_of(p, 0))}};
    maps.filter = p.filter;
    slots.phase = Phase::kMaps;
    if (cut.kept) {
      slots.kept_maps = p.maps;
    } else if (slots.parts > 2) {
      if (const int error = launch_forward(maps, slots, stream)) return error;
    }
  }
  if (slots.parts > 1) {
    const int error = by_columns(p, slots, [&](const DeltaReversed &own, Slots ends) -> int {
      ends.phase = Phase::kEnds;
      if (const int failed = launch_reversed(own, ends, stream)) return failed;
      return launch_scan_parts(own, ends, true, false, stream);
    });
    if (error) return error;
    slots.phase = Phase::kResults;
  }
  return run_results(p, slots, stream);
}

const char *gradients_refusal(const DeltaGradients &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  if (!divides(p.scale)) return kScale;
  for (const Tensor *t : {&p.d_q, &p.d_k, &p.d_v})
    if (!even(*t)) return kStrides;
  const bool pairs = p.decay != Decay::kChannel && 2 * p.d_q.heads == p.heads;
  if (p.d_v.heads != p.heads || p.d_q.heads != p.d_k.heads || (p.d_q.heads != p.heads && !pairs))
    return "adds up dq and dk of two heads at most";
  if (p.v.dim > kDim && (!p.staged[0] || !p.staged[1])) return "adds dq and dk up in float32 where V is above 128";
  return even(p.d_o) ? nullptr : kStrides;
}

namespace {

// What is known of chunks, where no walk back has left it.
int64_t window_slots_bytes(const DeltaGradients &p) {
  if (p.prepared_runs > 0) return 0;
  return round_up(window_chunks(p) * slot_bytes(p), 256);
}

}  // namespace

int64_t gradients_workspace(const DeltaGradients &p) {
  return floats(partial_bytes(p) + window_slots_bytes(p) + window_chunks(p) * Stretches::kBytes);
}
int run_gradients(const DeltaGradients &p, Stream stream) {
  char *const memory = reinterpret_cast<char *>(p.workspace);
  const bool head = p.decay == Decay::kHead;
  float *const partial = p.workspace;  // per channel of a window
  const auto sum = [&] { return head && p.d_g && p.last ? launch_sum_partial(p, partial, stream) : cudaSuccess; };
  if (p.walked) return sum();
  const int64_t window = window_runs(p);
  Slots slots;
  slots.bytes = slot_bytes(p), slots.of_stretch = of_stretch(p);
  slots.data = memory + partial_bytes(p), slots.filter = p.filter, slots.columns = p.v.dim;
  if (p.prepared_runs > 0) {
    const Slots all =
        place_slots(p.prepared_runs, most_slots(p.batch * p.tokens, p.prepared_runs), slots.bytes, p.prepared);
    slots.data = all.data, slots.stretch = all.stretch;
  }
  Stretches kept;
  kept.of_stretch = of_stretch(p);
  kept.data = memory + partial_bytes(p) + window_slots_bytes(p);
  bool finished = false;  // the launch before is channel_finish.cu's
  for (int64_t first = 0; first < p.num_runs; first += window) {
    DeltaGradients part = p;
    part.runs = p.runs + first, part.num_runs = std::min(window, p.num_runs - first);
    slots.most = part.num_runs * of_stretch(p);
    if (p.prepared_runs == 0) {
      if (const int error = prepare(part, slots, false, stream)) return error;
      finished = false;
    }
    for (int32_t column = 0; column < p.v.dim; column += kDim) {
      const DeltaGradients own = columns_of(part, column);
      slots.first_column = column;
      kept.checkpoints = own.checkpoints;
      DeltaForward states;
      static_cast<DeltaInputs &>(states) = own;
      states.filter = p.filter;
      if (const int error = launch_stretches(states, slots, kept, finished, stream)) return error;
      if (const int error = launch_gradients(own, slots, kept, partial, stream)) return error;
      finished = p.decay == Decay::kChannel;
    }
  }
  return sum();
}

int load_kernels_of_delta() {
  for (const auto load :
       {load_prepare, channel::load_prepare, load_parts, load_forward, load_reversed, load_gradients})
    if (const int error = load()) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta_hopper
