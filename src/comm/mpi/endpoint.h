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

#include "comm/mpi/comm_pair.h"
#include "comm/mpi/control.h"
#include "comm/mpi/staging.h"
#include "lasp/lasp.h"

namespace lasp::mpi {

using Clock = std::chrono::steady_clock;

// A message under way. Addresses are stable and are the table's request handles.
struct Request {
  MPI_Request mpi = MPI_REQUEST_NULL;
  Staging staging;
  void *target = nullptr;  // of a receive: the caller's memory
  uint64_t bytes = 0;
  int32_t peer = 0;
  int32_t tag = 0;
  Clock::time_point waited_since;  // the zero of the clock: not waited for so far
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
  // At most `most_ms` (-1: as long as it takes). Then, when this is the `last` wait, it finds out who is lost; else
  // *done is false and nothing has happened.
  lasp_status wait(Request *request, int64_t most_ms, bool last, bool *done, int32_t *lost_rank);
  void cancel(Request *request);
  void abort(int32_t lost_rank);
  // As lasp_transport has it, as far as others have told.
  int32_t peer_state(int32_t rank, int32_t *tag);
  // MPI or the allocator failed: the group is of no more use.
  lasp_status fail() noexcept;

 private:
  using Lock = std::lock_guard<std::mutex>;
  static constexpr int32_t kNoAbort = INT32_MIN;
  static constexpr int32_t kNobody = -1;

  void enter();
  void stop_waiting() { awaited_ = kNobody, awaited_tag_ = -1; }
  bool accepts(int32_t peer, int32_t tag) const;
  Request *take_request(uint64_t bytes, int32_t peer, int32_t tag);
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

  int32_t awaited_ = kNobody;  // whose message this rank waits for, and which
  int32_t awaited_tag_ = -1;
  int32_t query_ = 0;  // the serial number of the last query sent
  bool replied_ = false;
  int32_t reply_ = kNobody;

  lasp_status broken_ = LASP_OK;
  int32_t lost_rank_ = kNobody;
  bool lost_itself_ = false;           // it said so
  std::vector<int32_t> awaited_tags_;  // by rank, as last heard; -1: it did not wait, or nothing was heard
};

}  // namespace lasp::mpi
