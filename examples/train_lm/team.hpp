// The CPU threads of one rank: a fixed split of rows over members, so that sums come out the same every time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace train_lm {

class Team {
 public:
  static constexpr std::int64_t kTile = 512;  // rows handled at once: a tile's scratch stays in the L2 cache

  explicit Team(int members);
  ~Team();
  Team(const Team &) = delete;

  int members() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(member, begin, end) for consecutive tiles of at most kTile rows; each member has one run of rows.
  using Body = std::function<void(int member, std::int64_t begin, std::int64_t end)>;
  void for_tiles(std::int64_t rows, const Body &body);

 private:
  void work(int member);
  void run_share(int member) const;

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::uint64_t round_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::int64_t rows_ = 0;
  const Body *body_ = nullptr;
};

}  // namespace train_lm
