// What the engine sees of kernels/, with delta.h and packed_tables.h: parameter structs of plain data, and the
// launchers that take them. Every launcher enqueues on `stream` and returns the cudaError_t of its launches as
// an int (0: success). It neither allocates nor synchronises, and leaves the current device alone. Pointers are
// device memory unless said otherwise.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace lasp::gpu {

using Stream = CUstream_st *;

// src/cuda/choice/plan_inputs.cpp asserts that the numbers are those of core/problem.h.
enum class DType : int32_t { kFloat32 = 1, kBFloat16 = 2, kFloat16 = 3 };
enum class Decay : int32_t { kNone = 0, kHead = 1, kScalar = 2, kChannel = 3 };

// Element (b, t, h, d) is at b*batch + t*token + h*head + d. In elements, not bytes.
struct Strides {
  int64_t batch = 0, token = 0, head = 0;
};

// A tensor [B, T, heads, dim]; output head h of H reads its head h * heads / H.
struct Tensor {
  void *data = nullptr;
  Strides strides;
  int32_t heads = 0, dim = 0;
};

// A run of tokens of one sequence: what one thread block (or cluster) walks through with a running state. The runs
// of one segment (one sequence's tokens on this rank) follow each other.
struct Run {
  int64_t row = 0;         // batch row
  int64_t begin = 0;       // first local token
  int64_t segment = 0;     // that it belongs to
  int64_t state = 0;       // its index in state_in and state_out
  int64_t starts = -1;     // the sequence whose first token it holds, else -1
  int64_t ends = -1;       // the sequence whose last token it holds, else -1
  int32_t length = 0;      // tokens; 0: an empty entry of a table, which kernels pass over
  int32_t checkpoint = 0;  // the index of its first checkpoint (see LinearPass)
  // Where this is a part of a longer run: that one's tokens before it and after it. The part's state is used only
  // at the longer run's ends.
  int32_t before = 0, after = 0;
  int32_t entered = 0;  // whether a state from another rank enters its segment, in the direction of the pass
  // Its segment's row of the states that enter the rank and leave it (core/token_partition.h: RowPath). A rank that
  // owns several ranges of the buffer has as many for each batch row.
  int32_t path = 0;
};

// The decay cutoff. What has been multiplied by a decay below this counts as nothing: in a sum of terms of like
// size it is 16 bits below float32's last (docs/internals/arithmetic.md).
inline constexpr float kDecayCutoff = 0x1p-40f;
// Whether a decay, in the code of src/core/decay.h, is below the cutoff; false for NaN.
constexpr bool is_below_cutoff(float code) { return std::bit_cast<int32_t>(code) >= 0 && code < kDecayCutoff; }

// Which (run, head) a launch works on: all; those that the state from another rank does not change, because no such
// state enters their segment or the decay on its way is below the cutoff; or those that depend on it.
enum class RunFilter : int32_t { kAll = 0, kIndependent = 1, kDependent = 2 };

// The fused backward pass finds states again from checkpoints: the state before every so many tokens of a run.
inline constexpr int32_t kFusedCheckpoint = 256;

// What every pass over tokens is given: sizes, types, log decays and the runs that it works on.
struct PassInputs {
  int64_t batch = 0, tokens = 0;
  int32_t heads = 0;  // H, of outputs
  DType dtype = DType::kFloat32;
  Decay decay = Decay::kNone;
  DType decay_dtype = DType::kFloat32;
  // Log decay: [H] float32 per head; [B, T, H] per token and head; [B, T, H, K] per channel.
  const void *g = nullptr;
  Strides g_strides = {};
  float scale = 1;
  const Run *runs = nullptr;
  int64_t num_runs = 0;
};

// One pass of linear attention over runs. With G the inclusive running sum of the log decay inside a run, and the
// running state R beginning at R_in = in_scale * S_in:
//
//   forward   y_i = scale * (sum_{j <= i} exp(G_i - G_j) (a_i . b_j) c_j  +  exp(G_i) R_in^T a_i)
//             R_out = exp(G_end) R_in + sum_j exp(G_end - G_j) b_j c_j^T
//   reversed  y_j = scale * (sum_{i >= j} exp(G_i - G_j) (a_j . b_i) c_i  +  exp(G_end - G_j) R_in^T a_j)
//             R_out = exp(G_end) R_in + sum_i exp(G_i) b_i c_i^T
//   S_out = out_scale * R_out
//
// with S of shape [a.dim, y.dim] in float32. The four passes of training are all of this form:
//   o   forward   a = q,  b = k,  c = v,  S = the state
//   dq  forward   a = do, b = v,  c = k,  S = the state, transposed
//   dv  reversed  a = k,  b = q,  c = do, S = the gradient of the state
//   dk  reversed  a = v,  b = do, c = q,  S = the gradient of the state, transposed
// The gradient of the state holds `scale` already: in_scale = 1/scale, out_scale = scale there.
struct LinearPass : PassInputs {
  Tensor a = {}, b = {}, c = {}, y = {};  // y.data null: states only
  // y is float32 whatever `dtype` is; y joins what is there, in float32 and with one rounding.
  bool y_float32 = false, y_adds = false;
  bool reversed = false;
  float in_scale = 1, out_scale = 1;
  const float *state_in = nullptr;  // [states, H, a.dim, y.dim] (see state_transposed), by Run::state; null: zero
  float *state_out = nullptr;       // the same; may be null. May be state_in: each is read before it is written
  // [sequences, H, a.dim, y.dim] likewise: S_out of the runs that end their sequence (reversed: begin it). Not
  // together with state_out.
  float *edge_state = nullptr;
  bool state_transposed = false;  // in memory each state is [y.dim, a.dim]
  // [checkpoints, H, a.dim, y.dim] in `dtype`: where the state before every kFusedCheckpoint tokens of a run is
  // kept, that before its first at Run::checkpoint. Null: not wanted; only of a forward pass whose state is not
  // transposed.
  void *checkpoints = nullptr;
  // States only, state_in null: [states, H] by Run::state, how many of the run's tokens count, from where the state
  // leaves (RunFactors); null: all. Where none count, state_out may be left as it is.
  const int32_t *counts = nullptr;
  bool counts_by_head = false;  // in place of `counts`, where decay is per head (counted_tokens.cuh)
  // How many runs there are of which these are some; 0: they are all. Kernels are chosen by it, so that bits do not
  // depend on which runs a launch is given.
  int64_t total_runs = 0;
  // Which runs to work on, and what that is decided by: the decay from the segment's edge to each, coded, [states,
  // H] by Run::state.
  RunFilter filter = RunFilter::kAll;
  const float *entry_decay = nullptr;
};

// ---- Tensor cores (mma/, hopper/) ----
//
// Which kernel serves which decay, dimensions, type and device stands in one table,
// src/cuda/choice/kernel_table.cpp. What the table cannot know, a pass's pointers, strides and extents, is asked
// here: each *_refusal says why a kernel does not take them (static), or is null. A launch of dimensions that a
// kernel does not have answers with cudaErrorInvalidValue: then the table is wrong.

// Whose kernels compute a pass: general ones, or those of the folders mma/ and hopper/.
enum class KernelSet : int32_t { kGeneric, kMma, kHopper };

// Of kMma and kHopper.
const char *linear_pass_refusal(KernelSet set, const LinearPass &pass);
// How many blocks a (run, head) keeps busy, so that the engine can cut sequences into enough runs.
int32_t linear_pass_blocks(KernelSet set, const LinearPass &pass);
int launch_linear_pass(KernelSet set, const LinearPass &pass, Stream stream);

// What the backward passes below are given besides.
struct BackwardPass : PassInputs {
  Tensor q = {}, k = {}, v = {}, d_o = {};
  bool padded = false;  // some tokens may be in no run: they have no part in the gradient of a decay per head
  void *d_g = nullptr;  // the gradient of the log decay, shaped like g, of its type
  Strides d_g_strides = {};
  bool d_g_float32 = false;  // d_g is float32 whatever `decay_dtype` is
  bool d_g_adds = false;     // d_g joins what is there, as LinearPass::y does; not of ChannelBackward
};

// The whole backward pass from one reading of q, k, v and do: dq, dk, dv and the gradient of the log decay. A block
// works on a (run, head): sequences are to be cut into runs that begin at checkpoints.
//
// With S_0 the state before a run and dS_E the gradient of the state after it, S_t and dS_t running from them:
//
//   S_t = exp(g_t) S_{t-1} + k_t v_t^T           dS_t = exp(g_{t+1}) dS_{t+1} + scale q_t do_t^T
//   dq_t = scale S_t do_t    dk_t = dS_t v_t     dv_t = dS_t^T k_t    dg_t = exp(g_t) <S_{t-1}, dS_t>
//   dS_0 = exp(g_1) dS_1
// k, v, d_k and d_v have H heads, or one for every 2, 4 or 8 of them; or v has H, and q and k fewer: then d_q and
// d_k have H, for others to add up. d_g is [B, T, H] in decay_dtype; per head it is [H] in float32, and the runs
// together hold every token. Null: not wanted.
struct FusedBackward : BackwardPass {
  Tensor d_q = {}, d_k = {}, d_v = {};
  int64_t num_checkpoints = 0;
  // As a linear pass with a = q, b = k, c = v keeps them, over these runs or others that begin at checkpoints of
  // the same segments, too: then both count them alike.
  const void *checkpoints = nullptr;
  const float *d_state_in = nullptr;  // [states, H, K, V] by Run::state: dS_E; null: zero
  float *d_edge_state = nullptr;      // [N, H, K, V]: dS_0 of the runs that begin their sequence; may be null
  bool edge_adds = false;             // d_edge_state joins what is there
  // fused_backward_workspace() floats where d_g is wanted. Then d_k and d_v of H heads, too, are used as
  // workspace until they are written.
  float *workspace = nullptr;
};

const char *fused_backward_refusal(const FusedBackward &pass);
int64_t fused_backward_workspace(const FusedBackward &pass);
int launch_fused_backward(const FusedBackward &pass, Stream stream);
// How many (run, head) a device works on at once.
int64_t fused_backward_blocks(const FusedBackward &pass, int32_t multiprocessors);
// Loads its kernels into the current context, so that no later launch does so.
int load_fused_backward_kernels();

// The gradients of q, k and a per-channel log decay in two walks over each run, forward for dq and reversed for dk
// and d_g (the gradient of v is a linear pass), on tensor cores (mma/channel_*, hopper/channel_backward*).
// With S_0 the state before a run and dS_E the gradient of the state after it (which holds `scale`), the sums of
// FusedBackward; d_g as q dq - k dk summed from a run's end, where it begins with <S_E, dS_E>. The pairs (t, t) are
// left out of both, and all but the inputs is kept to 16 bits or better, so that the difference keeps its digits.
// d_g is [B, T, H, K] in float32, and holds dq's share in between; null: not wanted.
struct ChannelBackward : BackwardPass {
  Tensor d_q = {}, d_k = {};  // of H heads
  // The runs again, in the same order: in `runs` Run::state is the index of S_0 in `state`, here of dS_E in
  // `d_state`.
  const Run *reversed_runs = nullptr;
  const float *state = nullptr, *d_state = nullptr;  // [states, H, K, V]; null: zero
  float *ends = nullptr;                             // scratch [num_runs, H, K] where d_g is wanted
};

// Of kMma and kHopper.
const char *channel_backward_refusal(KernelSet set, const ChannelBackward &pass);
int launch_channel_backward(KernelSet set, const ChannelBackward &pass, Stream stream);
// Loads its kernels into the current context, so that no later launch does so.
int load_channel_backward_kernels();

// The states that runs leave of a zero state, a LinearPass without y and state_in, where decay is per channel, and
// with them the runs' decays (RunFactors::factors; null: not wanted): both from one reading of g
// (mma/channel_states).
const char *channel_states_refusal(const LinearPass &pass);
int launch_channel_states(const LinearPass &pass, float *factors, Stream stream);
// Loads its kernels into the current context, so that no later launch does so.
int load_channel_states_kernels();

// ---- Any shape, any type (generic_*.cu): the recurrence itself, token by token, in IEEE float32 ----

struct GenericPass : LinearPass {
  bool fixed_state = false;  // bidirectional form: y_i = scale * R_in^T a_i; b, c and g are not read
  bool edge_adds = false;    // what goes to edge_state joins what is there
  // Of state_in, state_out and edge_state where `heads` are some of theirs, which then begin with these heads; 0:
  // `heads`.
  int32_t state_heads = 0;
};
int launch_generic_pass(const GenericPass &pass, Stream stream);

// The longest runs around which the gradient of a decay is found: of one number a token, and per channel.
inline constexpr int32_t kDecayProductRun = 256, kChannelProductRun = 64;

// The gradient of the log decay, from the state that enters each run from the left and the gradient that enters it
// from the right: d_g[t, d] = sum over v of exp(g_t) S_{t-1}[d, v] dS_t[d, v], summed over d unless the decay is
// per channel.
struct DecayGradient : BackwardPass {
  int64_t run_tokens = 0;  // no run has more
  // Per head: the runs of this launch are the first, and the last ones of these heads.
  bool first = true, last = true;
  // kMma: states may lose what is below 2^-17 of them. Where its kernels do not take the tensors, kGeneric's do.
  KernelSet set = KernelSet::kGeneric;
  const float *state = nullptr;    // [num_runs, H, K, V]
  const float *d_state = nullptr;  // [num_runs, H, K, V]
  float *workspace = nullptr;      // decay_gradient_workspace() floats
};
int64_t decay_gradient_workspace(const DecayGradient &pass);
int launch_decay_gradient(const DecayGradient &pass, Stream stream);

// ---- States (states.cu) ----

// What the scan over runs knows of a segment.
struct Segment {
  int64_t path = 0, sequence = 0;  // as Run::path
  int64_t first_run = 0, num_runs = 0;
  // In scan order: `begins` where the sequence begins here and takes first_state; `produces` where its end state
  // leaves the rank; `consumes` where a state from another rank enters. [0] forward, [1] reversed.
  int8_t begins[2] = {0, 0}, produces[2] = {0, 0}, consumes[2] = {0, 0}, resets[2] = {0, 0};
};

struct StateShape {
  int64_t rows = 0, heads = 0, dim_k = 0, dim_v = 0;
  bool channel = false;  // factors are [.., H, K], else [.., H]
};

// exp of a run's summed log decay per token or channel, in the code of src/core/decay.h: [num_runs, H] or
// [num_runs, H, K]. And how many of its tokens the decay leaves something of, LinearPass::counts.
struct RunFactors : PassInputs {
  int32_t dim_k = 0;
  float *factors = nullptr;
  bool reversed = false;
  int32_t *counts = nullptr;  // [num_runs, H]; null: not wanted. Of decay per token alone
};
int launch_run_factors(const RunFactors &, Stream stream);

// Over the runs of each segment in order (or reversed): slots hold each run's own part of the state and afterwards
// the state that enters it. entry_decay: from the segment's beginning to each run. Factors and decays are coded
// (src/core/decay.h), here and below.
struct StateScan {
  StateShape shape;
  const Segment *segments = nullptr;
  int64_t num_segments = 0;
  const int64_t *live = nullptr;  // device memory: how many of the segments are there; null: all
  bool reversed = false;
  float *slots = nullptr;          // [runs, H, K, V]
  const float *factors = nullptr;  // [runs, H(, K)], coded; null: no decay
  // Where runs are parts of longer ones: `runs`, so that only what enters the longer ones is written, and as in
  // LinearPass which of them have no part of the state. Both null: each is a run of its own and has one.
  const Run *runs = nullptr;
  const int32_t *counts = nullptr;
  const float *head_decay = nullptr;   // [H], log: in place of `factors` and `counts`, with `runs`
  float *entry_decay = nullptr;        // [runs, H(, K)]; may be null
  const float *first_state = nullptr;  // [N, H, K, V]; null: zero
  // Not null: the state that enters segment s, whatever it is, is at starts + start_of[s] * start_stride, [H, K,
  // V].
  const float *starts = nullptr;
  const int64_t *start_of = nullptr;
  int64_t start_stride = 0;
  // The affine map of each path, which takes the state that enters the rank to the one that leaves it: state' =
  // map_factor * state + map_state. [paths, H, K, V], null: no state leaves; [paths, H(, K)].
  float *map_state = nullptr;
  float *map_factor = nullptr;  // null: not wanted
};
int launch_state_scan(const StateScan &, Stream stream);

// slots[run] += entry_decay[run] * incoming[path] for the runs of consuming segments.
struct StateJoin {
  StateShape shape;
  const Run *runs = nullptr;  // those of consuming segments only
  int64_t num_runs = 0;
  float *slots = nullptr;
  const float *entry_decay = nullptr;  // null: all 1
  const float *incoming = nullptr;
};
int launch_state_join(const StateJoin &, Stream stream);

// Bidirectional form. sums[segment] = own[sequence] (where `begins`) + all its runs' slots; they also leave as the
// states of affine maps.
struct SegmentSums {
  StateShape shape;
  const Segment *segments = nullptr;
  int64_t num_segments = 0;
  bool reversed = false;  // which of begins[] takes `own`
  const float *slots = nullptr, *own = nullptr;
  float *sums = nullptr;                    // [segments, H, K, V]
  float *left = nullptr, *right = nullptr;  // to either neighbour [rows, H, K, V]; may be null
};
int launch_segment_sums(const SegmentSums &, Stream stream);
// totals = sums + what came from the left and the right; out to edge_state[sequence] at the sequence's end in scan
// order.
struct SegmentTotals {
  StateShape shape;
  const Segment *segments = nullptr;
  int64_t num_segments = 0;
  bool reversed = false;
  const float *sums = nullptr, *from_left = nullptr, *from_right = nullptr;
  float *totals = nullptr, *edge_state = nullptr;
  bool edge_adds = false;  // to edge_state what is there, too
};
int launch_segment_totals(const SegmentTotals &, Stream stream);

// to = later_factor * earlier + later on state rows [begin, end) of [rows*H*K], for each of the later maps in turn;
// to_factor (may be null) likewise. `to` may be one of the others. A null later_factor is 1; no later map: a copy.
struct ComposeMaps {
  static constexpr int32_t kMost = 16;
  StateShape shape;
  float *to_state = nullptr, *to_factor = nullptr;
  const float *later_state[kMost] = {}, *later_factor[kMost] = {};
  int32_t count = 0;
  const float *earlier_state = nullptr, *earlier_factor = nullptr;
  int64_t begin = 0, end = 0;
};
int launch_compose(const ComposeMaps &, Stream stream);
// [rows, H], coded: 0 where reset, else exp(tokens * head_decay[h]), or 1 where head_decay is null.
int launch_known_factor(float *factor, int64_t rows, int64_t heads, bool reset, int64_t tokens,
                        const float *head_decay, Stream stream);
// The factors of rows without tokens or without decay, coded: 1, or 0 where the row resets (by row, device memory).
int launch_fill_factors(float *factor, int64_t rows, int64_t per_row, const float *by_row, Stream stream);
// to[index[i]] = from[index[i]], or zero; states of `size` floats. `adds`: to what is there.
int launch_copy_states(float *to, const float *from, const int64_t *index, int64_t count, int64_t size, bool adds,
                       Stream stream);
// The same for as many indices as `live` says, in device memory; not more than `count`.
int launch_copy_live_states(float *to, const float *from, const int64_t *index, const int64_t *live, int64_t count,
                            int64_t size, bool adds, Stream stream);
// to[b, t, g, d] = sum over the heads of group g of from [B, T, H, D] (contiguous). `adds`: and what is there.
int launch_sum_groups(const Tensor &to, DType to_dtype, bool adds, const void *from, DType from_dtype,
                      int64_t batch, int64_t tokens, int32_t heads, Stream stream);

// ---- Halo ----

// Rows of a tensor [B, T, C] or [B, n, C], and parts of it as messages [B, count, C] in the workspace.
struct HaloRows {
  static constexpr int32_t kMost = 64;
  struct Part {
    int64_t begin = 0, count = 0;  // of the tensor's tokens or rows
    int64_t place = 0;             // its message's first byte in the workspace, a multiple of 64
  };
  void *rows = nullptr;
  Strides strides;
  std::byte *workspace = nullptr;
  DType dtype = DType::kFloat32;
  int64_t batch = 0, channels = 0;
  int32_t num_parts = 0;
  Part parts[kMost];
};
// Rows to messages, and messages to rows, as they are.
int launch_halo_gather(const HaloRows &, Stream stream);
int launch_halo_scatter(const HaloRows &, Stream stream);
// Rows += messages: a sum in float32 in the order of the parts, rounded once.
int launch_halo_add(const HaloRows &, Stream stream);

// Loads every kernel into the current context, so that no later launch does so (under stream capture it could not).
int load_generic_pass();
int load_decay_gradient();
int load_run_factors();
int load_state_kernels();
int load_halo_kernels();
int load_linear_pass_kernels();

}  // namespace lasp::gpu
