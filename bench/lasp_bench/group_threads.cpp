#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "failure.h"
#include "group.h"
#include "memory.h"
#include "support/device.h"
#include "support/nccl.h"

namespace bench {

double Link::largest(double mine) {
  const std::vector<double> all = all_gather({mine});
  return *std::max_element(all.begin(), all.end());
}

namespace {

// What the threads of one group share.
struct Shared {
  explicit Shared(int32_t nranks) : meeting(nranks), values(static_cast<size_t>(nranks)) {}
  std::barrier<> meeting;
  std::atomic<bool> failed{false};
  std::vector<std::vector<double>> values;  // by rank
  std::mutex mutex;
  std::exception_ptr error;  // the first that says more than "another rank failed"
};

class ThreadLink final : public Link {
 public:
  ThreadLink(Shared &shared, int32_t rank, int32_t nranks, lasp_comm *comm, int32_t device)
      : shared_(shared), rank_(rank), nranks_(nranks), comm_(comm), device_(device) {}

  int32_t rank() const override { return rank_; }
  int32_t nranks() const override { return nranks_; }
  lasp_comm *comm() const override { return comm_; }
  int32_t device() const override { return device_; }
  bool one_clock() const override { return true; }
  bool one_process() const override { return true; }

  void barrier() override {
    shared_.meeting.arrive_and_wait();
    if (shared_.failed) throw PeerFailed();
  }

  std::vector<double> all_gather(const std::vector<double> &mine) override {
    shared_.values[static_cast<size_t>(rank_)] = mine;
    barrier();
    std::vector<double> all;
    for (const auto &values : shared_.values) all.insert(all.end(), values.begin(), values.end());
    barrier();  // nobody writes again before all have read
    return all;
  }

 private:
  Shared &shared_;
  int32_t rank_, nranks_;
  lasp_comm *comm_;
  int32_t device_;
};

void run_rank(Shared &shared, Link &link, const std::function<void(Link &)> &body) {
  try {
    body(link);
  } catch (const PeerFailed &) {
    shared.failed = true;
    shared.meeting.arrive_and_drop();
  } catch (const std::exception &) {
    {
      const std::lock_guard lock(shared.mutex);
      if (!shared.error) shared.error = std::current_exception();
    }
    shared.failed = true;
    shared.meeting.arrive_and_drop();
  }
}

class ThreadGroup : public Group {
 public:
  const char *name() const override { return "threads"; }
  int32_t most_ranks() const override { return 1024; }
  bool is_speaker() const override { return true; }

  void run(int32_t nranks, const std::function<void(Link &)> &body) override {
    const std::vector<CommHandle> comms = make_comms(nranks);
    Shared shared(nranks);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < nranks; ++rank) {
      threads.emplace_back([&, rank] {
        ThreadLink link(shared, rank, nranks, comms[static_cast<size_t>(rank)].get(), device_of(rank));
        run_rank(shared, link, body);
      });
    }
    for (std::thread &thread : threads) thread.join();
    if (shared.error) std::rethrow_exception(shared.error);
  }

 private:
  virtual std::vector<CommHandle> make_comms(int32_t nranks) {
    std::vector<lasp_comm *> created(static_cast<size_t>(nranks));
    if (nranks == 1)
      check(lasp_comm_create_self(created.data()), "lasp_comm_create_self");
    else
      check(lasp_comm_create_threads(nranks, created.data()), "lasp_comm_create_threads");
    return {created.begin(), created.end()};
  }
  virtual int32_t device_of(int32_t) const { return 0; }
};

// NCCL communicators are made once for each number of ranks.
class NcclGroup final : public ThreadGroup {
 public:
  const char *name() const override { return "NCCL, a thread and a GPU each"; }
  int32_t most_ranks() const override { return gpu::device_count(); }

 private:
  std::vector<CommHandle> make_comms(int32_t nranks) override {
    auto &ranks = ranks_[nranks];
    if (ranks.empty()) ranks = gpu::make_nccl_group(nranks);
    std::vector<CommHandle> comms;
    for (const auto &rank : ranks) {
      lasp_comm *comm = nullptr;
      check(lasp_comm_create_nccl(rank->get(), nullptr, &comm), "lasp_comm_create_nccl");
      comms.emplace_back(comm);
    }
    return comms;
  }
  int32_t device_of(int32_t rank) const override { return rank; }

  std::map<int32_t, std::vector<std::unique_ptr<gpu::NcclRank>>> ranks_;
};

}  // namespace

std::unique_ptr<Group> make_thread_group() { return std::make_unique<ThreadGroup>(); }

std::unique_ptr<Group> make_nccl_group() {
  if (const std::string reason = gpu::why_no_nccl(); !reason.empty())
    throw UsageError("--transport nccl: " + reason);
  return std::make_unique<NcclGroup>();
}

}  // namespace bench
