// One rank through the public interface: comm, context, plan and buffers; each step answers with its status.
#pragma once

#include <lasp/lasp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "counted_new.h"
#include "support/kinds.h"

namespace endurance {

using lasp_test::kSchedules;

struct Shape {
  int64_t tokens = 20;  // of this rank
  int32_t heads = 2, dim = 8;
  int32_t decay = LASP_DECAY_NONE;
  int32_t schedule = LASP_SCHEDULE_RING;
  int32_t cache = LASP_CACHE_CHUNKS;
  int64_t segment = 0;
  bool broadcast = false;
  int64_t max_sequences = 0;

  size_t floats() const { return static_cast<size_t>(tokens * heads * dim); }
  // Every number of ranks gives the same bits: sums of whole numbers, or sums in one order.
  bool exact() const { return decay == LASP_DECAY_NONE || segment != 0; }
  size_t state_floats() const {
    return static_cast<size_t>(std::max<int64_t>(max_sequences, 1)) * static_cast<size_t>(heads) * dim * dim;
  }
};

struct Answer {
  lasp_status status = LASP_OK;
  std::string sentence;
};

// Owns the comm. Tensors are public: the caller fills q, k, v, decay and d_o.
class Worker {
 public:
  explicit Worker(lasp_comm *comm) : comm_(comm) {}
  ~Worker() { close(); }
  Worker(const Worker &) = delete;
  Worker &operator=(const Worker &) = delete;

  Answer open(int64_t time_limit_ms, int32_t threads = 1, bool check_values = false);
  Answer plan(const Shape &shape);
  Answer forward();
  Answer backward();
  // Destroys plan, context and comm; the first status that was not LASP_OK.
  Answer close();

  // plan, forward, backward and as far as the first failure.
  Answer pass(const Shape &shape);

  lasp_context *context() const { return context_; }
  lasp_status async_error() const;

  std::vector<float> q, k, v, d_o, decay;
  std::vector<float> o, final_state, dq, dk, dv, d_decay;
  const lasp_packing *packing = nullptr;  // of the calls to come

 private:
  template <class Call>
  static Answer answer(Call call) {
    lasp_status status;
    {
      const allocation::InLibrary in_library;
      status = call();
    }
    return {status, status == LASP_OK ? "" : lasp_last_error()};
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  lasp_comm *comm_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
  std::vector<Line> cache_, workspace_;
};

// Resident memory in bytes, open file descriptors and threads of this process.
struct Usage {
  int64_t resident = 0, descriptors = 0, threads = 0;
};
Usage usage();
// The same once there are no more than `threads`: the kernel lists a joined thread for a moment longer. Gives up
// after five seconds.
Usage usage_settled(int64_t threads);

// Sanitizers keep freed memory back and shadow all of it: resident memory then says nothing.
bool resident_memory_is_telling();

// Reduced amounts, in the sanitizers' builds.
bool quick();

}  // namespace endurance
