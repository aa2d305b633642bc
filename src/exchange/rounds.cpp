#include "exchange/rounds.h"

#include <algorithm>

namespace lasp {
namespace {

bool is_result(const StepList &list, int32_t slot) {
  return std::find(list.result.begin(), list.result.end(), slot) != list.result.end();
}

// Whether the state that step `previous` makes is wanted by this step alone.
bool follows(const StepList &list, const ExchangeStep &step, size_t previous) {
  const ExchangeStep &before = list.steps[previous];
  if (step.earlier != before.slot || step.begin != before.begin || step.end != before.end) return false;
  if (step.transition || before.transition || is_result(list, before.slot)) return false;
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
  for (size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
    while (end < steps.size() && steps[end].round == steps[begin].round) ++end;
    rounds.push_back({begin, end});
  }
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
