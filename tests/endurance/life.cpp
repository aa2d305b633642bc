// Drawing a group's life, living it, and judging its end.
#include "life.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>

namespace endurance {
namespace {

using Clock = std::chrono::steady_clock;

// A lost rank or an abort is noticed at once; half of the longest time limit would mean that somebody sat it out.
constexpr double kAnswerSeconds = 30;

// Processes notice a rank that left by this limit only: it answers nothing any more.
constexpr int64_t kLeftLimitMs = 3000;

}  // namespace

int64_t Life::tokens(int32_t rank) const {
  const auto r = static_cast<size_t>(rank);
  return begin[r + 1] - begin[r];
}

Life draw_life(Random &random, int32_t ranks) {
  Life life;
  life.training = draw_training(random);
  life.ranks = ranks;
  life.begin.push_back(0);
  const int64_t unit = std::max<int64_t>(1, life.training.shape.segment), tokens = life.training.shape.tokens;
  for (int32_t r = 1; r < ranks; ++r) life.begin.push_back(unit * random.between(0, tokens / unit));
  life.begin.push_back(tokens);
  std::sort(life.begin.begin(), life.begin.end());
  const int64_t how = random.between(0, 5);
  life.end = how == 0 ? End::kAborted : how == 1 ? End::kLeft : End::kAgreed;
  life.leaver = static_cast<int32_t>(random.between(0, ranks - 1));
  life.abort_after_us = random.between(0, 400);
  return life;
}

ProcessGroup draw_process_group(Random &random, int32_t processes, bool first, bool last) {
  ProcessGroup group;
  group.members.resize(static_cast<size_t>(processes));
  std::iota(group.members.begin(), group.members.end(), 0);
  if (!first && random.between(0, 2) == 0) {
    for (size_t i = group.members.size(); i > 1; --i)
      std::swap(group.members[i - 1], group.members[static_cast<size_t>(random.between(0, int64_t(i) - 1))]);
    group.members.resize(static_cast<size_t>(random.between(1, processes)));
  }
  group.life = draw_life(random, static_cast<int32_t>(group.members.size()));
  if (!last) group.life.end = End::kAgreed;
  if (group.life.end == End::kLeft) group.life.time_limit_ms = kLeftLimitMs;
  return group;
}

void run_rank(const Life &life, int32_t rank, Worker &worker, std::vector<Step> &steps, RankEnd &result) {
  const Clock::time_point begin = Clock::now();
  Shape shape = life.training.shape;
  shape.tokens = life.tokens(rank);
  result.answer = worker.open(life.time_limit_ms);
  if (result.answer.status == LASP_OK) result.answer = worker.plan(shape);
  for (size_t s = 0; s < steps.size() && result.answer.status == LASP_OK; ++s) {
    if (life.end == End::kLeft && rank == life.leaver && s + 1 == steps.size()) {
      result.answer = worker.close();
      return;
    }
    const int64_t first = life.begin[static_cast<size_t>(rank)];
    result.answer = take_step(worker, life.training, steps[s], first, shape.tokens);
    if (result.answer.status == LASP_OK) result.steps = s + 1;
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
}

void check_end(const Life &life, int32_t rank, const RankEnd &end) {
  const Answer &a = end.answer;
  const std::string who = "rank " + std::to_string(rank) + " of " + std::to_string(life.ranks) + ": ";
  if (end.seconds > kAnswerSeconds) throw std::runtime_error(who + "answered late: " + a.sentence);
  if (a.status == LASP_OK) return;
  if (life.end == End::kAborted && a.status == LASP_ERROR_ABORTED) return;
  const std::string named = "rank " + std::to_string(life.leaver) + " did not come";
  if (life.end == End::kLeft && a.status == LASP_ERROR_PEER_LOST && a.sentence.find(named) != std::string::npos)
    return;
  throw std::runtime_error(who + "status " + std::to_string(a.status) + ": " + a.sentence);
}

void Counts::add(const Life &life, size_t whole) {
  ++groups;
  ++(life.end == End::kAgreed ? agreed : life.end == End::kAborted ? aborted : left);
  steps += static_cast<int64_t>(whole);
  if (life.training.shape.exact()) exact += static_cast<int64_t>(whole);
}

}  // namespace endurance
