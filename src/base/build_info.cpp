#include "base/build_info.h"

#include <dlfcn.h>

#include <string>

#include "base/thread_pool.h"

namespace lasp::build {

const char *compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

// The build type and sanitizers, as the build system states them.
#ifndef LASP_BUILD_FLAGS
#define LASP_BUILD_FLAGS "not stated by the build"
#endif
const char *flags() { return LASP_BUILD_FLAGS; }

// Asked by name, so that any CBLAS links.
const char *blas() {
  static const std::string text = [] {
    const auto config = reinterpret_cast<char *(*)()>(dlsym(RTLD_DEFAULT, "openblas_get_config"));
    const auto core = reinterpret_cast<char *(*)()>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
    if (config == nullptr) return std::string("a CBLAS library other than OpenBLAS");
    return std::string(config()) + (core != nullptr ? std::string(", core ") + core() : std::string());
  }();
  return text.c_str();
}

int32_t cpu_count() { return usable_cpus(); }

}  // namespace lasp::build
