#include "comm/wait.h"

#include <cstdio>

#include "comm/comm.h"

namespace lasp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kFirstWarning = seconds(5), kWarnEvery = seconds(30);
constexpr auto kAskEvery = milliseconds(100);

}  // namespace

Wait::Wait(Comm &comm, const WaitPolicy &policy, const char *what, int32_t peer, Clock::time_point begin)
    : comm_(comm),
      policy_(policy),
      what_(what),
      peer_(peer),
      begin_(begin),
      next_warning_(begin + kFirstWarning),
      next_question_(begin + kAskEvery) {}

void Wait::look(Clock::time_point now) {
  if (comm_.async_status() == LASP_ERROR_ABORTED) comm_.lose(aborted(), -1);
  if (now >= next_warning_) warn(now);
  if (now >= next_question_) ask(now);
}

void Wait::poll(Clock::time_point now) {
  look(now);
  if (left_ms(now) != 0) return;
  const std::string who = peer_ >= 0 ? "rank " + std::to_string(peer_) : "a rank";
  comm_.lose(fail(LASP_ERROR_PEER_LOST, "%s did not come within the time limit of %lld ms: %s", who.c_str(),
                  static_cast<long long>(policy_.limit_ms), sentence().c_str()),
             peer_);
}

void Wait::warn(Clock::time_point now) {
  next_warning_ = now + kWarnEvery;
  char peer[24] = "other ranks";
  if (peer_ >= 0) std::snprintf(peer, sizeof peer, "rank %d", peer_);
  policy_.log.write(LASP_LOG_WARNING, "rank %d has waited %lld s for %s in %s (%s)", comm_.rank(),
                    static_cast<long long>(waited_ms(now) / 1000), peer, comm_.call(), what_);
}

void Wait::ask(Clock::time_point now) {
  next_question_ = now + kAskEvery;
  if (policy_.interrupted == nullptr || policy_.interrupted(policy_.interrupted_user) == 0) return;
  comm_.lose(fail(LASP_ERROR_ABORTED, "the caller's own function (options.interrupted) asked for an end while %s",
                  sentence().c_str()),
             -1);
}

int64_t Wait::waited_ms(Clock::time_point now) const {
  return std::chrono::duration_cast<milliseconds>(now - begin_).count();
}

int64_t Wait::left_ms(Clock::time_point now) const {
  if (policy_.limit_ms < 0) return -1;
  const int64_t left = std::chrono::ceil<milliseconds>(begin_ + milliseconds(policy_.limit_ms) - now).count();
  return left > 0 ? left : 0;
}

std::string Wait::sentence() const {
  std::string text = "rank " + std::to_string(comm_.rank()) + " (" + comm_.name() + " transport) was " + what_ +
                     " in " + comm_.call();
  if (peer_ >= 0) text += ", peer " + std::to_string(peer_);
  return text;
}

Error Wait::aborted() const {
  return fail(LASP_ERROR_ABORTED, "the group was aborted while %s", sentence().c_str());
}

}  // namespace lasp
