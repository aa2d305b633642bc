#include "nccl/group.h"

#include <algorithm>
#include <cstring>
#include <list>

namespace emulated_nccl {

bool Group::join(int rank) {
  std::unique_lock lock(mutex_);
  if (!joined_.insert(rank).second) return false;
  changed_.notify_all();
  changed_.wait(lock, [this] { return joined_.size() == static_cast<size_t>(nranks_); });
  return true;
}

void Group::run(int rank, const std::vector<Transfer> &transfers) {
  std::unique_lock lock(mutex_);
  const auto wait_until = [&](const auto &done) {
    changed_.wait(lock, [&] { return done() || given_up_.contains(rank); });
    return !given_up_.contains(rank);
  };
  std::list<Message> sent;
  for (const Transfer &t : transfers) {
    if (!t.is_send) continue;
    sent.push_back({rank, t.peer, t.data, t.bytes, false});
    waiting_[{rank, t.peer}].push_back(&sent.back());
  }
  changed_.notify_all();
  for (const Transfer &t : transfers) {
    if (t.is_send) continue;
    std::deque<Message *> &here = waiting_[{t.peer, rank}];
    if (!wait_until([&] { return !here.empty(); })) break;
    take(*here.front(), t);
    here.pop_front();
  }
  wait_until([&] { return std::ranges::all_of(sent, &Message::taken); });
  for (Message &message : sent)
    if (!message.taken) std::erase(waiting_[{rank, message.to}], &message);
}

// With the mutex held, so that a rank that gives up does not take its memory away meanwhile.
void Group::take(Message &message, const Transfer &to) {
  if (message.bytes == to.bytes)
    std::memcpy(to.data, message.data, to.bytes);
  else
    mismatched_.insert(message.to);
  message.taken = true;
  changed_.notify_all();
}

void Group::give_up(int rank) {
  const std::lock_guard lock(mutex_);
  given_up_.insert(rank);
  changed_.notify_all();
}

bool Group::mismatched(int rank) {
  const std::lock_guard lock(mutex_);
  return mismatched_.contains(rank);
}

}  // namespace emulated_nccl
