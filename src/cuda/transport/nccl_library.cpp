#include "cuda/transport/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/build_info.h"
#include "base/status.h"
#include "comm/transport.h"

namespace lasp {
namespace {

constexpr int32_t kOldest = 21800;

// An NCCL that is loaded: where it lies, and a handle for dlsym. A handle is never closed: the communicator
// outlives any moment at which it could be.
struct Loaded {
  std::string path;
  const void *base;
  void *handle;
};

// Every NCCL of this process, whoever brought it: also those that a library loaded for itself alone, as Python's
// extension modules do, or that are linked into another library, as long as that shows their functions.
std::vector<Loaded> loaded_nccl() {
  std::vector<std::string> names;  // "" is the program
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *all) {
        static_cast<std::vector<std::string> *>(all)->emplace_back(info->dlpi_name != nullptr ? info->dlpi_name
                                                                                              : "");
        return 0;
      },
      &names);
  std::vector<Loaded> found;
  for (const std::string &name : names) {
    void *handle = dlopen(name.empty() ? nullptr : name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;  // the kernel's own, or gone since
    Dl_info where{};
    // A library shows what those that it needs show: only the one that holds the function counts.
    void *function = dlsym(handle, "ncclGetVersion");
    const bool is_new = function != nullptr && dladdr(function, &where) != 0 &&
                        std::none_of(found.begin(), found.end(),
                                     [&](const Loaded &other) { return other.base == where.dli_fbase; });
    if (is_new) found.push_back({where.dli_fname, where.dli_fbase, handle});
  }
  return found;
}

// The one there is. A communicator must be used by the very library that made it, so that none is loaded here, and
// of two none is taken.
Loaded only_nccl() {
  const std::vector<Loaded> found = loaded_nccl();
  if (found.empty())
    throw fail(
        LASP_ERROR_LIBRARY_MISSING,
        "nccl: no library in this process shows NCCL's functions, so that the one that made the communicator "
        "cannot be found; give its functions in `functions`");
  if (found.size() > 1)
    throw fail(
        LASP_ERROR_LIBRARY_MISSING,
        "nccl: this process has loaded %zu, %s and %s among them, and a communicator is used by the one that "
        "made it alone; give its functions in `functions`",
        found.size(), found[0].path.c_str(), found[1].path.c_str());
  return found[0];
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
    const Loaded nccl = only_nccl();
    where = nccl.path;
    library = from_handle(nccl.handle, where);
  }
  int version = 0;
  if (library.get_version(&version) != kNcclSuccess)
    throw fail(LASP_ERROR_LIBRARY_MISSING, "nccl: ncclGetVersion of %s failed", where.c_str());
  if (version < kOldest)
    throw fail(LASP_ERROR_LIBRARY_MISSING, "nccl: %s has version code %d; NCCL 2.18 (%d) or later is needed",
               where.c_str(), version, kOldest);
  library.version = version;
  library.where = where;
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
  // What is found may change; what was returned stays, for as long as the process.
  static std::mutex mutex;
  static auto &texts = *new std::set<std::string>;
  std::string text;
  for (const Loaded &nccl : loaded_nccl()) {
    const auto get_version = reinterpret_cast<int (*)(int *)>(dlsym(nccl.handle, "ncclGetVersion"));
    int version = 0;
    if (!text.empty()) text += "; ";
    if (get_version(&version) != kNcclSuccess) {
      text += "unusable: " + nccl.path;
      continue;
    }
    text +=
        nccl_version_text(version) + (version < kOldest ? ", too old (2.18 is needed)" : "") + ", in " + nccl.path;
  }
  if (text.empty()) return "not in this process so far; it is the caller's to load";
  const std::lock_guard lock(mutex);
  return texts.insert(std::move(text)).first->c_str();
}

}  // namespace lasp
