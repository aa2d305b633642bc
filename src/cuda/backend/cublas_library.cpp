#include "cuda/backend/cublas_library.h"

#include <dlfcn.h>

#include <mutex>
#include <optional>
#include <type_traits>

#include "base/status.h"

namespace lasp {
namespace {

void *load(std::span<const char *const> names) {
  for (const char *name : names)
    if (void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD); handle != nullptr) return handle;
  for (const char *name : names)
    if (void *handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL); handle != nullptr) return handle;
  return nullptr;
}

// The name of a function that is missing; "" where all are there.
std::string take_functions(CublasLibrary &library, void *handle) {
  std::string missing;
  const auto find = [&](auto &to, const char *name) {
    void *address = dlsym(handle, name);
    if (address == nullptr && missing.empty()) missing = name;
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(address);
  };
  find(library.create, "cublasCreate_v2");
  find(library.destroy, "cublasDestroy_v2");
  find(library.get_version, "cublasGetVersion_v2");
  find(library.set_stream, "cublasSetStream_v2");
  find(library.set_workspace, "cublasSetWorkspace_v2");
  find(library.set_math_mode, "cublasSetMathMode");
  find(library.multiply, "cublasSgemmStridedBatched");
  return missing;
}

}  // namespace

CublasLibrary load_cublas(std::span<const char *const> names, const char *what) {
  void *const handle = load(names);
  if (handle == nullptr) {
    std::string all;
    for (const char *name : names) all += (all.empty() ? "" : " nor ") + std::string(name);
    throw fail(LASP_ERROR_LIBRARY_MISSING, "%s; neither %s is in this process or found by the loader", what,
               all.c_str());
  }
  CublasLibrary library{};
  if (const std::string missing = take_functions(library, handle); !missing.empty())
    throw fail(LASP_ERROR_LIBRARY_MISSING, "%s; the one that is there lacks %s", what, missing.c_str());
  return library;
}

const CublasLibrary &find_cublas(const char *what) {
  static constexpr const char *kNames[] = {"libcublas.so.13", "libcublas.so.12"};
  static std::mutex mutex;
  static auto &found = *new std::optional<CublasLibrary>;
  const std::lock_guard lock(mutex);
  if (!found) found = load_cublas(kNames, what);
  return *found;
}

}  // namespace lasp
