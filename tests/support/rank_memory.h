// All buffers of one rank's run, as a hostile caller would have them, and what a pass may and may not do to them.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/device_packing.h"
#include "support/rank_run.h"
#include "support/strided_tensor.h"

namespace lasp_test {

// What element i of a tensor (contiguous, of all ranks) holds before a pass adds to it.
inline float already_there(int64_t i) { return static_cast<float>(i * 5 % 7 - 3); }

class RankMemory {
 public:
  RankMemory(const Case &c, const CaseData &data, int32_t rank, int32_t nranks, const RunOptions &options);
  // States, workspace and state cache: their sizes are the plan's to say.
  void make_for(const lasp_plan_info &info);

  int64_t first_token() const { return first_token_; }
  const std::vector<SequenceOwner> &owners() const { return owners_; }
  // Of a state that enters or leaves a run of the rank's tokens, of all rows.
  size_t state_bytes_of_run() const {
    const int64_t rows = case_.ownership == LASP_OWN_ZIGZAG_EACH ? case_.num_sequences() : case_.batch;
    return static_cast<size_t>(rows) * state_elements() * sizeof(float);
  }
  void set_strides(lasp_problem &p) const;
  lasp_forward_args forward_args() const;
  lasp_backward_args backward_args() const;

  // What a pass is to write; its workspace holds NaN in even repeats, zero in odd ones.
  void poison_forward(int32_t repeat);
  void poison_backward(int32_t repeat);
  void poison_recompute();
  // Everything to the device and back; stage() is GuardedBuffer's.
  void stage() const;
  void upload(lasp_stream stream) const;
  void download(lasp_stream stream) const;

  // "" or lines about what `call` changed that was not its to change.
  std::string misdeeds(const std::string &call) const;
  std::string foreign_final_states() const;
  std::string foreign_initial_gradients() const;

  std::vector<float> o() const { return o_.values(); }
  std::array<std::vector<float>, kTensors> results() const;

 private:
  size_t state_elements() const { return case_.heads() * case_.head_dim_k * case_.head_dim_v; }
  std::shared_ptr<TensorBlock> state_block() const;
  std::shared_ptr<TensorBlock> state_input(const std::vector<float> &states, int32_t SequenceOwner::*owner) const;
  std::string foreign_states(const std::shared_ptr<TensorBlock> &states, int32_t SequenceOwner::*owner,
                             const char *name) const;
  lasp_buffer given(const StridedTensor &tensor) const;
  lasp_const_buffer given_const(const StridedTensor &tensor) const;
  lasp_const_buffer given_decay() const;
  void put_what_is_there();
  template <class Visit>
  void each_buffer(Visit visit) const;

  const Case &case_;
  const CaseData data_;  // tokens in the order of ranks
  const RunOptions &options_;
  const int32_t rank_, nranks_;
  int64_t tokens_ = 0, begin_ = 0, first_token_ = 0;
  std::vector<SequenceOwner> owners_;
  DevicePacking packing_;
  std::array<StridedTensor, 3> qkv_, dqkv_;
  StridedTensor decay_, d_decay_, beta_, d_beta_, o_, d_o_;
  std::shared_ptr<TensorBlock> initial_state_, final_state_, d_initial_state_, d_final_state_;
  std::unique_ptr<GuardedBuffer> state_cache_, workspace_forward_, workspace_backward_;
};

}  // namespace lasp_test
