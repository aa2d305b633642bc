#include "exchange/rounds.h"

#include <algorithm>

namespace lasp {
namespace {

bool overlap(const ExchangeStep &a, const ExchangeStep &b) { return a.begin < b.end && b.begin < a.end; }

// Whether `step` would have to come after `earlier`, though a round runs messages before compositions and messages
// all at once.
bool needs_new_round(const ExchangeStep &step, const ExchangeStep &earlier) {
  if (step.op == Op::kCompose || !overlap(step, earlier)) return false;
  switch (earlier.op) {
    case Op::kSend: return step.op == Op::kReceive && step.slot == earlier.slot;
    case Op::kReceive: return step.slot == earlier.slot;
    case Op::kCompose:
      return step.slot == earlier.slot ||
             (step.op == Op::kReceive && (step.slot == earlier.later || step.slot == earlier.earlier));
  }
  return true;
}

// Whether the state that step `previous` makes is wanted by this step alone.
bool follows(const StepList &list, const ExchangeStep &step, size_t previous) {
  const ExchangeStep &before = list.steps[previous];
  if (step.earlier != before.slot || step.begin != before.begin || step.end != before.end) return false;
  if (step.transition || before.transition || list.result == before.slot) return false;
  const auto next = list.steps.begin() + static_cast<std::ptrdiff_t>(previous) + 1;
  return std::none_of(next, list.steps.end(), [&](const ExchangeStep &other) {
    return &other != &step &&
           (other.slot == before.slot || other.later == before.slot || other.earlier == before.slot);
  });
}

}  // namespace

std::vector<Round> make_rounds(const StepList &list) {
  std::vector<Round> rounds;
  const std::vector<ExchangeStep> &steps = list.steps;
  size_t begin = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto in_the_way = [&](const ExchangeStep &earlier) { return needs_new_round(steps[i], earlier); };
    const auto first = steps.begin() + static_cast<std::ptrdiff_t>(begin);
    if (!std::any_of(first, steps.begin() + static_cast<std::ptrdiff_t>(i), in_the_way)) continue;
    rounds.push_back({begin, i});
    begin = i;
  }
  if (begin < steps.size()) rounds.push_back({begin, steps.size()});
  return rounds;
}

std::vector<Chain> make_chains(const StepList &list, const Round &round, size_t most) {
  std::vector<Chain> chains;
  for (size_t i = round.begin; i < round.end; ++i) {
    if (list.steps[i].op != Op::kCompose) continue;
    const bool goes_on =
        !chains.empty() && chains.back().size() < most && follows(list, list.steps[i], chains.back().back());
    if (!goes_on) chains.emplace_back();
    chains.back().push_back(i);
  }
  return chains;
}

}  // namespace lasp
