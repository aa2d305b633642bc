// The functions of NCCL that liblasp and its tests call, with NCCL's values.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "nccl/communicator.h"

using emulated_nccl::Group;
using emulated_nccl::Transfer;

namespace {

constexpr int kVersion = 22809;
constexpr int kBytes = 1;  // ncclUint8, the one type that is known
enum Result { kSuccess = 0, kUnhandledCudaError = 1, kInvalidArgument = 4, kInvalidUsage = 5 };

struct Id {
  char bytes[128];
};

// Never torn down, as threads of streams may outlive the program's statics.
struct Groups {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Group>> by_id;
  int ids = 0;
};
Groups &groups() {
  static auto *const all = new Groups;
  return *all;
}

Group &group_of(const Id &id, int nranks) {
  const std::lock_guard lock(groups().mutex);
  auto &group = groups().by_id[std::string(id.bytes, sizeof id.bytes)];
  if (!group) group = std::make_unique<Group>(nranks);
  return *group;
}

// NCCL would read memory that it has freed.
ncclComm &live(const ncclComm *comm) {
  if (comm->ended) std::fputs("NCCL: a communicator is used after its end\n", stderr), std::abort();
  return *const_cast<ncclComm *>(comm);
}

int result_of(cudaError_t error) { return error == cudaSuccess ? kSuccess : kUnhandledCudaError; }

// What a thread has asked for between ncclGroupStart and ncclGroupEnd goes at once, by communicator and stream.
struct OpenGroup {
  int depth = 0;
  std::map<std::pair<ncclComm *, cudaStream_t>, std::vector<Transfer>> transfers;
};
thread_local OpenGroup open_group;

int close_group() {
  int result = kSuccess;
  for (auto &[where, transfers] : std::exchange(open_group.transfers, {}))
    if (const int error = result_of(where.first->enqueue(std::move(transfers), where.second))) result = error;
  return result;
}

int add(const Transfer &transfer, int type, ncclComm &comm, cudaStream_t stream) {
  if (type != kBytes || transfer.peer < 0 || transfer.peer >= comm.group.nranks()) return kInvalidArgument;
  open_group.transfers[{&comm, stream}].push_back(transfer);
  return open_group.depth == 0 ? close_group() : kSuccess;
}

std::byte *bytes(const void *data) { return static_cast<std::byte *>(const_cast<void *>(data)); }

}  // namespace

extern "C" {

int ncclGetVersion(int *version) { return *version = kVersion, kSuccess; }

const char *ncclGetErrorString(int result) {
  switch (result) {
    case kSuccess: return "no error";
    case kUnhandledCudaError: return "unhandled cuda error";
    case kInvalidArgument: return "invalid argument";
    case kInvalidUsage: return "invalid usage";
    default: return "unknown result code";
  }
}

int ncclGetUniqueId(Id *id) {
  const std::lock_guard lock(groups().mutex);
  *id = {};
  std::snprintf(id->bytes, sizeof id->bytes, "emulated group %d", groups().ids++);
  return kSuccess;
}

// The same for a communicator that does not block: its ranks are awaited here.
int ncclCommInitRankConfig(ncclComm **comm, int nranks, Id id, int rank, void *) {
  if (nranks < 1 || rank < 0 || rank >= nranks) return kInvalidArgument;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return result_of(error);
  Group &group = group_of(id, nranks);
  if (group.nranks() != nranks || !group.join(rank)) return kInvalidUsage;
  *comm = new ncclComm(group, rank, device);
  return kSuccess;
}

// What was enqueued before still goes.
int ncclCommDestroy(ncclComm *comm) { return live(comm).ended = true, kSuccess; }

int ncclCommAbort(ncclComm *comm) {
  live(comm).ended = true;
  return comm->group.give_up(comm->rank), kSuccess;
}

int ncclCommGetAsyncError(ncclComm *comm, int *result) {
  return *result = live(comm).group.mismatched(comm->rank) ? kInvalidUsage : kSuccess, kSuccess;
}
int ncclCommCount(const ncclComm *comm, int *count) { return *count = live(comm).group.nranks(), kSuccess; }
int ncclCommUserRank(const ncclComm *comm, int *rank) { return *rank = live(comm).rank, kSuccess; }
int ncclCommCuDevice(const ncclComm *comm, int *device) { return *device = live(comm).device, kSuccess; }

int ncclGroupStart() { return ++open_group.depth, kSuccess; }
int ncclGroupEnd() {
  if (open_group.depth == 0) return kInvalidUsage;
  return --open_group.depth == 0 ? close_group() : kSuccess;
}

int ncclSend(const void *data, size_t count, int type, int peer, ncclComm *comm, cudaStream_t stream) {
  return add({true, peer, bytes(data), count}, type, live(comm), stream);
}
int ncclRecv(void *data, size_t count, int type, int peer, ncclComm *comm, cudaStream_t stream) {
  return add({false, peer, bytes(data), count}, type, live(comm), stream);
}

// A message to each rank, this one too, and one from each.
int ncclAllGather(const void *own, void *all, size_t count, int type, ncclComm *comm, cudaStream_t stream) {
  int result = ncclGroupStart();
  for (int peer = 0; peer < live(comm).group.nranks() && result == kSuccess; ++peer) {
    result = ncclSend(own, count, type, peer, comm, stream);
    if (result == kSuccess) result = ncclRecv(bytes(all) + peer * count, count, type, peer, comm, stream);
  }
  const int ended = ncclGroupEnd();
  return result == kSuccess ? ended : result;
}

}  // extern "C"
