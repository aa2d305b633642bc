// What both soaks are told, and how they keep to their share of a core.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

namespace endurance {

struct SoakOptions {
  double seconds = 20, log_every = 10;
  double load = 0;  // CPU seconds per second, at most; 0: no limit
  uint64_t seed = 1;
};

// --seconds N | --minutes N, --seed S, --load L, --log-every SECONDS, from argv[first] on.
inline SoakOptions parse_soak_options(int argc, char **argv, int first) {
  SoakOptions o;
  for (int i = first; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const double value = std::atof(argv[i + 1]);
    if (key == "--seconds") o.seconds = value;
    if (key == "--minutes") o.seconds = 60 * value;
    if (key == "--log-every") o.log_every = value;
    if (key == "--load") o.load = value;
    if (key == "--seed") o.seed = static_cast<uint64_t>(value);
  }
  return o;
}

// CPU time of this process, or of its children that have ended.
inline double cpu_seconds(int whose) {
  rusage used = {};
  getrusage(whose, &used);
  const auto seconds = [](const timeval &t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Sleeps between groups, so that all of them together stay under the load.
class Pace {
 public:
  explicit Pace(double load) : load_(load) {}
  void rest() const {
    if (load_ <= 0) return;
    const double used = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN) - used_before_;
    const double passed = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (used / load_ > passed) std::this_thread::sleep_for(std::chrono::duration<double>(used / load_ - passed));
  }

 private:
  using Clock = std::chrono::steady_clock;
  double load_;
  Clock::time_point begin_ = Clock::now();
  double used_before_ = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN);
};

}  // namespace endurance
