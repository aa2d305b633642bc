// Training steps without end, by groups of threads that come and go: steps are compared with one rank's, groups end
// by agreement, by abort or by the loss of a rank, and the process must not grow. soak_mpi.cpp does it with
// processes.
//     endurance_soak (--seconds N | --minutes N) [--load L] [--seed S] [--log-every SECONDS]
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <thread>

#include "life.h"
#include "soak_options.h"

namespace {

using namespace endurance;
using Clock = std::chrono::steady_clock;

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
  counts.add(life, whole);
}

void live_once(Random &random, Counts &counts) {
  const auto ranks = static_cast<int32_t>(random.between(1, 5));
  Life life = draw_life(random, ranks);
  run_alone(life.training, random);
  run_group(life, counts);
}

void log(double seconds, const Counts &c, const Usage &u) {
  std::printf(
      "%7.0f s: %lld groups (%lld ended by agreement, %lld by abort, %lld by a lost rank), %lld steps compared "
      "(%lld bit for bit), resident %lld KiB, %lld blocks, %lld descriptors, %lld threads\n",
      seconds, (long long)c.groups, (long long)c.agreed, (long long)c.aborted, (long long)c.left,
      (long long)c.steps, (long long)c.exact, (long long)u.resident / 1024, (long long)allocation::live_blocks(),
      (long long)u.descriptors, (long long)u.threads);
  std::fflush(stdout);
}

// Two arenas of the allocator's may each keep what the largest group had: five ranks, each under 200 KiB with its
// thread's stack. A leak of the least block (32 bytes) in every group passes this within 70,000 groups; one of
// operator new is seen at once, by count.
constexpr int64_t kResidentSlack = int64_t{2} << 20;

int soak(const SoakOptions &o) {
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
  const Pace pace(o.load);
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
    pace.rest();
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
  const SoakOptions options = parse_soak_options(argc, argv, 1);
  std::printf("endurance_soak --seconds %g --load %g --seed %llu\n", options.seconds, options.load,
              (unsigned long long)options.seed);
  try {
    return soak(options);
  } catch (const std::exception &error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
