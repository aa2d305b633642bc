#include "base/build_info.h"

#include <string>

#include "base/thread_pool.h"

// Present when the BLAS in the process is OpenBLAS, so that any CBLAS links. The build may give them a prefix.
extern "C" {
[[gnu::weak]] char *openblas_get_config(void);
[[gnu::weak]] char *openblas_get_corename(void);
}

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

const char *blas() {
  static const std::string text = [] {
    if (openblas_get_config == nullptr) return std::string("a CBLAS library other than OpenBLAS");
    const char *const core = openblas_get_corename != nullptr ? openblas_get_corename() : nullptr;
    return std::string(openblas_get_config()) + (core != nullptr ? std::string(", core ") + core : std::string());
  }();
  return text.c_str();
}

int32_t cpu_count() { return usable_cpus(); }

}  // namespace lasp::build
