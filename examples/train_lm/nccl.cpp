// Finds NCCL and makes communicators.
#include "nccl.hpp"

#include <dlfcn.h>

#include <exception>
#include <stdexcept>

namespace train_lm {
namespace {

constexpr int kFloat32 = 7, kFloat64 = 8, kSum = 0;  // ncclDataType_t, ncclRedOp_t

// A handle for dlsym. It is never closed: NCCL's threads may outlive every communicator.
void *open_library(const std::string &path) {
  if (path.empty() && dlsym(RTLD_DEFAULT, "ncclGetUniqueId") != nullptr) return dlopen(nullptr, RTLD_NOW);
  void *library = dlopen(path.empty() ? "libnccl.so.2" : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char *reason = dlerror();
  throw std::runtime_error("NCCL cannot be loaded; --nccl PATH names a copy (a Python wheel of NCCL has one): " +
                           std::string(reason != nullptr ? reason : "no reason given"));
}

template <typename Function>
void find(void *library, const char *name, Function *function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) throw std::runtime_error(std::string("This NCCL lacks ") + name + "; it is too old.");
}

}  // namespace

Nccl::Nccl(const std::string &path) {
  void *library = open_library(path);
  find(library, "ncclGetUniqueId", &get_unique_id_);
  find(library, "ncclCommInitRank", &comm_init_rank_);
  find(library, "ncclCommDestroy", &comm_destroy_);
  find(library, "ncclCommAbort", &comm_abort_);
  find(library, "ncclAllReduce", &all_reduce_);
  find(library, "ncclGetErrorString", &get_error_string_);
  find(library, "ncclGetVersion", &functions_.get_version);
  find(library, "ncclCommCount", &functions_.comm_count);
  find(library, "ncclCommUserRank", &functions_.comm_user_rank);
  find(library, "ncclCommCuDevice", &functions_.comm_cu_device);
  find(library, "ncclCommGetAsyncError", &functions_.comm_get_async_error);
  find(library, "ncclGetErrorString", &functions_.get_error_string);
  find(library, "ncclSend", &functions_.send);
  find(library, "ncclRecv", &functions_.recv);
  find(library, "ncclAllGather", &functions_.all_gather);
  find(library, "ncclGroupStart", &functions_.group_start);
  find(library, "ncclGroupEnd", &functions_.group_end);
}

void Nccl::check(int result, const char *call) const {
  if (result != 0)
    throw std::runtime_error(std::string(call) + ": NCCL answered " + std::to_string(result) + ": " +
                             get_error_string_(result));
}

NcclId Nccl::create_id() const {
  NcclId id{};
  check(get_unique_id_(&id), "ncclGetUniqueId");
  return id;
}

NcclComm::NcclComm(const Nccl &nccl, const NcclId &id, int rank, int ranks)
    : nccl_(nccl), exceptions_(std::uncaught_exceptions()) {
  nccl.check(nccl.comm_init_rank_(&comm_, ranks, id, rank), "ncclCommInitRank");
}

void NcclComm::sum(float *data, std::size_t count, lasp_stream stream) const {
  nccl_.check(nccl_.all_reduce_(data, data, count, kFloat32, kSum, comm_, stream), "ncclAllReduce");
}

void NcclComm::sum(double *data, std::size_t count, lasp_stream stream) const {
  nccl_.check(nccl_.all_reduce_(data, data, count, kFloat64, kSum, comm_, stream), "ncclAllReduce");
}

NcclComm::~NcclComm() {
  // Destruction waits for what is in flight; after a failure that may be a message from a rank that is gone.
  if (std::uncaught_exceptions() > exceptions_)
    nccl_.comm_abort_(comm_);
  else
    nccl_.comm_destroy_(comm_);
}

}  // namespace train_lm
