// One validated problem, ready to run: token partition, schedule, exchange plans and sizes, and the passes that a
// device made for them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/token_partition.h"
#include "engine/context.h"
#include "engine/passes.h"
#include "exchange/exchange.h"

namespace lasp {

// What Plan::info() would be on a rank of a group, none of which need exist.
lasp_plan_info info_of(const lasp_problem &problem, const lasp_placement &placement);

class Plan {
 public:
  // Collective: validates, agrees with the other ranks, lays out the work. Throws Error. `refusal` is what the
  // caller of this constructor already found wrong.
  Plan(Context &context, const lasp_problem &problem, std::optional<Error> refusal);

  Context &context() const { return context_; }
  const Problem &problem() const { return problem_; }
  const TokenRanges &ranges() const { return ranges_; }
  const lasp_plan_info &info() const { return info_; }
  const MapLayout &map_layout() const { return passes_->stages().layout; }
  std::string describe() const;
  std::string summary() const;  // in one line
  // Throws for tokens that there are not.
  Owners owners(int64_t begin, int64_t end) const;

  Passes &passes() { return *passes_; }

 private:
  void choose_schedule(const Link &link);
  void plan_exchanges();
  void fill_info();
  void fill_stages();
  StagePlan stage_plan() const;
  std::string describe_problem() const;
  std::string describe_schedule() const;
  PassExchanges exchanges(Pass pass) const;
  void plan_broadcast();
  PassPlan pass_plan() const;
  uint64_t workspace_bytes(Pass pass, bool adds = false) const;
  uint64_t cache_bytes(bool chunks) const;

  Context &context_;
  Problem problem_;
  TokenRanges ranges_;
  TokenPartition partition_;
  Link link_;
  int32_t schedule_ = LASP_SCHEDULE_RING, pieces_ = 1;
  std::string reason_;         // why this schedule
  ExchangePlan left_, right_;  // left to right, right to left
  std::optional<Relay> relay_;
  TokenRanges relayed_;  // a rank's tokens alone
  std::vector<StateMessage> broadcast_;
  std::unique_ptr<Passes> passes_;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
};

}  // namespace lasp
