// For mpi_transport_test.cpp: checks, since processes under mpirun have no test framework, and one rank's end of a
// group with calls that read like the contract. The program stands in for liblasp, so that lasp_comm is its own.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <type_traits>

#include "lasp/lasp_mpi.h"

struct lasp_comm {
  lasp_transport table;
  void *user;
};

namespace mpi_rig {

inline int failures = 0;
inline int my_rank = 0;
inline int world_size = 1;

constexpr int64_t kLongMs = 60000;
using Clock = std::chrono::steady_clock;

template <class Value>
bool report(Value got, Value wanted, const char *what, int line) {
  if (got == wanted) return true;
  ++failures;
  std::fprintf(stderr, "rank %d, line %d: %s: got %lld, wanted %lld\n", my_rank, line, what,
               static_cast<long long>(got), static_cast<long long>(wanted));
  return false;
}
#define EXPECT_EQ(got, wanted) report((got), static_cast<std::decay_t<decltype(got)>>(wanted), #got, __LINE__)
#define EXPECT_TRUE(what) EXPECT_EQ(static_cast<bool>(what), true)

// One rank's end, destroyed with this object.
class End {
 public:
  explicit End(MPI_Comm comm = MPI_COMM_WORLD) { EXPECT_EQ(lasp_mpi_comm_create(comm, &comm_), LASP_OK); }
  ~End() {
    table().destroy(comm_->user);
    delete comm_;
  }
  End(const End &) = delete;

  const lasp_transport &table() const { return comm_->table; }
  int rank() const { return table().rank; }
  int nranks() const { return table().nranks; }
  void *send(const void *data, uint64_t bytes, int peer, int tag = 0) {
    void *request = nullptr;
    EXPECT_EQ(table().send(comm_->user, data, bytes, peer, tag, nullptr, &request), LASP_OK);
    return request;
  }
  void *receive(void *data, uint64_t bytes, int peer, int tag = 0) {
    void *request = nullptr;
    EXPECT_EQ(table().receive(comm_->user, data, bytes, peer, tag, nullptr, &request), LASP_OK);
    return request;
  }
  bool test(void *request) {
    int32_t done = -1;
    EXPECT_EQ(table().test(comm_->user, request, &done), LASP_OK);
    return done == 1;
  }
  lasp_status wait(void *request, int64_t limit_ms = kLongMs, int32_t *lost_rank = nullptr) {
    int32_t ignored = -1;
    return table().wait(comm_->user, request, limit_ms, lost_rank ? lost_rank : &ignored);
  }
  // Waits for a failure, and cancels what it did not end.
  void expect_failure(int line, void *request, int64_t limit_ms, lasp_status status, int32_t lost_rank) {
    int32_t lost = -1;
    const lasp_status got = wait(request, limit_ms, &lost);
    report(got, status, "status of wait", line);
    report(lost, lost_rank, "lost rank", line);
    if (got != LASP_OK) cancel(request);
  }
  void cancel(void *request) { table().cancel(comm_->user, request); }
  void abort(int lost_rank) { table().abort(comm_->user, lost_rank); }

 private:
  lasp_comm *comm_ = nullptr;
};

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace mpi_rig
