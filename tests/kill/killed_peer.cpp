// One MPI rank whose group loses a process: killed_peer folder victim hold_ms moment_us schedule dim limit_ms
// rounds. A process beside the victim sends it SIGKILL (hold_ms < 0), or SIGSTOP and hold_ms later SIGCONT, at
// moment_us after its first call. Every rank works until a call fails or `rounds` are done and writes what it saw
// to folder/rank.N, then waits for the others' files, looks at its memory once more, and leaves folder/end.N. Run
// by kill_driver.
#include <lasp/lasp_mpi.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "guarded_rank.h"

namespace {

using namespace lasp_kill;

// Appears whole or not at all.
void write_file(const std::string &path, const std::string &text) {
  std::FILE *file = std::fopen((path + ".part").c_str(), "w");
  if (file == nullptr) return;
  std::fputs(text.c_str(), file);
  std::fclose(file);
  std::rename((path + ".part").c_str(), path.c_str());
}

// Returns the pipe through which the process that sends the signals is told to begin.
int start_killer(int64_t moment_us, int64_t hold_ms, const std::string &folder) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t victim = getpid(), child = fork();
  if (child < 0) return -1;
  if (child > 0) return ends[1];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char go = 0;
  close(ends[1]);
  if (read(ends[0], &go, 1) != 1) _exit(1);
  usleep(static_cast<useconds_t>(moment_us));
  const auto stopped = Clock::now();
  kill(victim, hold_ms == kDies ? SIGKILL : SIGSTOP);
  if (hold_ms != kDies) {
    usleep(static_cast<useconds_t>(hold_ms * 1000));
    // How long it was in truth: this process may have waited for a CPU.
    write_file(folder + "/held", std::to_string(ms_since(stopped)) + "\n");
    kill(victim, SIGCONT);
  }
  _exit(0);
}

// One call of the victim's, the `at`-th, is not the one that the others make.
Outcome work_out_of_step(GuardedRank &rank, const Shape &shape, int at, bool victim) {
  Outcome last = rank.plan(shape);
  for (int pass = 0; pass < at + 8 && last.status == LASP_OK; ++pass)
    last = rank.pass((pass % 2 == 0) != (victim && pass == at));
  return last;
}

Outcome work(GuardedRank &rank, const Shape &shape, int rounds) {
  Outcome last;
  for (int round = 0; round < rounds; ++round) {
    last = rank.plan(shape);
    for (int pass = 0; pass < 6 && last.status == LASP_OK; ++pass) last = rank.pass(pass % 2 == 0);
    if (last.status != LASP_OK) break;
  }
  return last;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 9) return 2;
  const std::string folder = argv[1];
  const int victim = std::atoi(argv[2]);
  const int64_t hold_ms = std::atoll(argv[3]), moment_us = std::atoll(argv[4]), limit_ms = std::atoll(argv[7]);
  Shape shape;
  shape.schedule = std::atoi(argv[5]);
  shape.dim = std::atoi(argv[6]);
  shape.broadcast = moment_us % 2 == 1;
  shape.bidirectional = moment_us % 5 == 1;
  const int rounds = std::atoi(argv[8]);
  const char *const known = std::getenv("OMPI_COMM_WORLD_RANK");  // forking is only safe before MPI_Init
  const int killer =
      known && std::atoi(known) == victim && hold_ms != kOtherCall ? start_killer(moment_us, hold_ms, folder) : -1;

  MPI_Init(&argc, &argv);
  int me = 0, nranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  lasp_comm *comm = nullptr;
  if (lasp_mpi_comm_create(MPI_COMM_WORLD, &comm) != LASP_OK) return 3;
  GuardedRank rank(comm, limit_ms);
  MPI_Barrier(MPI_COMM_WORLD);
  if (killer >= 0 && write(killer, "g", 1) != 1) return 4;

  const Outcome last = hold_ms == kOtherCall
                           ? work_out_of_step(rank, shape, static_cast<int>(moment_us % 7), me == victim)
                           : work(rank, shape, rounds);
  if (last.status != LASP_OK) rank.check_broken();
  const uint64_t before = rank.check_memory();
  rank.destroy();
  char text[1024];
  std::snprintf(text, sizeof text, "%d\t%.0f\t%s\t%s\t%s\n", last.status, last.ms, call_name(last.call),
                rank.defects().empty() ? "-" : rank.defects().c_str(),
                last.sentence.empty() ? "-" : last.sentence.c_str());
  write_file(folder + "/rank." + std::to_string(me), text);

  // Others may still send, a continued rank above all: none of it may reach the buffers of a call that returned.
  const auto start = Clock::now();
  for (int r = 0; r < nranks; ++r) {
    if (r == victim && hold_ms == kDies) continue;
    while (access((folder + "/rank." + std::to_string(r)).c_str(), R_OK) != 0 && ms_since(start) < 15000)
      usleep(5000);
  }
  int ignored = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &ignored,
             MPI_STATUS_IGNORE);  // lets MPI take in the rest
  const bool touched = rank.check_memory() != before;
  write_file(folder + "/end." + std::to_string(me), touched ? "touched\n" : "same\n");
  _exit(0);  // MPI_Finalize would wait for the dead rank
}
