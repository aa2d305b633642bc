// The ranks of a group, all in this process. What they send each other meets here, when their streams get there.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace emulated_nccl {

// Half of a message; the data of a send is only read.
struct Transfer {
  bool is_send;
  int peer;
  std::byte *data;
  size_t bytes;
};

class Group {
 public:
  explicit Group(int nranks) : nranks_(nranks) {}
  int nranks() const { return nranks_; }
  // Waits until all ranks have joined. False: this one had joined before.
  bool join(int rank);
  // These go at once. Returns when the sends have been taken and the receives have come, or the rank has given up.
  // No message is kept anywhere, so that each waits for its other half. Between two ranks they match in the order
  // in which they come here.
  void run(int rank, const std::vector<Transfer> &transfers);
  // The rank waits for nobody any more.
  void give_up(int rank);
  // Whether a message came to the rank that has another size than it expected.
  bool mismatched(int rank);

 private:
  struct Message {
    int from, to;
    const std::byte *data;
    size_t bytes;
    bool taken;
  };

  void take(Message &message, const Transfer &to);

  const int nranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> joined_, given_up_, mismatched_;
  std::map<std::pair<int, int>, std::deque<Message *>> waiting_;  // by sender and receiver
};

}  // namespace emulated_nccl
