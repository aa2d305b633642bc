// Sleeping worker threads that wake for each parallel loop.
#include "team.hpp"

#include <algorithm>

namespace train_lm {

Team::Team(int members) {
  for (int member = 1; member < members; ++member) threads_.emplace_back([this, member] { work(member); });
}

Team::~Team() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread &thread : threads_) thread.join();
}

void Team::for_tiles(std::int64_t rows, const Body &body) {
  {
    std::lock_guard lock(mutex_);
    rows_ = rows;
    body_ = &body;
    busy_ = static_cast<int>(threads_.size());
    ++round_;
  }
  start_.notify_all();
  run_share(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void Team::work(int member) {
  std::uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    run_share(member);
    std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

void Team::run_share(int member) const {
  const std::int64_t end = rows_ * (member + 1) / members();
  for (std::int64_t row = rows_ * member / members(); row < end; row += kTile)
    (*body_)(member, row, std::min(row + kTile, end));
}

}  // namespace train_lm
