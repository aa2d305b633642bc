// Starts groups of MPI processes (killed_peer.cpp) and takes one of each away, by seed: kill_driver program
// first_seed count jobs [mpirun]. One line a seed; exits with 1 when any rank of any seed was not told the truth in
// time. mpirun --enable-recovery (Open MPI) leaves the other ranks alone when one dies.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "guarded_rank.h"

namespace {

using namespace lasp_kill;

constexpr int64_t kLimitMs = 1000;
// On top of the limit: the transport asks each suspect for at most a quarter of it, and the machine may be busy.
constexpr double kSlackMs = 2500;
constexpr double kDeadlineMs = 40000;  // of a whole run, mpirun's own start included

struct Run {
  int ranks, victim;
  int64_t hold_ms, moment_us;
  Shape shape;
  int rounds;
  const char *kind;
};

Run run_of(uint64_t seed) {
  Random random{seed * 1000003};
  Run run{};
  run.ranks = 3 + random.below(2);
  run.victim = random.below(run.ranks);
  run.shape.schedule = 1 + static_cast<int>(seed % 4);  // each in turn
  const int dims[] = {8, 32, 128};                      // messages of 512 bytes to 128 KiB: both protocols of MPI
  run.shape.dim = dims[random.below(3)];
  run.moment_us = random.below(120000);
  run.rounds = 1 << 30;
  switch (random.below(6)) {
    case 0:
    case 1:
    case 2: run.kind = "kill", run.hold_ms = kDies; break;
    case 3: run.kind = "stop", run.hold_ms = 2 * kLimitMs; break;  // lost, and comes back too late
    case 4: run.kind = "other call", run.hold_ms = kOtherCall; break;
    default: run.kind = "pause", run.hold_ms = kLimitMs / 8, run.rounds = 60; break;  // comes back in time
  }
  return run;
}

pid_t start(const Run &run, const std::string &program, const std::string &mpirun, const std::string &folder) {
  const std::string log = folder + "/log";
  std::vector<std::string> words = {mpirun,
                                    "--enable-recovery",
                                    "-n",
                                    std::to_string(run.ranks),
                                    program,
                                    folder,
                                    std::to_string(run.victim),
                                    std::to_string(run.hold_ms),
                                    std::to_string(run.moment_us),
                                    std::to_string(run.shape.schedule),
                                    std::to_string(run.shape.dim),
                                    std::to_string(kLimitMs),
                                    std::to_string(run.rounds)};
  std::vector<char *> argv;
  for (std::string &word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (!std::freopen("/dev/null", "r", stdin) || !std::freopen(log.c_str(), "w", stdout)) _exit(126);
  dup2(fileno(stdout), fileno(stderr));
  setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  execvp(argv[0], argv.data());
  _exit(127);
}

// False when it had to be ended.
bool wait_for(pid_t pid) {
  const auto begin = Clock::now();
  for (int sent = 0;;) {
    if (waitpid(pid, nullptr, WNOHANG) == pid) return sent == 0;
    const double ms = ms_since(begin);
    if (sent == 0 && ms > kDeadlineMs) kill(pid, SIGTERM), sent = 1;  // mpirun then ends its ranks
    if (sent == 1 && ms > kDeadlineMs + 5000) kill(pid, SIGKILL), sent = 2;
    usleep(5000);
  }
}

// What is wrong with what rank r saw; "" when nothing is.
std::string judge(const Run &run, const std::string &folder, int r, double *slowest) {
  const std::string who = "rank " + std::to_string(r) + " ";
  std::ifstream file(folder + "/rank." + std::to_string(r)), end(folder + "/end." + std::to_string(r));
  std::string line, cell, after;
  if (!std::getline(file, line)) return who + "left no word; ";
  std::vector<std::string> cells;
  for (std::istringstream cut(line); std::getline(cut, cell, '\t');) cells.push_back(cell);
  if (cells.size() != 5) return who + "left half a line: " + line + "; ";
  const int status = std::atoi(cells[0].c_str());
  const double ms = std::atof(cells[1].c_str());
  const std::string saw = who + cells[2] + " after " + cells[1] + " ms: " + cells[0] + " " + cells[4] + "; ";
  const bool pause = run.rounds < 1 << 30;
  if (cells[3] != "-") return who + cells[3] + "; ";
  if (!std::getline(end, after) || after != "same") return who + "buffers changed after the call had returned; ";
  double held = 0;
  std::ifstream(folder + "/held") >> held;
  if (pause && held > static_cast<double>(kLimitMs) / 2) return "";  // a busy machine made it a stop
  if (pause) return status == LASP_OK ? "" : "paused, but " + saw;
  if (status < 500 || status >= 600) return saw;
  // Which of two ranks made the wrong call nobody can know: one that was waited for is named.
  if (run.hold_ms == kOtherCall) return cells[4].find(" did not come") != std::string::npos ? "" : saw;
  if (r == run.victim) return "";  // it was away: any 5xx, at any time after it is back
  *slowest = std::max(*slowest, ms);
  if (cells[4].find("rank " + std::to_string(run.victim) + " did not come") == std::string::npos) return saw;
  return ms <= static_cast<double>(kLimitMs) * (1 + 0.25 * run.ranks) + kSlackMs ? "" : "late: " + saw;
}

bool run_seed(uint64_t seed, const std::string &program, const std::string &mpirun) {
  const Run run = run_of(seed);
  char folder[] = "/tmp/lasp-kill-XXXXXX";
  if (mkdtemp(folder) == nullptr) return false;
  const bool ended = wait_for(start(run, program, mpirun, folder));
  std::string wrong = ended ? "" : "did not end; ";
  double slowest = 0;
  for (int r = 0; r < run.ranks; ++r) {
    const bool dead = r == run.victim && run.hold_ms == kDies;
    if (!dead) wrong += judge(run, folder, r, &slowest);
    if (dead && std::filesystem::exists(std::string(folder) + "/rank." + std::to_string(r)))
      wrong += "the victim outlived SIGKILL; ";
  }
  std::printf("seed %llu: %s rank %d of %d at %.1f ms, %s, dim %d: %s%s, slowest survivor %.0f ms\n",
              static_cast<unsigned long long>(seed), run.kind, run.victim, run.ranks,
              static_cast<double>(run.moment_us) / 1000, schedule_name(run.shape.schedule), run.shape.dim,
              wrong.empty() ? "ok" : "WRONG: ", wrong.c_str(), slowest);
  std::fflush(stdout);
  if (wrong.empty()) std::filesystem::remove_all(folder);
  return wrong.empty();
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  const uint64_t first = std::strtoull(argv[2], nullptr, 10), count = std::strtoull(argv[3], nullptr, 10);
  const uint64_t jobs = std::strtoull(argv[4], nullptr, 10);
  const std::string mpirun = argc > 5 ? argv[5] : "mpirun";
  for (uint64_t job = 0; job < jobs; ++job) {
    if (fork() != 0) continue;
    int wrong = 0;
    for (uint64_t i = job; i < count; i += jobs) wrong += !run_seed(first + i, argv[1], mpirun);
    _exit(wrong != 0);
  }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  std::printf("%llu runs from seed %llu: %s\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(first), failed ? "FAILED" : "all ok");
  return failed;
}
