// A group of ranks, each a thread, whose transport has one fault somewhere (faulty_transport.h): plan creation,
// forward and backward in buffers with guards around them, further passes until every rank has heard of it, and
// what each rank saw.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../kill/guarded_rank.h"
#include "faulty_transport.h"

namespace lasp_fault {

using lasp_kill::Call;
using lasp_kill::Outcome;

enum class Inner { kThreads, kMailboxes };

struct Setup {
  int32_t nranks = 3;
  int32_t schedule = LASP_SCHEDULE_RING;
  int32_t decay = LASP_DECAY_NONE;
  bool verify = false, bidirectional = false, broadcast = true;
  int64_t segment = 0;
  Inner inner = Inner::kThreads;
  int64_t limit_ms = 200;

  std::string name() const;
};

// Where the fault is: on this rank in this call (the first of the kind).
constexpr int32_t kEverywhere = -1;  // as a rank: in all calls of all ranks
struct Place {
  Call call = Call::kForward;
  int32_t rank = 0;
  Injection injection;
};

struct RankReport {
  std::vector<Outcome> outcomes;      // of its calls, up to the first failure
  lasp_status async_error = LASP_OK;  // after them
  Outcome again;                      // a call after the failure
  uint64_t results[2] = {0, 0};       // a checksum of what the first forward and backward wrote
  Counts counts[3];                   // of transport calls, by Call, of the first of its kind
  std::string defects;                // "" or what may never be
  bool reached = false;               // the fault was here
  int32_t peer = -1;                  // of the message or call that it met

  const Outcome &last() const { return outcomes.back(); }
  // The outcome of the first call of this kind; null when it did not come to that.
  const Outcome *of(Call call) const;
};

struct Report {
  std::vector<RankReport> ranks;
  bool reached = false;
  int32_t peer = -1;
};

// The ranks' calls are plan, forward, backward, and then so many more passes while nothing has failed.
constexpr int kPassesAfter = 4;
Report run_group(const Setup &setup, const Place &place, bool passes_after);

const char *call_function(Call call);  // "lasp_forward"

}  // namespace lasp_fault
