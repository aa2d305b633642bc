// The delta rule on a GPU: parameter structs of plain data and the launchers that take them, as launch.h has them
// for the additive write.
//
//   S_t = A_t S_{t-1} + k_t u_t^T     u_t = beta_t e_t     e_t = v_t - (A_t S_{t-1})^T k_t     o_t = scale S_t^T
//   q_t
//
// with A_t = exp(g_t), a number or one for each row of S. Columns of V do not meet in S, so the unit of work of a
// walk is a (run, head, slice of V's columns); a run is walked in order. Three launches make all passes:
//
//   DeltaForward    outputs, states, and what a run does to the state that enters it
//   DeltaReversed   the gradients of states, from a run's last token to its first
//   DeltaGradients  every gradient of a stretch of tokens, from the states at its two ends (and, by kMma, from what
//                   else the walks have kept of it); stretches do not meet.
//                   Or the reversed walk finds them on its way (delta_walks_once)
//
// Rules for all: a run of length 0 and a segment with num_runs 0 are skipped (tables may have empty entries, at any
// place), and num_runs may be more than the number of runs that are not empty. What is written for a run and head
// depends on that run and head alone; its last bits, of kHopper and kMma, also on how many runs there are.
#pragma once

#include "launch.h"

namespace lasp::gpu {

// The states that are kept for backward: before every so many tokens of a run, which is DeltaInputs::spacing, of
// kHopper this or twice as much. kHopper keeps them in 16 bits and in its own way: a plan takes all three launches
// of it or none. kMma keeps them in its own way, too, where DeltaInputs::own_checkpoints; else in float32, as
// kGeneric does.
constexpr int32_t delta_checkpoint_tokens(KernelSet set) { return set == KernelSet::kHopper ? 256 : 64; }

// Of kHopper: how many stretches of so many tokens are worked on at once, so that what they keep in between stays
// small.
constexpr int64_t delta_window(int32_t spacing, int32_t heads) {
  const int64_t stretches = 4 * 132 * 256 / spacing / heads;  // of the largest GPU's 132 multiprocessors
  return stretches > 1 ? stretches : 1;
}
// The best spacing for as many tokens: a block works on a stretch and head, and begins for as long as it takes for
// 1.5 chunks of 64 tokens. Few long stretches leave multiprocessors idle. In stretches of 1,024 tokens gradients
// would be wrong by more than is promised where beta is 2 throughout.
constexpr int32_t delta_spacing(KernelSet set, int64_t tokens, int32_t heads) {
  const int32_t least = delta_checkpoint_tokens(set);
  int32_t best = least;
  double best_time = 0;
  for (int32_t spacing = least; set == KernelSet::kHopper && spacing <= 2 * least; spacing *= 2) {
    const int64_t stretches = (tokens + spacing - 1) / spacing, window = delta_window(spacing, heads);
    const auto rounds = [&](int64_t some) { return double((some * heads + 131) / 132); };
    const double time =
        (double(stretches / window) * rounds(window) + rounds(stretches % window)) * (double(spacing) / 64 + 1.5);
    if (spacing == least || time < best_time) best = spacing, best_time = time;
  }
  return best;
}

// A walk of runs that a state from another rank enters may be made in two launches over the same runs and with the
// same workspace, where only launches over other runs may write in between. kOwn does what needs no state that
// enters: of DeltaForward what leaves a run of nothing and M (`leaving`, `transition`, if wanted), of DeltaReversed
// `d_leaving`; no other results. kEntered gives the others. That spares work where delta_has_halves();
// elsewhere kOwn is a walk without other results, and kEntered one from the beginning. Of kIndependent runs kOwn is
// given what enters: what leaves is found early then, and where nothing is won by that, everything.
enum class DeltaHalf : int32_t { kBoth, kOwn, kEntered };
constexpr bool delta_has_halves(KernelSet set) { return set == KernelSet::kHopper; }

struct DeltaInputs : PassInputs {
  DeltaHalf half = DeltaHalf::kBoth;
  // Of all launches of a plan that walks in halves, also of those that do not: all cut runs alike.
  bool in_halves = false;
  int32_t spacing = 256;  // tokens between checkpoints, of kHopper; the others have 64
  // Of all launches of a plan whose gradients are by kMma: walks leave for these what they know of each chunk.
  bool own_checkpoints = false;
  Tensor q = {}, k = {}, v = {};
  const void *beta = nullptr;  // [B, T, H]
  DType beta_dtype = DType::kFloat32;
  Strides beta_strides = {};
  // By Run::segment; begins, produces and consumes are read.
  const Segment *segments = nullptr;
};

struct DeltaForward : DeltaInputs {
  Tensor o = {};  // data null: states only; then q.data may be null too
  // What enters a run: [states, H, K, V] by Run::state; null: zero.
  const float *state_in = nullptr;
  // What leaves it, each where not null: by Run::state (may be state_in); by Run::ends, of the runs that end their
  // sequence; by Run::path, of segments that produces[0], which are one run each then.
  float *state_out = nullptr, *edge_state = nullptr, *leaving = nullptr;
  // M, by which a run multiplies the state that enters it: [paths, H, K, K] by Run::path, of segments that neither
  // begin nor end a sequence (begins[] both 0), which are one run each then. Null: not wanted. Neither state_in nor
  // v matters to it. kHopper leaves zeros where less than the decay cutoff is left of what enters.
  float *transition = nullptr;
  // [checkpoints], of delta_checkpoint_bytes(): the state before every `spacing` tokens, that before the run's
  // first at Run::checkpoint. Null: not wanted.
  void *checkpoints = nullptr;
  // delta_maps_floats(): what kHopper knows of a run's parts afterwards, for DeltaReversed. Null: not wanted.
  float *maps = nullptr;
  // By Run::entered: kIndependent, the runs whose segment no state from another rank enters; kDependent, the
  // others.
  RunFilter filter = RunFilter::kAll;
  float *workspace = nullptr;  // delta_forward_workspace() floats
};

// With D_t the gradient of S_t: dS_t + scale q_t do_t^T, where dS_t comes from later tokens,
//   z_t = D_t^T k_t     dv_t = beta_t z_t     dS_{t-1} = A_t (D_t - k_t dv_t^T)
// The gradient of the state holds `scale`, as everywhere.
struct DeltaGradients;
struct DeltaReversed : DeltaInputs {
  Tensor d_o = {};
  // The gradient of the state after a run: [states, H, K, V] by Run::state; null: zero.
  const float *d_state_in = nullptr;
  // Of the state before it: by Run::state (may be d_state_in); by Run::starts, of the runs that begin their
  // sequence; by Run::path, of segments that produces[1], which are one run each then.
  float *d_state_out = nullptr, *d_edge_state = nullptr, *d_leaving = nullptr;
  bool edge_adds = false;  // to d_edge_state what is there, too
  // [checkpoints], of delta_checkpoint_bytes(), as many as forward has and in the same order: the gradient of the
  // state after each of the stretches that begin at checkpoints. Null: not wanted.
  void *d_checkpoints = nullptr;
  // DeltaForward::maps of launches over all of these runs' tokens, and their num_runs; 0: there are none.
  float *maps = nullptr;
  int64_t maps_runs = 0;
  // Where delta_walks_once(): what would give d_checkpoints gives every gradient of these runs instead, and takes
  // that memory for itself. Of all launches of a pass, also of DeltaHalf::kOwn, which then gives nothing early but
  // what leaves. A launch with DeltaGradients::walked follows.
  const DeltaGradients *gradients = nullptr;
  RunFilter filter = RunFilter::kAll;
  float *workspace = nullptr;  // delta_reversed_workspace() floats
};

// `runs` are stretches: each begins at a checkpoint and ends where the next one begins or its run ends. Run::state
// of a stretch is its Run::checkpoint: checkpoints[Run::state] is the state before it and d_checkpoints[Run::state]
// the gradient after it.
//   dq_t = scale S_t do_t        dk_t = D_t u_t - A_t S_{t-1} dv_t       d_beta_t = z_t . e_t
//   d_g_t = A_t <S_{t-1}, D_t - k_t dv_t^T>, by rows where decay is per channel
struct DeltaGradients : DeltaInputs {
  Tensor d_o = {};
  // Of H heads, or of fewer where the kernel sums groups itself (delta_gradients_refusal says whether). `staged`:
  // d_q, d_k and d_v are float32 whatever `dtype` is. `adds`: they join what is there, in float32 and with one
  // rounding. `exact`: what is float32 was never rounded to less; else a set may round d_v on its way.
  Tensor d_q = {}, d_k = {}, d_v = {};
  bool staged[3] = {}, adds[3] = {};  // d_q, d_k, d_v
  bool exact = false;
  // [B, T, H] or [B, T, H, K] in decay_dtype, or in float32; per head [H] in float32. Null: not
  // wanted.
  void *d_g = nullptr;
  Strides d_g_strides = {};
  bool d_g_float32 = false, d_g_adds = false;
  void *d_beta = nullptr;  // [B, T, H] in d_beta_dtype
  DType d_beta_dtype = DType::kFloat32;
  Strides d_beta_strides = {};
  bool d_beta_adds = false;
  const void *checkpoints = nullptr, *d_checkpoints = nullptr;
  RunFilter filter = RunFilter::kAll;
  // No earlier launch of this pass has begun d_g per head, and no later one adds to it. `workspace`:
  // delta_gradients_workspace() floats, kept between the launches of a pass.
  bool first = true, last = true;
  float *workspace = nullptr;
  // What a DeltaReversed that found d_checkpoints has left in its workspace, where nothing has been written there
  // since, and its num_runs; 0: there is none. Spares kHopper time and workspace.
  float *prepared = nullptr;
  int64_t prepared_runs = 0;
  // DeltaReversed::gradients have been found: only the sum of d_g per head is left.
  bool walked = false;
};

// Transitions of paths that no walk gives: the identity where a path has no tokens, zero where its producing
// segment begins or ends a sequence. Where `cached` is not null (reversed), the rest is M of the forward pass,
// transposed. And states: zero for every path, before walks write them.
struct DeltaMaps {
  StateShape shape;  // rows: paths
  const Segment *segments = nullptr;
  int64_t num_segments = 0;
  bool reversed = false;
  float *state = nullptr, *transition = nullptr;
  const float *cached = nullptr;
};

// Runs of whole segments, cut in parts of a stretch, as tables have them: Run::state is the part that enters the
// run, of all parts. Makes of them what the launches above are given. Once: it changes what it reads.
struct DeltaRuns {
  const Segment *segments = nullptr;
  Run *runs[2] = {nullptr, nullptr};
  int64_t num_runs = 0;
  Run *stretches = nullptr;
  int64_t num_stretches = 0, spacing = 0;  // tokens of a stretch
};

// What a library's products of maps are given: to = from, of each row and head, but zero where `later` forgets all
// that came before it, so that a number that is none is forgotten too. `heads` of all rows; `to` is not `from`.
struct DeltaOperand {
  int64_t heads = 0;
  int32_t dim_k = 0, columns = 0;
  const float *later = nullptr;  // [heads, K, K]
  const float *from = nullptr;   // [heads, K, columns]
  float *to = nullptr;
};

// Of a checkpoint of all heads: of a state, or `back` of its gradient.
int64_t delta_checkpoint_bytes(KernelSet set, const DeltaInputs &inputs, bool back);

// Why a set does not take a pass's pointers, strides or shape (static), or null. kGeneric takes everything.
const char *delta_forward_refusal(KernelSet set, const DeltaForward &pass);
const char *delta_reversed_refusal(KernelSet set, const DeltaReversed &pass);
const char *delta_gradients_refusal(KernelSet set, const DeltaGradients &pass);
// Of any launch over tensors of these sizes, with num_runs runs or fewer. May be 0.
int64_t delta_forward_workspace(KernelSet set, const DeltaForward &pass);
int64_t delta_reversed_workspace(KernelSet set, const DeltaReversed &pass);
int64_t delta_gradients_workspace(KernelSet set, const DeltaGradients &pass);
int64_t delta_maps_floats(KernelSet set, const DeltaForward &pass);
// Whether a set can take all gradients on the walk back of `pass`, and that should take less time.
bool delta_walks_once(KernelSet set, const DeltaReversed &pass, const DeltaGradients &gradients);

int launch_delta_forward(KernelSet set, const DeltaForward &pass, Stream stream);
int launch_delta_reversed(KernelSet set, const DeltaReversed &pass, Stream stream);
int launch_delta_gradients(KernelSet set, const DeltaGradients &pass, Stream stream);
int launch_delta_maps(const DeltaMaps &maps, Stream stream);
int launch_delta_runs(const DeltaRuns &runs, Stream stream);
int launch_delta_operand(const DeltaOperand &operand, Stream stream);
// Loads a set's kernels and those of maps into the current context, so that no later launch does so.
int load_delta_kernels(KernelSet set);

}  // namespace lasp::gpu
