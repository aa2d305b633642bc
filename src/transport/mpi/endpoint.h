// One rank's end of a group over MPI: what the table's `user` points at.
//
// Data go by MPI_Isend and MPI_Irecv through staging memory. While it waits, a rank answers control messages; when
// its time limit passes it asks the rank it waits for whom *that* one waits for, follows the chain to the rank that
// waits for nobody or does not answer, and tells everybody that this rank is lost.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lasp/lasp.h"
#include "transport/mpi/comm_pair.h"
#include "transport/mpi/control.h"
#include "transport/mpi/staging.h"

namespace lasp::mpi {

using Clock = std::chrono::steady_clock;

// A message under way. Addresses are stable and are the table's request handles.
struct Request {
  MPI_Request mpi = MPI_REQUEST_NULL;
  Staging staging;
  void *target = nullptr;  // of a receive: the caller's memory
  uint64_t bytes = 0;
  int32_t peer = 0;
  bool is_receive = false;
  bool started = false;  // false: made in a group that was already broken
  bool complete = false;
  bool in_use = false;
};

class Endpoint {
 public:
  explicit Endpoint(std::shared_ptr<CommPair> pair);
  ~Endpoint();
  Endpoint(const Endpoint &) = delete;
  Endpoint &operator=(const Endpoint &) = delete;

  int32_t rank() const { return rank_; }
  int32_t nranks() const { return nranks_; }

  // The table's functions; they may throw MpiFailure or std::bad_alloc, which the table turns into `fail`.
  lasp_status send(const void *data, uint64_t bytes, int32_t peer, int32_t tag, void **handle);
  lasp_status receive(void *data, uint64_t bytes, int32_t peer, int32_t tag, void **handle);
  bool test(Request *request);
  lasp_status wait(Request *request, int64_t time_limit_ms, int32_t *lost_rank);
  void cancel(Request *request);
  void abort(int32_t lost_rank);
  // MPI or the allocator failed: the group is of no more use.
  lasp_status fail() noexcept;

 private:
  using Lock = std::lock_guard<std::mutex>;
  static constexpr int32_t kNoAbort = INT32_MIN;
  static constexpr int32_t kNobody = -1;

  void enter();
  bool accepts(int32_t peer, int32_t tag) const;
  Request *take_request(uint64_t bytes, int32_t peer);
  void release(Request *request);
  void abandon(Request *request);
  void reap_orphans();
  bool progress(Request *request);
  void deliver(Request *request, const MPI_Status &status);

  void serve_control();
  void break_group(lasp_status status, int32_t lost_rank);
  void find_lost_rank(Request *request, Clock::duration grace);
  bool ask(int32_t suspect, Request *request, Clock::duration grace, int32_t *awaited);

  std::shared_ptr<CommPair> pair_;
  int32_t rank_ = 0;
  int32_t nranks_ = 0;
  int32_t most_tag_ = 0;

  // One thread at a time uses an end; the mutex is for `abort` alone, which may find it taken.
  std::mutex mutex_;
  std::atomic<std::thread::id> last_thread_;
  std::atomic<int32_t> abort_wanted_{kNoAbort};  // the lost rank, or -1, that an abort has left to be told

  StagingPool pool_;
  ControlChannel control_;
  std::deque<Request> requests_;
  std::vector<Request *> free_requests_;
  std::vector<Orphan> orphans_;

  int32_t awaited_ = kNobody;  // whose message this rank waits for
  int32_t query_ = 0;          // the serial number of the last query sent
  bool replied_ = false;
  int32_t reply_ = kNobody;

  lasp_status broken_ = LASP_OK;
  int32_t lost_rank_ = kNobody;
};

}  // namespace lasp::mpi
