// Ranks as threads: sums go through shared memory.
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ranks.hpp"

namespace train_lm {
namespace {

struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("Another rank failed.") {}
};

// A barrier that lets everyone go when a rank has failed.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks), pointers_(static_cast<std::size_t>(ranks)) {}

  void wait() {
    std::unique_lock lock(mutex_);
    const std::uint64_t round = round_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || failed_; });
    if (failed_) throw Stopped();
  }

  void fail(const std::string &sentence) {
    std::lock_guard lock(mutex_);
    if (!failed_) sentence_ = sentence;
    failed_ = true;
    changed_.notify_all();
  }

  // Each rank adds up its own share of the elements, over the ranks in order; then all copy the whole.
  template <typename T>
  void sum(int rank, T *data, std::size_t count) {
    pointers_[static_cast<std::size_t>(rank)] = data;
    wait();
    T *total = static_cast<T *>(pointers_[0]);
    const std::size_t ranks = static_cast<std::size_t>(ranks_), r = static_cast<std::size_t>(rank);
    for (std::size_t i = count * r / ranks; i < count * (r + 1) / ranks; ++i) {
      double s = 0.0;
      for (void *pointer : pointers_) s += static_cast<const T *>(pointer)[i];
      total[i] = static_cast<T>(s);
    }
    wait();
    if (rank != 0) std::copy(total, total + count, data);
    wait();
  }

  const std::string &sentence() const { return sentence_; }
  bool failed() const { return failed_; }

 private:
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
  bool failed_ = false;
  std::string sentence_;
  std::vector<void *> pointers_;
};

class ThreadWorld : public World {
 public:
  ThreadWorld(Meeting &meeting, int rank) : meeting_(meeting), rank_(rank) {}
  void sum(float *data, std::size_t count) override { meeting_.sum(rank_, data, count); }
  void sum(double *data, std::size_t count) override { meeting_.sum(rank_, data, count); }

 private:
  Meeting &meeting_;
  int rank_;
};

// comms[g][r]: rank r's end of sequence group g.
std::vector<std::vector<Comm>> make_comms(const Split &split) {
  std::vector<std::vector<Comm>> comms(static_cast<std::size_t>(split.data_groups));
  for (std::vector<Comm> &group : comms) {
    std::vector<lasp_comm *> handles(static_cast<std::size_t>(split.sequence_ranks));
    check(lasp_comm_create_threads(split.sequence_ranks, handles.data()), "lasp_comm_create_threads");
    for (lasp_comm *handle : handles) group.emplace_back(handle);
  }
  return comms;
}

void run_rank(int rank, const Split &split, const Place &kind, std::vector<std::vector<Comm>> &comms,
              Meeting &meeting, const RankBody &body) {
  try {
    ThreadWorld world(meeting, rank);
    Endpoint end;
    end.rank = rank;
    end.ranks = end.local_ranks = split.world();
    end.world = &world;
    end.place = place_of(kind, rank);
    check(lasp_groups_of_rank(split.world(), split.sequence_ranks, split.group_stride, rank, &end.groups),
          "lasp_groups_of_rank");
    end.comm = comms[static_cast<std::size_t>(end.groups.sequence_group)]
                    [static_cast<std::size_t>(end.groups.sequence_rank)]
                        .get();
    body(end);
  } catch (const std::exception &error) {
    const std::string where = split.world() > 1 ? "Rank " + std::to_string(rank) + ": " : "";
    meeting.fail(where + error.what());
  }
}

}  // namespace

void run_thread_ranks(const Split &split, const Place &kind, const RankBody &body) {
  std::vector<std::vector<Comm>> comms = make_comms(split);
  Meeting meeting(split.world());
  std::vector<std::thread> threads;
  for (int rank = 1; rank < split.world(); ++rank)
    threads.emplace_back([&, rank] { run_rank(rank, split, kind, comms, meeting, body); });
  run_rank(0, split, kind, comms, meeting, body);
  for (std::thread &thread : threads) thread.join();
  if (meeting.failed()) throw std::runtime_error(meeting.sentence());
}

}  // namespace train_lm
