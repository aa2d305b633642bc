// The CUDA backend: which kernels a phase launches, and where results wait between them. Every phase only enqueues
// on the pass's stream.
//
// The rank's tokens are cut into runs. Each run's own part of the state is found first, a scan over runs gives the
// state that enters each, and from there all runs are worked on at once, for o, dq, dv and dk by one and the same
// pass (kernels/launch.h). What depends on another rank's state waits in `finish`; the rest is done ahead.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "core/workspace.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/tables.h"

namespace lasp::cuda {

// The launchers of kernels/ answer with the number of a cudaError_t.
inline void check_launch(int error, const char *what) { check(static_cast<cudaError_t>(error), what); }

// A run counts its tokens in 32 bits.
constexpr int64_t kLongestStep = std::numeric_limits<int32_t>::max();

class StreamBackend final : public CudaBackend {
 public:
  // What it adds to `tables` is there once these are uploaded.
  StreamBackend(Tables &tables, const Problem &problem, const Work &work, int32_t compute_capability,
                int32_t multiprocessors);

  uint64_t forward_workspace_bytes() const override { return forward_room(nullptr, nullptr).bytes; }
  uint64_t backward_workspace_bytes() const override { return backward_room(nullptr, nullptr).bytes; }
  uint64_t cache_bytes(bool chunks) const override;
  uint64_t forward_result_bytes() const override;
  uint64_t backward_result_bytes() const override;
  const char *description() const override { return description_.c_str(); }

  void set_stream(lasp_stream stream) override { stream_ = stream; }
  void forward_alone(const ForwardBuffers &) override;
  void forward_states(const ForwardBuffers &, const AffineMapView &left, const AffineMapView &right) override;
  void forward_ahead(const ForwardBuffers &, const Progress &) override;
  void forward_finish(const ForwardBuffers &, const Incoming &) override;
  void forward_from_cache(const ForwardBuffers &) override;
  void backward_alone(const BackwardBuffers &) override;
  void backward_states(const BackwardBuffers &, const AffineMapView &left, const AffineMapView &right) override;
  void backward_ahead(const BackwardBuffers &, const Progress &) override;
  void backward_finish(const BackwardBuffers &, const Incoming &) override;
  void step(const StepBuffers &) override;
  void copy_empty_sequences(float *to, const float *from) override;
  size_t most_composed() const override { return gpu::ComposeMaps::kMost; }
  void compose(lasp_stream, AffineMapView to, std::span<const AffineMapView> later, AffineMapView earlier,
               int64_t begin, int64_t end) override;
  void fill_known_transition(lasp_stream, float *transition, const KnownTransition &known,
                             const float *log_decay) override;

 private:
  // Workspace of one direction's scan. `slots` may lie in the state cache; null: every run begins with zero.
  // `checkpoints`: the fused pass's, null where nobody keeps them; they may lie in the state cache, too.
  struct ScanRoom {
    float *slots, *factors, *reach;
    void *checkpoints;
    int32_t *counts;  // LinearPass::counts
  };
  struct ForwardRoom {
    ScanRoom scan;
    float *sums;  // bidirectional: [segments, H, K, V]
    uint64_t bytes;
  };
  struct BackwardRoom {
    ScanRoom states, gradients;  // their factors are the same
    ScanRoom fused_gradients;    // in place of `gradients`: of the runs of fused_cut_
    float *sums;
    void *dq, *dk, *dv;  // by output head, where a group of them shares the gradient's head
    float *decay_parts;
    // For the gradient of the decay one or the other: the fused pass's parts (and its checkpoints, of `states`), or
    // states of a window of `short_runs_` for slab_heads_ heads.
    float *fused_parts;
    float *channel_ends;  // ChannelBackward::ends
    ScanRoom slab_states, slab_gradients;
    uint64_t bytes;
  };
  ForwardRoom forward_room(void *workspace, void *cache) const;
  BackwardRoom backward_room(void *workspace, const void *cache) const;
  void place_gradients(Carver &, BackwardRoom &) const;
  void place_fused_gradients(Carver &, BackwardRoom &) const;
  void place_states(Carver &, BackwardRoom &) const;
  void place_scan(Carver &, ScanRoom &, int64_t states, int32_t heads, bool slots) const;

  // Of a tensor without gaps, else 0.
  uint64_t dense_bytes(const Layout &layout, int32_t heads, int32_t dim) const;
  int64_t floats(int64_t states) const { return states * problem_.heads * problem_.state_size(); }
  int64_t factor_size() const { return affine_map_of(problem_).head_transition_floats(); }
  int64_t factors(int64_t count) const { return count * problem_.heads * factor_size(); }
  gpu::StateShape shape() const;
  gpu::Tensor tensor(const void *data, const Layout &layout, int32_t heads, int32_t dim) const;
  gpu::Tensor q_of(const void *data) const {
    return tensor(data, problem_.q, problem_.heads_q, problem_.head_dim_k);
  }
  gpu::Tensor k_of(const void *data) const {
    return tensor(data, problem_.k, problem_.heads_k, problem_.head_dim_k);
  }
  gpu::Tensor v_of(const void *data) const {
    return tensor(data, problem_.v, problem_.heads_v, problem_.head_dim_v);
  }
  gpu::Tensor o_of(const void *data) const { return tensor(data, problem_.o, problem_.heads, problem_.head_dim_v); }
  gpu::Tensor do_of(const void *data) const {
    return tensor(data, problem_.d_o, problem_.heads, problem_.head_dim_v);
  }

  // What every pass over `runs` is given, with scale 1; a pass with no more than that set; and a pass of backward
  // without its states and results.
  gpu::PassInputs pass_inputs(const DeviceArray<gpu::Run> &runs, const void *g) const;
  gpu::GenericPass base_pass(const DeviceArray<gpu::Run> &runs, const void *g) const;
  gpu::BackwardPass backward_pass(const DeviceArray<gpu::Run> &runs, const BackwardBuffers &) const;
  // By tensor cores where they serve this pass, else by the generic kernel.
  void run_pass(const gpu::GenericPass &, const char *what) const;
  bool tensor_cores(const gpu::GenericPass &, const char **why) const;
  // A gradient shared by a group of output heads is found per output head first (into `staged`) and then summed.
  void run_gradient(gpu::GenericPass pass, const gpu::Tensor &to, void *staged, const char *what) const;
  void run_gradient_by_slab(const gpu::GenericPass &, const gpu::Tensor &to, void *staged, const char *what) const;
  void sum_groups(const gpu::Tensor &to, const gpu::GenericPass &, const char *what) const;
  bool choose_kernels();
  int64_t choose_recurrent_run_tokens() const;
  int64_t choose_run_tokens() const;
  int64_t choose_state_tokens() const;
  int64_t choose_fused_run_tokens() const;
  int64_t choose_fused_state_tokens(int64_t run_tokens) const;
  bool states_fill_device() const;
  bool forgets() const { return problem_.decay == Decay::kHead || problem_.decay == Decay::kScalar; }
  int32_t group_step() const;
  // How long the runs are around which the gradient of the decay is found.
  int64_t decay_run_tokens() const {
    return problem_.decay == Decay::kChannel ? gpu::kChannelProductRun : gpu::kDecayProductRun;
  }
  int64_t fused_items(int64_t run_tokens) const;
  bool fused_runs_fit(int64_t items) const;
  uint64_t tensor_bytes() const;
  uint64_t slab_bytes() const;
  void choose_slabs(Tables &tables);
  int64_t staged_bytes(int32_t heads, int32_t dim) const;
  gpu::Tensor staged_tensor(void *data, int32_t heads, int32_t dim) const;
  void place_staged(Carver &, BackwardRoom &) const;

  // Each run's own part of the state (or of its gradient), the decays, and the scan over runs.
  void scan_states(const ForwardBuffers &, const ScanRoom &, const AffineMapView &carry) const;
  void scan_gradients(const BackwardBuffers &, const ScanRoom &, const AffineMapView &carry) const;
  bool channel_states_serve(const gpu::LinearPass &) const;
  void own_states(gpu::GenericPass &, const Partition &, const ScanRoom &, const AffineMapView &carry,
                  const char *what) const;
  // Whether a zero state enters every run of a plan that exchanges nothing: passes then read no states at all.
  static bool begin_with_zero(const Partition &cut, const float *first_state) {
    return cut.single_runs && first_state == nullptr;
  }
  void scan(const Partition &, const ScanRoom &, bool reversed, const float *first_state,
            const AffineMapView &carry) const;
  bool sums_decays(const Partition &, const ScanRoom &, const AffineMapView &) const;
  gpu::RunFactors run_factors(const Partition &, const void *g, float *factors) const;
  // Runs whose own part of the state anybody asks for: where no state leaves the rank, not the last ones.
  const DeviceArray<gpu::Run> &runs_with_own_states(const Partition &cut, const AffineMapView &carry,
                                                    bool reversed) const {
    if (problem_.bidirectional) return cut.state_runs;
    return carry.state != nullptr ? cut.leading[reversed] : cut.followed[reversed];
  }
  void join(const Partition &, const ScanRoom &, const float *incoming, bool reversed) const;
  // Whether runs that a state from another rank does not reach go ahead of the exchange. Which ones the device
  // knows, so what goes ahead and what waits are launches over the same runs. Not with tensor cores: their blocks
  // hold a whole multiprocessor for a whole run, and the exchange's own kernels wait longer for one than is won
  // (docs/history/gpu-speed.md).
  bool reach_tells(bool reversed) const {
    return !tensor_cores_ && !cut_.single_runs && forgets() && cut_.consumers[reversed].size() > 0;
  }
  void outputs(const ForwardBuffers &, const ScanRoom &, const DeviceArray<gpu::Run> &runs,
               gpu::RunFilter which = gpu::RunFilter::kAll) const;
  void local_gradients(const BackwardBuffers &, const BackwardRoom &) const;
  void other_gradients(const BackwardBuffers &, const BackwardRoom &, gpu::RunFilter which) const;
  void query_gradients(const BackwardBuffers &, const BackwardRoom &) const;
  void value_gradients(const BackwardBuffers &, const BackwardRoom &, gpu::RunFilter which) const;
  void key_gradients(const BackwardBuffers &, const BackwardRoom &, gpu::RunFilter which) const;
  gpu::GenericPass base_other_gradients(const BackwardBuffers &, const BackwardRoom &, gpu::RunFilter which) const;
  void decay_gradients(const BackwardBuffers &, const BackwardRoom &) const;
  gpu::DecayGradient base_decay_gradient(const BackwardBuffers &) const;
  void place_slab(Carver &, BackwardRoom &, int32_t heads, int64_t runs) const;
  // Where runs are too long for the gradient of the decay: states of short runs again, a slab at a time.
  struct Slab {
    int32_t first_head, heads;
    ShortRuns::Window window;
  };
  void decay_gradients_by_slab(const BackwardBuffers &, const BackwardRoom &) const;
  void slab_states(const BackwardBuffers &, const BackwardRoom &, const Slab &) const;

  // For questions about what a kernel serves: pointers are looked at again in each call.
  static BackwardBuffers aligned_buffers();
  // All gradients at once (stream_fused.cpp).
  bool keeps_checkpoints() const { return fused_ && problem_.cache_chunks; }
  void *cached_checkpoints(void *cache) const;  // null where the forward pass keeps none
  int64_t checkpoint_bytes() const;
  gpu::FusedBackward fused_pass(const BackwardBuffers &, const BackwardRoom &) const;
  bool fused_serves(const BackwardBuffers &) const;
  const Partition &gradient_cut(const BackwardBuffers &b) const { return fused_serves(b) ? *fused_cut_ : cut_; }
  const ScanRoom &gradient_room(const BackwardBuffers &b, const BackwardRoom &room) const {
    return fused_serves(b) ? room.fused_gradients : room.gradients;
  }
  void find_checkpoints(const BackwardBuffers &, const BackwardRoom &) const;
  void fused_gradients(const BackwardBuffers &, const BackwardRoom &) const;
  void place_rest(Carver &, BackwardRoom &) const;

  // Those of q, k and a per-channel decay by two walks (stream_channel.cpp).
  gpu::ChannelBackward channel_pass(const BackwardBuffers &, const BackwardRoom &) const;
  bool channel_serves(const BackwardBuffers &) const;
  void channel_gradients(const BackwardBuffers &, const BackwardRoom &) const;

  // Bidirectional form (stream_bidirectional.cpp).
  void segment_sums(const float *slots, const float *own, bool reversed, float *sums, const AffineMapView &left,
                    const AffineMapView &right) const;
  void segment_totals(const float *sums, const Incoming &, bool reversed, float *totals, float *edge_state) const;
  void bidirectional_outputs(const ForwardBuffers &, const float *totals) const;
  void bidirectional_query_gradients(const BackwardBuffers &, const BackwardRoom &) const;
  void bidirectional_other_gradients(const BackwardBuffers &, const BackwardRoom &) const;
  void fill_carry(const AffineMapView &, const DeviceArray<float> &resets) const;

  void zero(void *to, int64_t floats, const char *what) const;

  const Problem &problem_;
  const Work &work_;
  const int32_t compute_capability_, multiprocessors_;
  const char *why_not_ = nullptr;  // the tensor cores
  const bool tensor_cores_;        // for every pass of this plan, pointers permitting
  const int64_t run_tokens_, state_tokens_;
  Partition cut_;                        // of the passes
  std::optional<Partition> fused_cut_;   // of the fused pass, whose blocks hold a head's whole state
  std::optional<ShortRuns> short_runs_;  // for the gradient of the decay, where those of cut_ are too long
  int32_t slab_heads_ = 0;
  int64_t fused_blocks_ = 0;              // (run, head) that the fused pass works on at once
  bool fused_ = false;                    // the fused pass serves this plan, pointers permitting
  bool channel_ = false;                  // likewise the walks for per-channel decay
  DeviceArray<gpu::Run> whole_segments_;  // step: Run::state is the sequence
  DeviceArray<gpu::Run> by_segment_;      // bidirectional: Run::state is the segment
  DeviceArray<float> resets_[2];          // [rows]: the factor of a row without decay, forward and reversed
  DeviceArray<int64_t> empty_sequences_;
  std::string description_;
  lasp_stream stream_ = nullptr;
};

}  // namespace lasp::cuda
