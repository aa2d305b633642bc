// The delta rule on the CPU: which chunks, heads and columns are worked on when, by which thread, and where results
// wait. The arithmetic of one chunk is in delta_chunk.h.
//
// What a token writes depends on the state before it, so states are found along the sequence: a chain takes a
// segment from its first chunk to its last, for a head and some columns of V, which do not meet. Alone, with enough
// segments and heads to keep the threads busy, a walk does all of a chunk's work as it passes. Otherwise, and
// whenever states are exchanged, three sweeps: the chunks' inverses, in parallel; chains; outputs, in parallel
// again.
//
// Between ranks a segment is S_out = M S_in + P, M a matrix of K x K. A chain from zero gives P, one from the
// identity that writes nothing gives M. Backward it is dS_in = M^T dS_out + dP, and M comes from the forward pass,
// in the state cache. Where the state that enters is known at last, the segment's chain runs once more.
#pragma once

#include <atomic>

#include "core/workspace.h"
#include "delta_chunk.h"
#include "rank_work.h"

namespace lasp::cpu {

class DeltaBackend final : public RankWork {
 public:
  DeltaBackend(const Problem &problem, const TokenPartition &partition, ThreadPool &pool, const Kernels &kernels);

  uint64_t forward_workspace_bytes() const override;
  uint64_t backward_workspace_bytes() const override;
  uint64_t cache_bytes(bool chunks) const override;

  void forward_alone(const ForwardBuffers &) override;
  void forward_states(const ForwardBuffers &, const AffineMapView &left, const AffineMapView &right) override;
  void forward_ahead(const ForwardBuffers &, const Progress &) override;
  void forward_finish(const ForwardBuffers &, const Incoming &) override;
  void forward_from_cache(const ForwardBuffers &) override;
  void backward_alone(const BackwardBuffers &) override;
  void backward_states(const BackwardBuffers &, const AffineMapView &left, const AffineMapView &right) override;
  void backward_ahead(const BackwardBuffers &, const Progress &) override;
  void backward_finish(const BackwardBuffers &, const Incoming &) override;
  // What it hands on are T' and, backward, the scores. The chains that begin here run once more, as those do that a
  // state enters.
  uint64_t forward_carry_bytes() const override;
  uint64_t backward_carry_bytes() const override;
  void forward_resume(const ForwardBuffers &) override;
  void backward_resume(const BackwardBuffers &) override;
  void fill_identity(const AffineMapView &map) override { map_.set_identity(map); }
  void step(const StepBuffers &) override;
  void compose(lasp_stream, AffineMapView to, std::span<const AffineMapView> later, AffineMapView earlier,
               int64_t begin, int64_t end) override;

 private:
  // Of a forward pass, or of the backward pass that finds the states again.
  struct StateWork {
    float *solved;  // [chunks, H, chunk, chunk] T'
    float *slots;   // [chunks, H, K, V] the state that enters each chunk
  };
  struct ForwardWorkspace {
    StateWork states;
    uint64_t bytes;
  };
  struct BackwardWorkspace {
    StateWork states;  // its slots are the state cache, where that has them
    float *scores;     // [chunks, H, chunk, chunk]
    float *slots;      // [chunks, H, K, V] the gradient of the state that leaves each chunk
    double *head_dg;   // [chunks, H] head decay
    uint64_t bytes;
  };
  struct KeysAndValues {
    const void *k, *v;
  };
  // A segment's way for one head and some columns of its state or, from the identity on, of its transition.
  struct Chain {
    int64_t segment;
    int32_t head;
    int begin, count;
    bool of_transition;
  };
  // Which chains run: those whose state is known without other ranks, or the others, now that it came in.
  struct Entering {
    bool open;
    const float *incoming;  // [rows, H, K, V]; null: zero
  };

  void follow_partition() override {}
  int64_t squares(int64_t n) const { return n * problem_.heads * problem_.chunk * problem_.chunk; }
  float *square(float *from, int64_t item) const { return from + item * problem_.chunk * problem_.chunk; }
  float *state_at(float *from, int64_t item) const { return from + item * problem_.state_size(); }
  ForwardWorkspace forward_workspace(void *workspace, void *cache) const;
  BackwardWorkspace backward_workspace(void *workspace, const void *cache) const;
  ForwardWorkspace forward_workspace(const ForwardBuffers &b) const;
  BackwardWorkspace backward_workspace(const BackwardBuffers &b) const;

  bool consumes(bool reversed, int64_t segment) const {
    return paths(reversed)[static_cast<size_t>(segment_at(segment).path)].consumer == segment;
  }
  const Segment &segment_at(int64_t index) const { return partition_.segments[static_cast<size_t>(index)]; }
  // Whether a state goes in on one side and out on the other.
  bool passes_through(int64_t segment) const {
    return !segment_at(segment).starts_here && !segment_at(segment).ends_here;
  }
  bool any_passes_through() const;
  bool enters_with_zero(bool reversed, int64_t chunk, const float *first_state, const float *incoming) const;
  const float *transitions_in(const void *cache) const;

  // delta_chains.cpp
  template <class Body>
  void each_chain(bool reversed, const Entering &entering, const AffineMapView &out, bool transitions,
                  const Body &body, FunctionRef<void()> between = {});
  void solve_chunks(const void *k, const StateWork &w);
  void state_chains(const KeysAndValues &in, const StateWork &w, const float *first_state, float *last_state,
                    const Entering &entering, const AffineMapView &out, float *transitions,
                    FunctionRef<void()> between = {});
  void walk_states(const KeysAndValues &in, const StateWork &w, const Chain &chain, const float *first, bool keep,
                   Scratch &s) const;
  void final_from_last_chunk(const ForwardBuffers &b, int64_t item, bool zero, Scratch &s) const;
  int parts_of_chain(int64_t columns) const;
  void gradient_chains(const BackwardBuffers &b, const BackwardWorkspace &w, const Entering &entering,
                       const AffineMapView &out);
  void walk_gradients(const BackwardBuffers &b, const BackwardWorkspace &w, const Chain &chain, const float *first,
                      bool keep, Scratch &s) const;
  const float *entry_of(const Chain &chain, bool reversed, const float *first_state,
                        const Entering &entering) const;
  void leave(const Chain &chain, bool reversed, const AffineMapView &out, float *last_state, bool add,
             const double *run) const;
  void complete_map(const AffineMapView &out, bool reversed, const float *transitions) const;

  // delta_forward.cpp
  void walk_forward(const ForwardBuffers &b, int64_t segment, int32_t first, Scratch &s) const;
  void output_item(const ForwardBuffers &b, const float *slots, const float *solved, int64_t item, bool zero,
                   Scratch &s) const;

  // delta_backward.cpp
  void find_states(const BackwardBuffers &b, const BackwardWorkspace &w, FunctionRef<void()> between);
  void prepare_chunks(const BackwardBuffers &b, const BackwardWorkspace &w);
  void gradient_item(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t item, const float *incoming,
                     Scratch &s) const;
  void gradient_head(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t chunk, int32_t head,
                     const float *solved, const float *scores, const float *d_state, Scratch &s) const;
  void walk_backward(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t segment, int32_t first,
                     Scratch &s) const;

  DeltaMath delta_;
  std::vector<char> done_;         // of each work item, in a pass with an exchange
  bool states_found_ = false;      // backward with only the incoming state cached
  bool may_pass_through_ = false;  // however the tokens are packed
};

}  // namespace lasp::cpu
