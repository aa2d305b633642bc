// All ranks of a group in one thread, one after the other, by the stages of the passes. On a GPU on one stream, so
// that all of it can be captured into a graph.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/rank_memory.h"
#include "support/staged_pass.h"

namespace lasp_test {

class PlayedRanks {
 public:
  // On detached comms, which take all ranks to have as many tokens; else on a group of threads, made by threads.
  // Between the stages the same plans run those of `other` data, where there is some.
  PlayedRanks(const Case &c, const CaseData &data, int32_t nranks, bool detached, const RunOptions &options,
              const CaseData *other = nullptr);
  ~PlayedRanks();
  PlayedRanks(const PlayedRanks &) = delete;
  PlayedRanks &operator=(const PlayedRanks &) = delete;

  int32_t nranks() const { return static_cast<int32_t>(ranks_.size()); }
  lasp_plan *plan(int32_t rank) const { return ranks_[static_cast<size_t>(rank)].plan; }
  const lasp_plan_info &info(int32_t rank) const { return ranks_[static_cast<size_t>(rank)].info; }
  const std::string &complaints() const { return complaints_; }
  size_t state_bytes() const { return ranks_.front().memory->state_bytes_of_run(); }

  // Outputs and all between the stages hold poison, and inputs are where the passes read them.
  void prepare(lasp_stream stream);
  // Forward and backward. `fold`, where given, finds the incoming states in place of lasp_maps_apply, host memory
  // only.
  using Fold = std::function<void(int32_t rank, bool backward, const uint8_t *maps, float *incoming)>;
  void run(lasp_stream stream, const Fold &fold = {});
  // After the stream's work.
  std::vector<std::array<std::vector<float>, kTensors>> results(lasp_stream stream);
  // The maps of all ranks as the last direction left them.
  const uint8_t *maps() const { return maps_->data(); }

 private:
  struct Rank {
    lasp_comm *comm = nullptr;
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    std::unique_ptr<RankMemory> memory;
    std::unique_ptr<StageMemory> stages[2];  // forward, backward
    std::unique_ptr<RankMemory> other;
    std::unique_ptr<StageMemory> other_stages[2];
  };
  // Of one rank.
  size_t maps_bytes() const { return static_cast<size_t>(info(0).num_runs) * info(0).map_bytes; }
  void ok(lasp_status status, const char *call);
  void make(int32_t rank, std::string &complaints);
  template <class ArgsOf>
  void disturb(const Rank &rank, bool backward, lasp_stream stream, ArgsOf args_of);
  template <class ArgsOf>
  void direction(bool backward, lasp_stream stream, const Fold &fold, ArgsOf args_of);

  const Case case_;
  const CaseData &data_, *const other_;
  const RunOptions options_;
  std::vector<Rank> ranks_;
  std::unique_ptr<GuardedBuffer> maps_;
  std::string complaints_;
};

}  // namespace lasp_test
