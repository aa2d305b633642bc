#include "nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "build_info.h"
#include "status.h"
#include "transport/transport.h"

namespace lasp {
namespace {

constexpr int32_t kOldest = 21800;
constexpr const char *kSoname = "libnccl.so.2";

// The path of a libnccl that some other library of the process has loaded for itself alone, as Python's extension
// modules do; "" when there is none. (libnccl-net.so and its like are plug-ins.)
std::string loaded_library() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *found) {
        if (info->dlpi_name == nullptr) return 0;
        const char *slash = std::strrchr(info->dlpi_name, '/');
        const char *name = slash != nullptr ? slash + 1 : info->dlpi_name;
        if (std::strncmp(name, "libnccl.so", 10) != 0) return 0;
        *static_cast<std::string *>(found) = info->dlpi_name;
        return 1;
      },
      &path);
  return path;
}

// A handle for dlsym, or null; `where` says what it is. `load` brings the library into the process if need be.
// A handle is never closed: the communicator outlives any moment at which it could be.
void *open_library(bool load, std::string &where) {
  if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) {
    where = "the process";
    return dlopen(nullptr, RTLD_LAZY);
  }
  where = loaded_library();
  if (!where.empty()) return dlopen(where.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  where = kSoname;
  return load ? dlopen(kSoname, RTLD_LAZY | RTLD_LOCAL) : nullptr;
}

template <class Function>
void take(Function &to, lasp_function from, const char *name) {
  if (from == nullptr) throw fail(LASP_ERROR_INVALID_ARGUMENT, "functions.%s is null", name);
  to = reinterpret_cast<Function>(from);
}

NcclLibrary from_table(const lasp_nccl_functions &f) {
  NcclLibrary library{};
  take(library.get_version, f.get_version, "get_version");
  take(library.comm_count, f.comm_count, "comm_count");
  take(library.comm_user_rank, f.comm_user_rank, "comm_user_rank");
  take(library.comm_cu_device, f.comm_cu_device, "comm_cu_device");
  take(library.comm_get_async_error, f.comm_get_async_error, "comm_get_async_error");
  take(library.get_error_string, f.get_error_string, "get_error_string");
  take(library.send, f.send, "send");
  take(library.recv, f.recv, "recv");
  take(library.all_gather, f.all_gather, "all_gather");
  take(library.group_start, f.group_start, "group_start");
  take(library.group_end, f.group_end, "group_end");
  return library;
}

NcclLibrary from_handle(void *handle, const std::string &where) {
  NcclLibrary library{};
  const auto find = [&](auto &to, const char *name) {
    void *address = dlsym(handle, name);
    if (address == nullptr)
      throw fail(LASP_ERROR_LIBRARY_MISSING, "nccl: %s lacks %s; NCCL 2.18 or later is needed", where.c_str(),
                 name);
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(address);
  };
  find(library.get_version, "ncclGetVersion");
  find(library.comm_count, "ncclCommCount");
  find(library.comm_user_rank, "ncclCommUserRank");
  find(library.comm_cu_device, "ncclCommCuDevice");
  find(library.comm_get_async_error, "ncclCommGetAsyncError");
  find(library.get_error_string, "ncclGetErrorString");
  find(library.send, "ncclSend");
  find(library.recv, "ncclRecv");
  find(library.all_gather, "ncclAllGather");
  find(library.group_start, "ncclGroupStart");
  find(library.group_end, "ncclGroupEnd");
  return library;
}

// Any function of the table; a comm of this kind is used through its NcclGroup alone.
lasp_status refuse_send(void *, const void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
  return LASP_ERROR_TRANSPORT;
}
lasp_status refuse_receive(void *, void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
  return LASP_ERROR_TRANSPORT;
}
lasp_status refuse_test(void *, void *, int32_t *) { return LASP_ERROR_TRANSPORT; }
lasp_status refuse_wait(void *, void *, int64_t, int32_t *) { return LASP_ERROR_TRANSPORT; }
void ignore_cancel(void *, void *) {}

}  // namespace

std::string nccl_version_text(int32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

NcclLibrary find_nccl(const lasp_nccl_functions *functions) {
  NcclLibrary library{};
  std::string where = "the given table";
  if (functions != nullptr) {
    library = from_table(*functions);
  } else {
    void *handle = open_library(true, where);
    if (handle == nullptr) {
      const char *reason = dlerror();
      throw fail(LASP_ERROR_LIBRARY_MISSING, "nccl: not in this process, and %s cannot be loaded: %s", kSoname,
                 reason != nullptr ? reason : "no reason given");
    }
    library = from_handle(handle, where);
  }
  int version = 0;
  if (library.get_version(&version) != kNcclSuccess)
    throw fail(LASP_ERROR_LIBRARY_MISSING, "nccl: ncclGetVersion of %s failed", where.c_str());
  if (version < kOldest)
    throw fail(LASP_ERROR_LIBRARY_MISSING, "nccl: %s has version code %d; NCCL 2.18 (%d) or later is needed",
               where.c_str(), version, kOldest);
  library.version = version;
  return library;
}

NcclEnd make_nccl_transport(struct ncclComm *nccl, const lasp_nccl_functions *functions) {
  auto group = std::make_shared<NcclGroup>();
  const NcclLibrary &f = group->library = find_nccl(functions);
  group->comm = nccl;
  const auto require = [&](int result, const char *name) {
    if (result != kNcclSuccess)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "nccl: %s answered %d (%s): not a usable communicator", name, result,
                 f.get_error_string(result));
  };
  int state = kNcclSuccess;
  require(f.comm_get_async_error(nccl, &state), "ncclCommGetAsyncError");
  if (state == kNcclInProgress)
    throw fail(LASP_ERROR_INVALID_ARGUMENT,
               "nccl: the communicator is still being made; wait until ncclCommGetAsyncError says ncclSuccess");
  require(state, "ncclCommGetAsyncError");
  require(f.comm_count(nccl, &group->nranks), "ncclCommCount");
  require(f.comm_user_rank(nccl, &group->rank), "ncclCommUserRank");
  require(f.comm_cu_device(nccl, &group->device), "ncclCommCuDevice");
  lasp_transport table = LASP_TRANSPORT_INIT;
  table.name = "nccl";
  table.rank = group->rank;
  table.nranks = group->nranks;
  table.memory = LASP_DEVICE_CUDA;
  table.send = refuse_send;
  table.receive = refuse_receive;
  table.test = refuse_test;
  table.wait = refuse_wait;
  table.cancel = ignore_cancel;
  return {table, std::move(group)};
}

const char *build::nccl() {
  std::string where;
  void *handle = open_library(false, where);
  if (handle == nullptr) return "not in this process so far; libnccl.so.2 is loaded when a comm needs it";
  static const std::string text = [&]() -> std::string {
    const auto get_version = reinterpret_cast<int (*)(int *)>(dlsym(handle, "ncclGetVersion"));
    int version = 0;
    if (get_version == nullptr || get_version(&version) != kNcclSuccess) return "unusable: " + where;
    return nccl_version_text(version) + (version < kOldest ? ", too old (2.18 is needed)" : "") + ", in " + where;
  }();
  return text.c_str();
}

}  // namespace lasp
