// lasp_comm_*: the ways to make a comm.
#include "comm/comm.h"

#include <cmath>
#include <memory>
#include <utility>

#include "base/build_info.h"
#include "comm/transport.h"
#include "handles.h"
#include "structs.h"

using namespace lasp;

namespace {

constexpr int32_t kMaxThreadRanks = 1024;

// On failure `user` is still the caller's to destroy.
lasp_comm *make_comm(const lasp_transport &transport, void *user, CommKind kind,
                     std::shared_ptr<const NcclGroup> nccl = nullptr) {
  lasp_transport table = transport;
  table.destroy = nullptr;
  std::unique_ptr<lasp_comm> comm(new lasp_comm{.engine = Comm(table, user, kind, std::move(nccl))});
  register_handle(comm.get(), Kind::kComm);
  comm->engine.set_destroy(transport.destroy);
  return comm.release();
}

void check_transport(const lasp_transport &t) {
  const auto need = [](bool present, const char *name) {
    if (!present) throw fail(LASP_ERROR_INVALID_ARGUMENT, "transport.%s is null", name);
  };
  if (t.nranks < 1 || t.nranks > kMaxRanks)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "transport.nranks = %d: must be 1 to %d", t.nranks, kMaxRanks);
  if (t.rank < 0 || t.rank >= t.nranks)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "transport.rank = %d: must be 0 to nranks - 1 = %d", t.rank,
               t.nranks - 1);
  if (t.local_ranks < 0 || t.local_ranks > t.nranks)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "transport.local_ranks = %d: must be 0 to nranks = %d", t.local_ranks,
               t.nranks);
  if (t.memory == LASP_DEVICE_CUDA && !build::has_cuda())
    throw fail(LASP_ERROR_NOT_BUILT, "transport.memory = LASP_DEVICE_CUDA: this build has no CUDA backend");
  if (t.memory != LASP_DEVICE_AUTO && t.memory != LASP_DEVICE_CPU && t.memory != LASP_DEVICE_CUDA)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "transport.memory = %d: must be one of LASP_DEVICE_*", t.memory);
  const auto usable = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!usable(t.latency_us) || !usable(t.bandwidth_gbs))
    throw fail(LASP_ERROR_INVALID_ARGUMENT,
               "transport.latency_us = %g, bandwidth_gbs = %g: must be finite and not negative", t.latency_us,
               t.bandwidth_gbs);
  need(t.send != nullptr, "send");
  need(t.receive != nullptr, "receive");
  need(t.test != nullptr, "test");
  need(t.wait != nullptr, "wait");
  need(t.cancel != nullptr, "cancel");
}

}  // namespace

lasp_status lasp_comm_create_self(lasp_comm **comm) {
  return guarded([&] {
    require_pointer(comm, "comm");
    const TransportEnd end = make_self_transport();  // owns nothing
    *comm = make_comm(end.table, end.user, CommKind::kSelf);
  });
}

lasp_status lasp_comm_create_threads(int32_t nranks, lasp_comm **comms) {
  return guarded([&] {
    require_pointer(comms, "comms");
    if (nranks < 1 || nranks > kMaxThreadRanks)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "nranks = %d: must be 1 to %d", nranks, kMaxThreadRanks);
    std::vector<lasp_comm *> made;
    made.reserve(static_cast<size_t>(nranks));  // nothing may fail between the ends and the try block
    const std::vector<TransportEnd> ends = make_thread_transport(nranks);
    try {
      for (const TransportEnd &end : ends) made.push_back(make_comm(end.table, end.user, CommKind::kThreads));
    } catch (...) {
      for (lasp_comm *comm : made) lasp_comm_destroy(comm);
      for (size_t i = made.size(); i < ends.size(); ++i) ends[i].table.destroy(ends[i].user);
      throw;
    }
    std::copy(made.begin(), made.end(), comms);
  });
}

lasp_status lasp_comm_create_detached(int32_t rank, int32_t nranks, lasp_comm **comm) {
  return guarded([&] {
    require_pointer(comm, "comm");
    require_place(rank, nranks);
    const TransportEnd end = make_detached_transport(rank, nranks);  // owns nothing
    *comm = make_comm(end.table, end.user, CommKind::kDetached);
  });
}

lasp_status lasp_comm_create_nccl(struct ncclComm *nccl, const lasp_nccl_functions *functions, lasp_comm **comm) {
  return guarded([&] {
    require_pointer(comm, "comm");
    require_pointer(reinterpret_cast<const char *>(nccl), "nccl");
    lasp_nccl_functions given = LASP_NCCL_FUNCTIONS_INIT;
    if (functions != nullptr) given = read_struct(functions, "functions");
    NcclEnd end = make_nccl_transport(nccl, functions != nullptr ? &given : nullptr);
    *comm = make_comm(end.table, nullptr, CommKind::kNccl, std::move(end.group));
  });
}

lasp_status lasp_comm_create_custom(const lasp_transport *transport, void *user, lasp_comm **comm) {
  return guarded([&] {
    lasp_transport table = read_struct(transport, "transport");
    require_pointer(comm, "comm");
    check_transport(table);
    if (table.memory == LASP_DEVICE_AUTO) table.memory = LASP_DEVICE_CPU;
    *comm = make_comm(table, user, CommKind::kCustom);
  });
}

lasp_status lasp_comm_get_rank(const lasp_comm *comm, int32_t *rank, int32_t *nranks) {
  return guarded([&] {
    const Comm &engine = live(comm, "comm").engine;
    if (rank != nullptr) *rank = engine.rank();
    if (nranks != nullptr) *nranks = engine.nranks();
  });
}

lasp_status lasp_comm_get_traffic(const lasp_comm *comm, lasp_traffic *traffic) {
  return guarded([&] { write_struct(traffic, live(comm, "comm").engine.traffic(), "traffic"); });
}

lasp_status lasp_comm_destroy(lasp_comm *comm) {
  return guarded([&] {
    if (comm == nullptr) return;
    const int32_t users = live(comm, "comm").users.load();
    if (users > 0) throw fail(LASP_ERROR_IN_USE, "comm: %d context(s) still use it; destroy them first", users);
    unregister_handle(comm);
    delete comm;
  });
}
