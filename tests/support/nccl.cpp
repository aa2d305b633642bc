#include "support/nccl.h"

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include "support/device.h"

namespace gpu {
namespace {

constexpr int kSuccess = 0, kInProgress = 7;
constexpr int kUndefined = static_cast<int>(0x80000000u);  // of a config field that is left to NCCL

// ncclConfig_t as NCCL 2.18 has it; later versions take an earlier one by its size and version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21800;
  int blocking = 1, cga_cluster_size = kUndefined, min_ctas = kUndefined, max_ctas = kUndefined;
  const char *net_name = nullptr;
  int split_share = kUndefined;
};

struct Functions {
  int (*get_version)(int *) = nullptr;
  int (*get_unique_id)(NcclId *) = nullptr;
  int (*comm_init_rank_config)(ncclComm **, int nranks, NcclId id, int rank, Config *) = nullptr;
  int (*comm_get_async_error)(ncclComm *, int *) = nullptr;
  int (*comm_destroy)(ncclComm *) = nullptr;
  int (*comm_abort)(ncclComm *) = nullptr;
  const char *(*get_error_string)(int) = nullptr;
  std::string missing;
};

// libnccl stays loaded: its threads outlive any one user.
Functions load() {
  Functions f;
  void *const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    f.missing = std::string("NCCL was not found: ") + dlerror();
    return f;
  }
  const auto find = [&](const char *name, auto &to) {
    void *const address = dlsym(library, name);
    std::memcpy(&to, &address, sizeof to);
    if (address == nullptr) f.missing = std::string("libnccl.so.2 has no ") + name;
  };
  find("ncclGetVersion", f.get_version);
  find("ncclGetUniqueId", f.get_unique_id);
  find("ncclCommInitRankConfig", f.comm_init_rank_config);
  find("ncclCommGetAsyncError", f.comm_get_async_error);
  find("ncclCommDestroy", f.comm_destroy);
  find("ncclCommAbort", f.comm_abort);
  find("ncclGetErrorString", f.get_error_string);
  return f;
}

const Functions &functions() {
  static const auto *const loaded = new Functions(load());
  return *loaded;
}

void check(int result, const char *call) {
  if (result == kSuccess || result == kInProgress) return;
  throw std::runtime_error(std::string(call) + ": " + functions().get_error_string(result));
}

}  // namespace

std::string why_no_nccl() { return functions().missing; }

std::string nccl_version() {
  int v = 0;
  check(functions().get_version(&v), "ncclGetVersion");
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

NcclId make_nccl_id() {
  NcclId id{};
  check(functions().get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

NcclRank::NcclRank(const NcclId &id, int32_t rank, int32_t nranks, bool blocking) {
  Config config;
  config.blocking = blocking ? 1 : 0;
  check(functions().comm_init_rank_config(&comm_, nranks, id, rank, &config), "ncclCommInitRankConfig");
  for (int state = kInProgress; state == kInProgress; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    check(functions().comm_get_async_error(comm_, &state), "ncclCommGetAsyncError");
    check(state, "making a communicator");
  }
}

NcclRank::~NcclRank() {
  if (comm_ != nullptr) functions().comm_destroy(comm_);
}

void NcclRank::abort() {
  functions().comm_abort(comm_);
  comm_ = nullptr;
}

std::vector<std::unique_ptr<NcclRank>> make_nccl_group(int32_t nranks, bool blocking) {
  const NcclId id = make_nccl_id();
  std::vector<std::unique_ptr<NcclRank>> ranks(nranks);
  std::vector<std::exception_ptr> errors(nranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < nranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        use_device(rank);
        ranks[rank] = std::make_unique<NcclRank>(id, rank, nranks, blocking);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  for (const std::exception_ptr &error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return ranks;
}

}  // namespace gpu
