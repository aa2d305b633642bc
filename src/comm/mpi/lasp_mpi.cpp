// liblasp_mpi's one public function: a comm over an MPI communicator, by lasp.h's custom transport alone.
#include "lasp/lasp_mpi.h"

#include <cstring>
#include <memory>
#include <new>

#include "comm/mpi/endpoint.h"
#include "comm/mpi/mpi_call.h"

namespace lasp::mpi {
namespace {

// Constants, not measured at creation: a few ping-pongs among ranks that share CPUs take many milliseconds and say
// nothing, and all ranks must tell the library the same numbers, for it chooses the schedule from them. On one
// machine: half the round trip of a ping-pong with Open MPI 4.1 on two virtual Zen 3 cores, where 4 bytes took 1 to
// 3 us and 4 MiB ran at 0.7 to 1.4 GB/s (plain MPI_Send and MPI_Recv: 0.6 to 1.1), other work running beside it.
// Between machines: assumed, a 100 Gb/s network. lasp_context_options overrides both.
constexpr double kLocalLatencyUs = 5.0;
constexpr double kLocalBandwidthGbs = 1.0;
constexpr double kNetworkLatencyUs = 10.0;
constexpr double kNetworkBandwidthGbs = 10.0;

Endpoint *end_of(void *user) { return static_cast<Endpoint *>(user); }
Request *request_of(void *handle) { return static_cast<Request *>(handle); }

// No exception leaves the table's functions.
template <class Body>
lasp_status guarded(void *user, Body body) noexcept {
  try {
    return body(*end_of(user));
  } catch (...) {
    return end_of(user)->fail();
  }
}

lasp_status mpi_send(void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
                     void **handle) {
  return guarded(user, [&](Endpoint &end) { return end.send(data, bytes, peer, tag, handle); });
}

lasp_status mpi_receive(void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
                        void **handle) {
  return guarded(user, [&](Endpoint &end) { return end.receive(data, bytes, peer, tag, handle); });
}

lasp_status mpi_test(void *user, void *handle, int32_t *done) {
  return guarded(user, [&](Endpoint &end) {
    *done = end.test(request_of(handle)) ? 1 : 0;
    return lasp_status{LASP_OK};
  });
}

lasp_status mpi_wait(void *user, void *handle, int64_t time_limit_ms, int32_t *lost_rank) {
  bool done;
  return guarded(
      user, [&](Endpoint &end) { return end.wait(request_of(handle), time_limit_ms, true, &done, lost_rank); });
}

lasp_status mpi_wait_for(void *user, void *handle, int64_t most_ms, int32_t *done, int32_t *lost_rank) {
  return guarded(user, [&](Endpoint &end) {
    bool is_done = false;
    const lasp_status status = end.wait(request_of(handle), most_ms, false, &is_done, lost_rank);
    *done = is_done ? 1 : 0;
    return status;
  });
}

void mpi_cancel(void *user, void *handle) {
  guarded(user, [&](Endpoint &end) {
    end.cancel(request_of(handle));
    return lasp_status{LASP_OK};
  });
}

void mpi_abort(void *user, int32_t lost_rank) {
  guarded(user, [&](Endpoint &end) {
    end.abort(lost_rank);
    return lasp_status{LASP_OK};
  });
}

void mpi_peer_state(void *user, int32_t rank, int32_t *state, int32_t *tag) {
  guarded(user, [&](Endpoint &end) {
    *state = end.peer_state(rank, tag);
    return lasp_status{LASP_OK};
  });
}

void mpi_destroy(void *user) { delete end_of(user); }

// The ranks that share this rank's machine. Collective.
int32_t count_local_ranks(MPI_Comm comm, int32_t rank) {
  MPI_Comm local = MPI_COMM_NULL;
  check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local));
  int size = 1;
  const int code = MPI_Comm_size(local, &size);
  MPI_Comm_free(&local);
  check(code);
  return size;
}

lasp_transport table_of(const Endpoint &end, int32_t local_ranks) {
  const bool one_machine = local_ranks == end.nranks();
  lasp_transport table = LASP_TRANSPORT_INIT;
  table.name = "MPI";
  table.rank = end.rank();
  table.nranks = end.nranks();
  table.local_ranks = local_ranks;
  table.memory = LASP_DEVICE_CPU;
  table.latency_us = one_machine ? kLocalLatencyUs : kNetworkLatencyUs;
  table.bandwidth_gbs = one_machine ? kLocalBandwidthGbs : kNetworkBandwidthGbs;
  table.send = mpi_send;
  table.receive = mpi_receive;
  table.test = mpi_test;
  table.wait = mpi_wait;
  table.cancel = mpi_cancel;
  table.abort = mpi_abort;
  table.destroy = mpi_destroy;
  table.wait_for = mpi_wait_for;
  table.peer_state = mpi_peer_state;
  return table;
}

lasp_status create(MPI_Comm mpi, lasp_comm **comm) {
  if (!comm) return lasp_set_last_error(LASP_ERROR_INVALID_ARGUMENT, "comm is null");
  if (!mpi_is_usable())
    return lasp_set_last_error(LASP_ERROR_INVALID_ARGUMENT, "mpi: MPI is not initialised, or already finalised");
  if (mpi == MPI_COMM_NULL) return lasp_set_last_error(LASP_ERROR_INVALID_ARGUMENT, "mpi is MPI_COMM_NULL");
  int between_groups = 1;
  if (MPI_Comm_test_inter(mpi, &between_groups) != MPI_SUCCESS)
    return lasp_set_last_error(LASP_ERROR_INVALID_ARGUMENT, "mpi is no communicator");
  if (between_groups)
    return lasp_set_last_error(LASP_ERROR_INVALID_ARGUMENT, "mpi is an intercommunicator: it must be of one group");
  release_complete_orphans();
  std::shared_ptr<CommPair> pair = make_comm_pair(mpi);
  auto end = std::make_unique<Endpoint>(pair);
  const lasp_transport table = table_of(*end, count_local_ranks(pair->data, end->rank()));
  const lasp_status status = lasp_comm_create_custom(&table, end.get(), comm);
  if (status == LASP_OK) end.release();  // from now on `destroy` frees it
  return status;
}

}  // namespace
}  // namespace lasp::mpi

extern "C" lasp_status lasp_mpi_comm_create(MPI_Comm mpi, lasp_comm **comm) {
  try {
    return lasp::mpi::create(mpi, comm);
  } catch (const lasp::mpi::MpiFailure &failure) {
    char sentence[MPI_MAX_ERROR_STRING + 64] = "mpi: MPI failed while the group was made: ";
    int length = 0;
    MPI_Error_string(failure.code, sentence + std::strlen(sentence), &length);
    return lasp_set_last_error(LASP_ERROR_TRANSPORT, sentence);
  } catch (const std::bad_alloc &) {
    return lasp_set_last_error(LASP_ERROR_OUT_OF_MEMORY, "out of memory");
  } catch (...) {
    return lasp_set_last_error(LASP_ERROR_INTERNAL, "an unknown exception");
  }
}
