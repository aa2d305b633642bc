// Contexts and plans that are kept between calls of XLA's.
#pragma once
#include <lasp/lasp.h>

#include <array>
#include <list>
#include <memory>
#include <utility>

namespace lasp::xla {

// A problem as the attributes of a call have it. Two calls with the same values share a plan.
using Values = std::array<int64_t, 20>;

// Where a call computes. XLA calls from several threads at once, for several devices or for one, and what lasp.h
// says of threads rules: one thread in a context, and passes of a plan in flight on one stream only.
struct Place {
  int32_t device = LASP_DEVICE_CPU, ordinal = -1;
  void *stream = nullptr;
  int32_t rank = 0, nranks = 1;  // of a detached comm; a comm of one where nranks is 1
  int64_t process = 0;           // a child process makes its own
  bool operator==(const Place &) const = default;
};

// A context and its plans: one thread has it at a time.
class Session {
 public:
  explicit Session(const Place &place);
  ~Session();
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;
  lasp_plan *plan(const Values &values, const lasp_problem &problem);
  const Place &place() const { return place_; }

 private:
  Place place_;
  lasp_comm *comm_ = nullptr;
  lasp_context *context_ = nullptr;
  std::list<std::pair<Values, lasp_plan *>> plans_;  // the one used last first
};

// One that nobody uses, or a new one. It goes back to the others at `give_back`, and is destroyed without.
std::unique_ptr<Session> borrow(const Place &place);
void give_back(std::unique_ptr<Session> session);

// How many devices of XLA's share the CPUs of this process: each context takes its part of the threads.
void share_cpus(int32_t devices);

}  // namespace lasp::xla
