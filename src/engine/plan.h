// One validated problem, ready to run: work, schedule, exchange plans, backend, sizes, and the passes themselves.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/problem.h"
#include "core/token_partition.h"
#include "engine/backend.h"
#include "engine/context.h"
#include "exchange/exchange.h"

namespace lasp {

class Plan {
 public:
  // Collective: validates, agrees with the other ranks, lays out the work. Throws Error. `refusal` is what the
  // caller of this constructor already found wrong.
  Plan(Context &context, const lasp_problem &problem, std::optional<Error> refusal);

  Context &context() const { return context_; }
  const Problem &problem() const { return problem_; }
  const lasp_plan_info &info() const { return info_; }
  std::string describe() const;
  std::string summary() const;  // in one line
  lasp_sequence_info sequence(int64_t n) const;

  // Buffers have been checked. CPU: return when done; CUDA: when all is enqueued on the stream. Throw Error.
  void forward(const ForwardBuffers &buffers, bool reuse_state_cache, lasp_stream stream);
  void backward(const BackwardBuffers &buffers, lasp_stream stream);
  void step(const StepBuffers &buffers, lasp_stream stream);
  void prepare(lasp_stream stream);

 private:
  enum class Pass { kForward, kBackward };

  void make_backend();
  void choose_schedule(const Link &link);
  void plan_exchanges();
  void fill_info();
  std::string describe_problem() const;
  std::string describe_schedule() const;
  const Backend &backend() const { return passes_ != nullptr ? passes_->backend() : *backend_; }
  bool exchanges() const { return left_.nranks > 1; }
  const ExchangePlan *left(Pass pass) const;  // null: this pass sends nothing that way
  const ExchangePlan *right(Pass pass) const;
  uint64_t workspace_bytes(Pass pass) const;
  template <class Buffers, class States, class Ahead, class Finish>
  void run_exchange(Pass pass, Buffers buffers, const float *head_decay, States states, Ahead ahead, Finish finish);
  void broadcast_final_state(float *final_state);
  void copy_empty_sequences(float *to, const float *from) const;

  Context &context_;
  Problem problem_;
  TokenRanges ranges_;
  Work work_;
  std::unique_ptr<Backend> backend_;      // on the CPU
  std::unique_ptr<DevicePasses> passes_;  // elsewhere: backend and passes
  Link link_;
  int32_t schedule_ = LASP_SCHEDULE_RING, pieces_ = 1;
  std::string reason_;                // why this schedule
  ExchangePlan left_, right_;         // left to right, right to left
  std::vector<int64_t> final_begin_;  // [nranks + 1]: final states [begin[r], begin[r+1]) are written by rank r
  Messages messages_;
  std::vector<size_t> left_receipts_, right_receipts_;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
};

}  // namespace lasp
