// Training steps without end, by groups of threads that come and go: steps are compared with one rank's, groups end
// by agreement, by abort or by the loss of a rank, and the process must not grow.
//     endurance_soak (--seconds N | --minutes N) [--seed S] [--log-every SECONDS]
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "training.h"

namespace {

using namespace endurance;
using Clock = std::chrono::steady_clock;

constexpr int64_t kTimeLimitMs = 60'000;
// A lost rank or an abort is noticed at once; half the time limit would mean that somebody sat it out.
constexpr double kAnswerSeconds = 30;

enum class End { kAgreed, kAborted, kLeft };

struct Counts {
  int64_t groups = 0, steps = 0, restarts = 0, aborted = 0, left = 0, exact = 0;
};

struct Life {
  Training training;
  int32_t ranks = 1;
  std::vector<int64_t> begin;  // [ranks + 1] each rank's first token
  End end = End::kAgreed;
  int32_t leaver = 0;
  int64_t abort_after_us = 0;
};

// Splits anywhere, so that ranks without tokens occur.
Life draw(Random &random) {
  Life life;
  life.training = draw_training(random);
  life.ranks = static_cast<int32_t>(random.between(1, 5));
  life.begin.push_back(0);
  for (int32_t r = 1; r < life.ranks; ++r) life.begin.push_back(random.between(0, life.training.shape.tokens));
  life.begin.push_back(life.training.shape.tokens);
  std::sort(life.begin.begin(), life.begin.end());
  const int64_t how = random.between(0, 5);
  life.end = how == 0 ? End::kAborted : how == 1 ? End::kLeft : End::kAgreed;
  life.leaver = static_cast<int32_t>(random.between(0, life.ranks - 1));
  life.abort_after_us = random.between(0, 400);
  return life;
}

// How far a rank came, and what it was answered at the end of it.
struct RankEnd {
  Answer answer;
  size_t steps = 0;
  double seconds = 0;
};

void run_rank(const Life &life, int32_t rank, Worker &worker, std::vector<Step> &steps, RankEnd &result) {
  const Clock::time_point begin = Clock::now();
  Shape shape = life.training.shape;
  const auto r = static_cast<size_t>(rank);
  shape.tokens = life.begin[r + 1] - life.begin[r];
  result.answer = worker.open(kTimeLimitMs);
  if (result.answer.status == LASP_OK) result.answer = worker.plan(shape);
  for (size_t s = 0; s < steps.size() && result.answer.status == LASP_OK; ++s) {
    if (life.end == End::kLeft && rank == life.leaver && s + 1 == steps.size()) {
      result.answer = worker.close();
      return;
    }
    result.answer = take_step(worker, life.training, steps[s], life.begin[r], shape.tokens);
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

void run_group(Life &life, Counts &counts) {
  std::vector<lasp_comm *> comms(static_cast<size_t>(life.ranks));
  if (lasp_comm_create_threads(life.ranks, comms.data()) != LASP_OK) throw std::runtime_error(lasp_last_error());
  std::vector<std::unique_ptr<Worker>> workers;
  for (lasp_comm *comm : comms) workers.push_back(std::make_unique<Worker>(comm));
  // An extra context of rank 0's comm: what another thread may abort while rank 0's own is still being made.
  lasp_context *handle = nullptr;
  if (life.end == End::kAborted && lasp_context_create(LASP_ABI, comms[0], nullptr, &handle) != LASP_OK)
    throw std::runtime_error(lasp_last_error());
  std::vector<std::vector<Step>> steps(comms.size(), life.training.steps);
  std::vector<RankEnd> ends(comms.size());
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < life.ranks; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<size_t>(r);
      run_rank(life, r, *workers[i], steps[i], ends[i]);
    });
  lasp_status aborted = LASP_OK;
  if (life.end == End::kAborted) {
    std::this_thread::sleep_for(std::chrono::microseconds(life.abort_after_us));
    aborted = lasp_context_abort(handle);
  }
  for (std::thread &thread : threads) thread.join();
  if (aborted != LASP_OK) throw std::runtime_error("abort answered " + std::to_string(aborted));
  if (lasp_context_destroy(handle) != LASP_OK) throw std::runtime_error(lasp_last_error());
  for (int32_t r = 0; r < life.ranks; ++r) check_end(life, r, ends[static_cast<size_t>(r)]);
  for (const auto &worker : workers) {
    const Answer closed = worker->close();
    if (closed.status != LASP_OK) throw std::runtime_error("destroy: " + closed.sentence);
  }
  // After a fault a rank may still be in an earlier step than another: compared is what all of them have done.
  size_t whole = life.training.steps.size();
  for (const RankEnd &end : ends) whole = std::min(whole, end.steps);
  for (size_t s = 0; s < whole; ++s) compare_step(life.training, s, steps, life.begin);
  counts.steps += static_cast<int64_t>(whole);
  if (life.training.shape.decay == LASP_DECAY_NONE) counts.exact += static_cast<int64_t>(whole);
  ++(life.end == End::kAgreed ? counts.restarts : life.end == End::kAborted ? counts.aborted : counts.left);
  ++counts.groups;
}

void live_once(Random &random, Counts &counts) {
  Life life = draw(random);
  run_alone(life.training, random);
  run_group(life, counts);
}

struct Options {
  double seconds = 20, log_every = 10;
  uint64_t seed = 1;
};

Options parse(int argc, char **argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const double value = std::atof(argv[i + 1]);
    if (key == "--seconds") o.seconds = value;
    if (key == "--minutes") o.seconds = 60 * value;
    if (key == "--log-every") o.log_every = value;
    if (key == "--seed") o.seed = static_cast<uint64_t>(value);
  }
  return o;
}

void log(double seconds, const Counts &c, const Usage &u) {
  std::printf(
      "%7.0f s: %lld groups (%lld ended by agreement, %lld by abort, %lld by a lost rank), %lld steps compared "
      "(%lld bit for bit), resident %lld KiB, %lld blocks, %lld descriptors, %lld threads\n",
      seconds, (long long)c.groups, (long long)c.restarts, (long long)c.aborted, (long long)c.left,
      (long long)c.steps, (long long)c.exact, (long long)u.resident / 1024, (long long)allocation::live_blocks(),
      (long long)u.descriptors, (long long)u.threads);
  std::fflush(stdout);
}

// Two arenas of the allocator's may each keep what the largest group had: five ranks, each under 200 KiB with its
// thread's stack. A leak of the least block (32 bytes) in every group passes this within 70,000 groups; one of
// operator new is seen at once, by count.
constexpr int64_t kResidentSlack = int64_t{2} << 20;

int soak(const Options &o) {
  Random random(o.seed);
  Counts counts;
  const int64_t threads = usage().threads;  // OpenBLAS may have some of its own
  for (int i = 0; i < 50; ++i) live_once(random, counts);
  const Clock::time_point begin = Clock::now();
  const int64_t blocks = allocation::live_blocks();
  const Usage first = usage_settled(threads);
  // Least in the first quarter, least in the last: a single look may catch pages on their way out, a leak lifts
  // all.
  int64_t early = first.resident, late = INT64_MAX;
  double next_log = 0;
  for (;;) {
    const double now = std::chrono::duration<double>(Clock::now() - begin).count();
    const Usage u = usage_settled(first.threads);
    if (now < o.seconds / 4) early = std::min(early, u.resident);
    if (now > o.seconds * 3 / 4) late = std::min(late, u.resident);
    if (u.descriptors != first.descriptors || u.threads != first.threads || allocation::live_blocks() != blocks) {
      log(now, counts, u);
      throw std::runtime_error("not what it was at the beginning: " + std::to_string(blocks) + " blocks, " +
                               std::to_string(first.descriptors) + " descriptors, " +
                               std::to_string(first.threads) + " threads");
    }
    if (now >= next_log || now >= o.seconds) {
      log(now, counts, u);
      next_log += o.log_every;
    }
    if (now >= o.seconds) break;
    live_once(random, counts);
  }
  std::printf("resident: at least %lld KiB in the first quarter, %lld KiB in the last\n", (long long)early / 1024,
              (long long)late / 1024);
  if (resident_memory_is_telling() && late > early + kResidentSlack)
    throw std::runtime_error("resident memory grows");
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  mallopt(M_ARENA_MAX, 2);
  const Options options = parse(argc, argv);
  std::printf("endurance_soak --seconds %g --seed %llu\n", options.seconds, (unsigned long long)options.seed);
  try {
    return soak(options);
  } catch (const std::exception &error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
