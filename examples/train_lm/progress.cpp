// Draws the progress line.
#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace train_lm {

Progress::Progress(std::string label, int steps, std::int64_t tokens_per_step)
    : label_(std::move(label)),
      steps_(steps),
      tokens_per_step_(static_cast<double>(tokens_per_step)),
      terminal_(isatty(STDOUT_FILENO) == 1) {}

void Progress::show(int step, const StepRecord &record) {
  seconds_ += record.seconds;
  const int done = step + 1;
  const bool last = done == steps_;
  if (!terminal_ && !last && done % std::max(1, steps_ / 10) != 0) return;
  const double rate = tokens_per_step_ * done / seconds_;
  const int left = static_cast<int>(seconds_ / done * (steps_ - done) + 0.5);
  constexpr int kWidth = 28;
  const int filled = static_cast<int>(static_cast<long long>(kWidth) * done / steps_);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                          std::string(static_cast<std::size_t>(kWidth - filled), '.');
  std::printf("%s%-8s [%s] %*d/%d  loss %.4f  %8.0f tokens/s  %s %d:%02d%s", terminal_ ? "\r" : "", label_.c_str(),
              bar.c_str(), static_cast<int>(std::to_string(steps_).size()), done, steps_, record.loss, rate,
              last ? "took" : "left", (last ? static_cast<int>(seconds_) : left) / 60,
              (last ? static_cast<int>(seconds_) : left) % 60, terminal_ && !last ? "  " : "  \n");
  std::fflush(stdout);
}

}  // namespace train_lm
