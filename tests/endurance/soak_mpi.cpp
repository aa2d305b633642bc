// The soak over MPI: mpirun after mpirun of 2 to 4 processes (soak_rank.cpp), each of them a random number of
// groups, whose losses must be those of one rank, which this process computes by itself.
//     endurance_soak_mpi SOAK_RANK MPIRUN (--seconds N | --minutes N) [--load L] [--seed S] [--log-every SECONDS]
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "life.h"
#include "soak_options.h"

namespace {

using namespace endurance;
using Clock = std::chrono::steady_clock;

constexpr double kDeadlineSeconds = 120;  // of one mpirun, most of which take less than one
// From the middle of an mpirun to its end, when allocators have what they keep: 632 KiB were the most seen. A leak
// of 64 KiB in every group is noticed within 60 groups; one of operator new at once, by count (soak_rank.cpp).
constexpr int64_t kResidentSlackKiB = 1536;

struct Programs {
  std::string rank, mpirun;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

pid_t start(const Programs &programs, int64_t processes, uint64_t seed, int64_t groups, int out) {
  std::vector<std::string> words = {programs.mpirun,           "-n",
                                    std::to_string(processes), programs.rank,
                                    std::to_string(seed),      std::to_string(groups)};
  std::vector<char *> argv;
  for (std::string &word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (std::freopen("/dev/null", "r", stdin) == nullptr) _exit(126);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  execvp(argv[0], argv.data());
  _exit(127);
}

// All that it prints until it ends; throws, once it has been ended, when it does not.
std::string output_of(const Programs &programs, int64_t processes, uint64_t seed, int64_t groups) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const Clock::time_point begin = Clock::now();
  const pid_t pid = start(programs, processes, seed, groups, ends[1]);
  close(ends[1]);
  if (pid < 0) throw std::runtime_error("no process");
  std::string text;
  bool late = false;
  for (char piece[4096];;) {
    pollfd ready = {ends[0], POLLIN, 0};
    const bool readable = poll(&ready, 1, 1000) > 0;
    const ssize_t got = readable ? read(ends[0], piece, sizeof piece) : 0;
    if (got > 0) text.append(piece, static_cast<size_t>(got));
    if (readable && got <= 0) break;
    if (seconds_since(begin) < kDeadlineSeconds) continue;
    kill(pid, late ? SIGKILL : SIGTERM);  // mpirun then ends its ranks
    if (late) break;
    late = true;
    sleep(2);
  }
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (late || !WIFEXITED(status) || WEXITSTATUS(status) != 0 || text.find("FAILED") != std::string::npos)
    throw std::runtime_error("mpirun -n " + std::to_string(processes) + " soak_rank " + std::to_string(seed) + " " +
                             std::to_string(groups) + (late ? " did not end: " : " failed: ") + text);
  return text;
}

struct Seen {
  Counts counts;
  int64_t runs = 0, at_first = 0, by_the_middle = 0, by_the_end = 0;  // of all processes the most, in KiB
};

// One rank's losses against what the processes print of each group.
void compare_output(const std::string &text, int64_t processes, uint64_t seed, int64_t groups, Seen &seen) {
  Random random(seed);
  std::istringstream lines(text);
  std::string line;
  const auto next = [&](const std::string &first_word) {
    while (std::getline(lines, line)) {  // MPI may have something to say in between
      std::istringstream words(line);
      std::string word;
      if (words >> word && word == first_word) return words;
    }
    throw std::runtime_error("seed " + std::to_string(seed) + ": no line \"" + first_word + "\" in: " + text);
  };
  for (int64_t g = 0; g < groups; ++g) {
    Life life = draw_process_group(random, static_cast<int32_t>(processes), g == 0, g + 1 == groups).life;
    run_alone(life.training, random);
    std::istringstream words = next("group");
    int end = -1;
    size_t whole = 0;
    words >> end >> whole;
    if (end != static_cast<int>(life.end) || whole > life.training.steps.size() ||
        (life.end == End::kAgreed && whole != life.training.steps.size()))
      throw std::runtime_error("seed " + std::to_string(seed) + ", group " + std::to_string(g) + ": " + line);
    for (size_t s = 0; s < whole; ++s) {
      std::string loss;
      words >> loss;
      compare_loss(life.training, s, std::strtod(loss.c_str(), nullptr));
    }
    seen.counts.add(life, whole);
  }
  int64_t at_first = 0, by_the_middle = 0, by_the_end = 0;
  next("flat") >> at_first >> by_the_middle >> by_the_end;
  if (resident_memory_is_telling() && by_the_end > kResidentSlackKiB)
    throw std::runtime_error("seed " + std::to_string(seed) + ": resident memory grows: " + line);
  seen.at_first = std::max(seen.at_first, at_first);
  seen.by_the_middle = std::max(seen.by_the_middle, by_the_middle);
  seen.by_the_end = std::max(seen.by_the_end, by_the_end);
  ++seen.runs;
}

void log(double seconds, const Seen &s, const Usage &u) {
  const Counts &c = s.counts;
  std::printf(
      "%7.0f s: %lld mpirun, %lld groups (%lld ended by agreement, %lld by abort, %lld by a lost rank), %lld steps "
      "compared (%lld bit for bit); processes: at most %lld KiB at first, %lld more by the middle, %lld more by "
      "the "
      "end; here: %lld KiB, %lld descriptors\n",
      seconds, (long long)s.runs, (long long)c.groups, (long long)c.agreed, (long long)c.aborted, (long long)c.left,
      (long long)c.steps, (long long)c.exact, (long long)s.at_first, (long long)s.by_the_middle,
      (long long)s.by_the_end, (long long)u.resident / 1024, (long long)u.descriptors);
  std::fflush(stdout);
}

void soak(const Programs &programs, const SoakOptions &o) {
  Random random(o.seed);
  Seen seen;
  const Clock::time_point begin = Clock::now();
  const Usage first = usage();
  const Pace pace(o.load);
  for (double next_log = 0;;) {
    const int64_t processes = random.between(2, 4), groups = random.between(4, 60);
    const auto seed = static_cast<uint64_t>(random.between(1, int64_t{1} << 40));
    compare_output(output_of(programs, processes, seed, groups), processes, seed, groups, seen);
    const double now = seconds_since(begin);
    const Usage u = usage();
    if (u.descriptors != first.descriptors)
      throw std::runtime_error("descriptors: " + std::to_string(first.descriptors) + " at the beginning, " +
                               std::to_string(u.descriptors) + " now");
    if (now >= next_log || now >= o.seconds) {
      log(now, seen, u);
      next_log += o.log_every;
    }
    if (now >= o.seconds) break;
    pace.rest();
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const SoakOptions options = parse_soak_options(argc, argv, 3);
  std::printf("endurance_soak_mpi --seconds %g --load %g --seed %llu\n", options.seconds, options.load,
              (unsigned long long)options.seed);
  try {
    soak({argv[1], argv[2]}, options);
  } catch (const std::exception &error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
  return 0;
}
