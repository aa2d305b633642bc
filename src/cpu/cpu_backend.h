// The CPU backend: which chunks and heads are worked on when, by which thread, and where results wait. The
// arithmetic of one chunk is in chunk_math.h.
//
// Alone (no exchange) there are two ways. A walk takes a segment and a few heads from its first chunk to its last
// with the running states in cache memory, and reads every input once; that needs enough segments and heads to keep
// the threads busy. Otherwise, and whenever states are exchanged, three sweeps: each chunk's own part of the state,
// in parallel; a scan over chunks; outputs, in parallel again.
//
// With Problem::segment the scan stops at every segment's end, and the maps of the segments are applied one after
// the other (segment_fold.cpp): the same sums in the same order, wherever ranks begin.
#pragma once

#include <atomic>
#include <vector>

#include "base/function_ref.h"
#include "core/workspace.h"
#include "rank_work.h"

namespace lasp::cpu {

// One direction of the state scan: forward in time with states, or backward with their gradients.
struct ScanDirection {
  bool reversed;
  const float *first_state;  // [N, H, K, V] enters where a sequence begins (in scan order); null: zero
  float *last_state;         // [N, H, K, V] written where a sequence ends (in scan order); null: not wanted
  bool add = false;          // what is written there is added to what is there

  template <class Float>
  void put_last(const Float *from, int64_t count, int64_t at) const {
    float *to = last_state + at;
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(add ? to[i] + from[i] : from[i]);
  }
};

// Workspace of one scan.
struct ScanWorkspace {
  float *slots;  // [chunks, H, K, V] a chunk's own part, then the state that enters it
  double *logs;  // [chunks, H(, K)] summed log decay of a chunk; scalar and channel decay
  float
      *entry_decay;  // [chunks, H(, K)] decay from the state that enters a segment to the chunk (consumer segments)
  float *tail;       // [entries, H, K, V] end state of a consumer segment before the entering state joins. An entry
                     // is a row; with Problem::segment a segment, where the entering state replaces it
  float *tail_factor;  // [entries, H(, K)]
  // In a carry alone: [segments, H, K, V], the end state of each segment that ends its sequence in scan order and
  // that no state enters from outside.
  float *ends;
};

class CpuBackend final : public RankWork {
 public:
  CpuBackend(const Problem &problem, const TokenPartition &partition, ThreadPool &pool, const Kernels &kernels);

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
  uint64_t forward_carry_bytes() const override;
  uint64_t backward_carry_bytes() const override;
  void forward_resume(const ForwardBuffers &) override;
  void backward_resume(const BackwardBuffers &) override;
  void step(const StepBuffers &) override;
  void compose(lasp_stream, AffineMapView to, std::span<const AffineMapView> later, AffineMapView earlier,
               int64_t begin, int64_t end) override;

 private:
  // What has been done of a work item before the incoming state arrived.
  enum class Done : uint8_t { kNothing, kLocal, kAll };
  struct ForwardWorkspace {
    ScanWorkspace scan;
    float *staged_o;  // [B, T, H, V] outputs of 16-bit tensors that still lack the incoming state's part
    float *sums;      // [segments, H, K, V] bidirectional
    uint64_t bytes;
  };
  struct BackwardWorkspace {
    ScanWorkspace states;          // recomputed when only the incoming state was cached
    ScanWorkspace gradients;       // shares `logs`
    float *staged_dk, *staged_dv;  // [B, T, Hk, K], [B, T, Hv, V] where the outputs cannot hold partial sums
    float *staged_dg_channel;      // [B, T, H, K] likewise
    double *staged_dg;             // [B, T, H] head and scalar decay
    double *head_dg;               // [chunks, H] head decay
    float *sums;                   // [segments, H, K, V] bidirectional
    uint64_t bytes;
  };

  void follow_partition() override;
  int64_t factors(int64_t n) const { return n * problem_.heads * map_.head_transition_floats(); }
  // Whether a state enters the segment from outside: from another rank or, with Problem::segment, from the segment
  // before it.
  bool consumes(bool reversed, int64_t segment) const;
  // Whether that state is known only once the exchange has ended.
  bool waits(bool reversed, int64_t segment) const;
  int64_t entry_of(int64_t segment) const;
  ForwardWorkspace forward_workspace(void *workspace, void *cache) const;
  BackwardWorkspace backward_workspace(void *workspace, const void *cache) const;
  ForwardWorkspace forward_workspace(const ForwardBuffers &b) const;
  BackwardWorkspace backward_workspace(const BackwardBuffers &b) const;
  bool slots_in_cache() const;
  void place_scan(Carver &carver, ScanWorkspace &w, bool reversed, bool slots) const;

  void compose_states(float *to, const AffineMapView &later, const float *earlier, int64_t begin, int64_t end);

  static ScanDirection backward_in_time(const BackwardBuffers &b) {
    return {true, b.d_final_state, b.d_initial_state, b.adds(LASP_ADD_D_INITIAL_STATE)};
  }

  // carry.cpp
  void place_carry(Carver &carver, ScanWorkspace &w, bool reversed, bool slots) const;
  void hand_on_ends(const ScanWorkspace &w, const ScanDirection &direction);

  // state_scan.cpp
  void scan(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out);
  void scan_slice(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out, int64_t segment,
                  int32_t head, int64_t key_begin, int64_t keys, double *run);
  bool ends_alone(bool reversed, int64_t segment) const;
  void fill_factors(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out);
  void find_entry_decay(const ScanWorkspace &w, bool reversed, int64_t segment, int32_t head, Scratch &s) const;
  void finish_tails(const ScanWorkspace &w, const ScanDirection &direction, const float *incoming);
  // Adds the incoming state to the state that enters a chunk.
  void join_incoming(const ScanWorkspace &w, bool reversed, const float *incoming, int64_t chunk,
                     int32_t head) const;
  bool depends(const ScanWorkspace &w, bool reversed, int64_t chunk, int32_t head) const;
  bool enters_with_zero(const ScanDirection &direction, int64_t chunk, const float *incoming) const;

  // segment_fold.cpp
  struct Chain {
    int64_t row, first, count;  // segments `first`, and on in the scan's direction
    bool open;                  // a state enters it from another rank
  };
  void find_chains();
  void fold(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out, const float *incoming,
            bool open);
  void fold_chain(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out,
                  const float *incoming, const Chain &chain, int32_t head, Scratch &s) const;
  void pass_through(float *to, const float *incoming, int64_t begin, int64_t end);

  // forward.cpp
  void state_parts(const void *k, const void *v, const ScanWorkspace &w, FunctionRef<void()> between = {});
  void walk_forward(const ForwardBuffers &b, int64_t segment, int32_t first, Scratch &s) const;
  void walk_chunk(const ForwardBuffers &b, int64_t chunk, int32_t head, double *run, bool zero, Scratch &s) const;
  void forward_item(const ForwardBuffers &b, const ForwardWorkspace &w, int64_t item, Done from, Done to,
                    const float *incoming, Scratch &s) const;
  void final_from_last_chunk(const ForwardBuffers &b, const float *entering, int64_t item, Scratch &s) const;

  // backward.cpp
  void gradient_parts(const BackwardBuffers &b, const BackwardWorkspace &w);
  void find_states(const BackwardBuffers &b, const BackwardWorkspace &w, FunctionRef<void()> between);
  const float *state_before(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t chunk,
                            int32_t head) const;
  const float *gradient_after(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t chunk, int32_t head,
                              const float *incoming) const;
  void backward_head(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t chunk, int32_t head,
                     const HeadInputs &in, const float *d_state, Scratch &s) const;
  void walk_backward(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t segment, int32_t first,
                     Scratch &s) const;

  // backward_split.cpp
  GradientTiles staged_tiles(const BackwardBuffers &b, const BackwardWorkspace &w, const TokenSpan &span,
                             int32_t head, Scratch &s) const;
  void backward_local(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t item, Scratch &s) const;
  void backward_incoming(const BackwardBuffers &b, const BackwardWorkspace &w, int64_t item, const float *incoming,
                         Scratch &s) const;

  // bidirectional.cpp
  void bidirectional_sums(float *slots, float *sums, const float *own, bool at_end, const AffineMapView &left,
                          const AffineMapView &right);
  void complete_map(const AffineMapView &map, const std::vector<RowPath> &rows) const;
  void bidirectional_totals(float *totals, const float *sums, const Incoming &incoming,
                            const ScanDirection &direction);
  void bidirectional_outputs(const ForwardBuffers &b, const ForwardWorkspace &w, const Incoming &incoming);
  void bidirectional_from_totals(const ForwardBuffers &b, const float *totals);
  void bidirectional_reads(const ForwardBuffers &b, const float *totals);
  const float *total_of(const float *totals, int64_t chunk, int32_t head) const;
  void bidirectional_query(const BackwardBuffers &b, int64_t item, Scratch &s) const;
  void bidirectional_queries(const BackwardBuffers &b, const std::atomic<bool> &arrived,
                             FunctionRef<void()> between);
  void bidirectional_gradients(const BackwardBuffers &b, const BackwardWorkspace &w, const Incoming &incoming);

  std::vector<Done> done_;                // of each work item, in a pass with an exchange
  bool states_found_ = false;             // backward with only the incoming state cached
  std::vector<Chain> chains_[2];          // by direction; with Problem::segment
  bool may_consume_[2] = {false, false};  // by direction: a state enters some segment from outside
  ScanWorkspace passed_{};                // the scan whose states are being exchanged; with Problem::segment
  bool passed_reversed_ = false;
};

}  // namespace lasp::cpu
