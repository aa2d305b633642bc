// One MPI process of the soak: lives through groups drawn from a seed, as all processes of its mpirun do, compares
// its part of every step with one rank's, and must not grow. Run by soak_mpi.cpp:
//     soak_rank SEED GROUPS
// Rank 0 prints of each group "group END STEPS LOSS...", the losses summed over the ranks, and at the end "flat"
// with what the processes used.
#include <lasp/lasp_mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "life.h"

namespace {

using namespace endurance;

// After so many groups everything that MPI makes at its first use is there.
constexpr int kWarmGroups = 3;

void must(lasp_status status, const char *what) {
  if (status == LASP_OK) return;
  throw std::runtime_error(std::string(what) + ": " + lasp_status_name(status) + ": " + lasp_last_error());
}

// This process's part in a group over `mpi`: its results, and how many steps it did.
size_t take_part(const Life &life, int32_t rank, MPI_Comm mpi, std::vector<Step> &steps) {
  lasp_comm *comm = nullptr;
  must(lasp_mpi_comm_create(mpi, &comm), "comm");
  Worker worker(comm);
  const bool aborts = life.end == End::kAborted && rank == life.leaver;
  lasp_context *handle = nullptr;  // what another thread may abort at any time
  if (aborts) must(lasp_context_create(LASP_ABI, comm, nullptr, &handle), "context");
  lasp_status aborted = LASP_OK;
  std::thread aborter;
  if (aborts)
    aborter = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(life.abort_after_us));
      aborted = lasp_context_abort(handle);
    });
  RankEnd end;
  run_rank(life, rank, worker, steps, end);
  if (aborts) aborter.join();
  must(aborted, "abort");
  must(lasp_context_destroy(handle), "destroying the context");
  check_end(life, rank, end);
  const Answer closed = worker.close();
  if (closed.status != LASP_OK) throw std::runtime_error("destroy: " + closed.sentence);
  return end.steps;
}

// Over all processes. Those that have left a group wait here for seconds, which should cost others nothing.
unsigned long least(unsigned long mine) {
  MPI_Request request = MPI_REQUEST_NULL;
  unsigned long result = 0;
  MPI_Iallreduce(&mine, &result, 1, MPI_UNSIGNED_LONG, MPI_MIN, MPI_COMM_WORLD, &request);
  for (int done = 0, looks = 0; done == 0; ++looks) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0 && looks > 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return result;
}

void run_group(const ProcessGroup &group, int process) {
  const Life &life = group.life;
  const auto at = std::find(group.members.begin(), group.members.end(), process);
  const auto rank = at == group.members.end() ? -1 : static_cast<int>(at - group.members.begin());
  MPI_Comm mpi = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank < 0 ? MPI_UNDEFINED : 0, rank, &mpi);
  std::vector<Step> steps = life.training.steps;
  unsigned long whole = steps.size();
  if (rank >= 0) whole = take_part(life, rank, mpi, steps);
  // After a fault a process may still be in an earlier step than another: compared is what all of them have done.
  whole = least(whole);
  std::vector<double> losses(whole);
  for (size_t s = 0; s < whole && rank >= 0; ++s) {
    compare_part(life.training, s, steps[s], life.begin[static_cast<size_t>(rank)]);
    losses[s] = steps[s].loss;
  }
  MPI_Allreduce(MPI_IN_PLACE, losses.data(), static_cast<int>(whole), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (process == 0) {
    std::printf("group %d %lu", static_cast<int>(life.end), whole);
    for (const double loss : losses) std::printf(" %a", loss);
    std::printf("\n");
  }
  if (mpi != MPI_COMM_NULL && life.end == End::kAgreed) MPI_Comm_free(&mpi);
}

std::string words(const Usage &u, int64_t blocks) {
  return std::to_string(blocks) + " blocks, " + std::to_string(u.descriptors) + " descriptors, " +
         std::to_string(u.threads) + " threads";
}

void soak(uint64_t seed, int groups, int process, int processes) {
  Random random(seed);
  Usage first;
  int64_t blocks = 0, middle = 0, last = 0;  // resident memory at the middle group, and at the last that agreed
  for (int g = 0; g < groups; ++g) {
    ProcessGroup group = draw_process_group(random, processes, g == 0, g + 1 == groups);
    run_alone(group.life.training, random);
    run_group(group, process);
    if (g + 1 < kWarmGroups || group.life.end != End::kAgreed) continue;
    group = ProcessGroup();
    if (g + 1 == kWarmGroups) first = usage(), blocks = allocation::live_blocks();
    const Usage now = usage_settled(first.threads);
    last = now.resident;
    if (g <= groups / 2) middle = now.resident;
    if (now.descriptors != first.descriptors || now.threads != first.threads || allocation::live_blocks() != blocks)
      throw std::runtime_error("group " + std::to_string(g) + ": " + words(now, allocation::live_blocks()) +
                               ", at the beginning " + words(first, blocks));
  }
  long long used[3] = {first.resident / 1024, (middle - first.resident) / 1024, (last - middle) / 1024};
  MPI_Allreduce(MPI_IN_PLACE, used, 3, MPI_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
  if (process == 0) std::printf("flat %lld %lld %lld\n", used[0], used[1], used[2]);
}

}  // namespace

int main(int argc, char **argv) {
  int provided = 0, process = 0, processes = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  if (argc < 3) return 2;
  try {
    soak(std::strtoull(argv[1], nullptr, 10), std::atoi(argv[2]), process, processes);
  } catch (const std::exception &error) {
    std::printf("FAILED: process %d: %s\n", process, error.what());
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
