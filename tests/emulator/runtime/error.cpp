// Errors of the stand-in CUDA runtime: a thread's last one, the one that stays, and their names.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>

#include "runtime/runtime.h"

namespace emulator::runtime {
namespace {

thread_local std::map<const void *, cudaError_t> last;  // by where the caller's program or library lies
std::atomic<cudaError_t> lasting = cudaSuccess;

struct Text {
  cudaError_t error;
  const char *name, *text;
};
#define LASP_TEXT(error, text) \
  { error, #error, text }
constexpr Text kTexts[] = {
    LASP_TEXT(cudaSuccess, "no error"),
    LASP_TEXT(cudaErrorInvalidValue, "invalid argument"),
    LASP_TEXT(cudaErrorMemoryAllocation, "out of memory"),
    LASP_TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    LASP_TEXT(cudaErrorInvalidDeviceFunction, "invalid device function"),
    LASP_TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    LASP_TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    LASP_TEXT(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    LASP_TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    LASP_TEXT(cudaErrorSymbolNotFound, "named symbol not found"),
    LASP_TEXT(cudaErrorNotReady, "device not ready"),
    LASP_TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    LASP_TEXT(cudaErrorNotSupported, "operation not supported"),
    LASP_TEXT(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    LASP_TEXT(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    LASP_TEXT(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    LASP_TEXT(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    LASP_TEXT(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    LASP_TEXT(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    LASP_TEXT(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    LASP_TEXT(cudaErrorStreamCaptureWrongThread,
              "attempt to terminate a thread-local capture sequence from another thread"),
    LASP_TEXT(cudaErrorUnknown, "unknown error"),
};
#undef LASP_TEXT

const void *module_of(const void *address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

cudaError_t last_of(const void *caller) {
  if (broken() != cudaSuccess) return broken();
  const auto found = last.empty() ? last.end() : last.find(module_of(caller));
  return found != last.end() ? found->second : cudaSuccess;
}

const Text &text_of(cudaError_t error) {
  static constexpr Text kNone = {cudaErrorUnknown, "unrecognized error code", "unrecognized error code"};
  for (const Text &text : kTexts)
    if (text.error == error) return text;
  return kNone;
}

}  // namespace

cudaError_t remember(cudaError_t error, const void *caller) { return last[module_of(caller)] = error; }

cudaError_t broken() { return lasting; }

void break_all(const char *why) {
  cudaError_t none = cudaSuccess;
  if (lasting.compare_exchange_strong(none, cudaErrorLaunchFailure)) std::fprintf(stderr, "emulator: %s\n", why);
}

}  // namespace emulator::runtime

using namespace emulator::runtime;

cudaError_t cudaGetLastError() {
  const void *const caller = __builtin_return_address(0);
  const cudaError_t error = last_of(caller);
  if (error != cudaSuccess) last.erase(module_of(caller));
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_of(__builtin_return_address(0)); }
const char *cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char *cudaGetErrorString(cudaError_t error) { return text_of(error).text; }
