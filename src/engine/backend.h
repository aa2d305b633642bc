// The arithmetic of the passes on a device, in phases between which states travel. Their order and the exchange are
// the engine's (passes.h).
#pragma once

#include <cstdint>

#include "base/function_ref.h"
#include "core/affine_map.h"
#include "core/map_composer.h"
#include "core/packing.h"
#include "core/problem.h"
#include "core/token_partition.h"

namespace lasp {

// States that arrived from other ranks, [rows, H, K, V]; null: none (zero). `left` comes from earlier tokens,
// `right` from later ones (backward pass, and the bidirectional form).
struct Incoming {
  const float *left = nullptr;
  const float *right = nullptr;
};

struct ForwardBuffers {
  const void *q, *k, *v, *decay, *beta;  // beta: null but for the delta rule
  const float *initial_state;            // may be null: zero
  void *o;
  float *final_state;     // may be null
  void *state_cache;      // null when the plan has no backward
  void *workspace;        // the backend's part
  void *carry = nullptr;  // stages: what forward_states hands on; null: in the workspace
  Packing packing = {};   // of a packed plan
  bool keep_map = false;  // stages: a phase of states without a map leaves in the cache what one with it does
};

struct BackwardBuffers {
  const void *q, *k, *v, *decay, *beta;
  const float *initial_state;  // may be null
  const void *d_o;
  const float *d_final_state;  // may be null
  const void *state_cache;
  void *dq, *dk, *dv, *d_decay, *d_beta;  // d_decay may be null
  float *d_initial_state;                 // may be null
  void *workspace;
  int32_t add;            // LASP_ADD_*
  void *carry = nullptr;  // stages: what backward_states hands on; null: in the workspace
  Packing packing = {};   // of a packed plan: that of the forward pass
  bool staged = false;    // its phases may be in different calls, which see different pointers

  bool adds(int32_t which) const { return (add & which) != 0; }
};

struct StepBuffers {
  const void *q, *k, *v, *decay, *beta;
  float *state;  // in and out
  void *o;
  int64_t tokens;  // of each row
};

// Called on the engine's thread between pieces of work; returns true once the exchange has finished, after which
// the backend stops working ahead.
using Progress = FunctionRef<bool()>;

// Composes the maps of its problem, too, wherever the exchange moves them.
class Backend : public MapComposer {
 public:
  virtual uint64_t forward_workspace_bytes() const = 0;
  virtual uint64_t backward_workspace_bytes() const = 0;
  virtual uint64_t cache_bytes(bool chunks) const = 0;
  // Of the memory of `o` (backward: `dv`), what no phase touches before it has read what came in, so that the
  // exchange's maps can be there; 0 where some phase does or others' bytes lie between its elements.
  virtual uint64_t forward_result_bytes() const { return 0; }
  virtual uint64_t backward_result_bytes() const { return 0; }
  // One line for lasp_plan_describe: the path chosen and why.
  virtual const char *description() const = 0;

  // Forward. With `exchanging` the three phases run in turn; without (a group of one) `forward_alone` does it all.
  // forward_states finds the state of each chunk and fills `left` (and `right` for the bidirectional form): this
  // rank's map in each direction, in workspace memory.
  virtual void forward_alone(const ForwardBuffers &) = 0;
  virtual void forward_states(const ForwardBuffers &, const AffineMapView &left, const AffineMapView &right) = 0;
  virtual void forward_ahead(const ForwardBuffers &, const Progress &) = 0;
  virtual void forward_finish(const ForwardBuffers &, const Incoming &) = 0;
  // Outputs again from the state cache alone.
  virtual void forward_from_cache(const ForwardBuffers &) = 0;

  virtual void backward_alone(const BackwardBuffers &) = 0;
  virtual void backward_states(const BackwardBuffers &, const AffineMapView &left, const AffineMapView &right) = 0;
  virtual void backward_ahead(const BackwardBuffers &, const Progress &) = 0;
  virtual void backward_finish(const BackwardBuffers &, const Incoming &) = 0;

  // Stages. What a phase of states hands on in `carry`, where there is one; and what stands in its place in a call
  // that is given such a carry.
  virtual uint64_t forward_carry_bytes() const = 0;
  virtual uint64_t backward_carry_bytes() const = 0;
  virtual void forward_resume(const ForwardBuffers &) = 0;
  virtual void backward_resume(const BackwardBuffers &) = 0;
  // The map that changes nothing, of one run, where transitions are dense.
  virtual void fill_identity(const AffineMapView &) {}
  // Throws where the phases that these buffers would take are not the plan's own.
  virtual void require_stage(const BackwardBuffers &) const {}

  virtual void step(const StepBuffers &) = 0;

  // An empty sequence hands its state through unchanged, and so its gradient: to[n] = from[n], or zero where `from`
  // is null, for those that this rank owns; states [N, H, K, V]. `add`: to[n] += from[n].
  virtual void copy_empty_sequences(float *to, const float *from, bool add) = 0;

  // Of a packed plan, at the end of a call: zero where outputs have padding.
  virtual void clear_padding(const ForwardBuffers &) {}
  virtual void clear_padding(const BackwardBuffers &) {}
};

}  // namespace lasp
