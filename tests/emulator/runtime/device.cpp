// The emulated GPUs as the stand-in CUDA runtime describes them: an H100 in what kernels can see, or less.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/runtime.h"

namespace emulator::runtime {
namespace {

thread_local std::vector<int> contexts;  // the last one is the current one

bool exists(int device) { return device >= 0 && device < device_count(); }

// Bytes and counts that are the same for a property and an attribute.
constexpr int kThreads = 1024, kThreadsOfMultiprocessor = 2048, kBlocksOfMultiprocessor = 32;
constexpr int kRegisters = 65536;
constexpr int kConstant = 64 << 10, kL2 = 50 << 20, kBusBits = 5120, kMemoryClock = 2619000, kClock = 1980000;
constexpr int kGrid[3] = {0x7fffffff, 65535, 65535}, kBlock[3] = {1024, 1024, 64};

int attribute(cudaDeviceAttr which) {
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock: return kThreads;
    case cudaDevAttrMaxBlockDimX: return kBlock[0];
    case cudaDevAttrMaxBlockDimY: return kBlock[1];
    case cudaDevAttrMaxBlockDimZ: return kBlock[2];
    case cudaDevAttrMaxGridDimX: return kGrid[0];
    case cudaDevAttrMaxGridDimY: return kGrid[1];
    case cudaDevAttrMaxGridDimZ: return kGrid[2];
    case cudaDevAttrMaxSharedMemoryPerBlock: return kSharedMemory;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return static_cast<int>(capability().shared_opt_in());
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(capability().shared_of_multiprocessor);
    case cudaDevAttrReservedSharedMemoryPerBlock: return kReservedShared;
    case cudaDevAttrTotalConstantMemory: return kConstant;
    case cudaDevAttrWarpSize: return kLanes;
    case cudaDevAttrMaxRegistersPerBlock: return kRegisters;
    case cudaDevAttrMaxRegistersPerMultiprocessor: return kRegisters;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return kThreadsOfMultiprocessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return kBlocksOfMultiprocessor;
    case cudaDevAttrMultiProcessorCount: return kMultiprocessors;
    case cudaDevAttrClockRate: return kClock;
    case cudaDevAttrMemoryClockRate: return kMemoryClock;
    case cudaDevAttrGlobalMemoryBusWidth: return kBusBits;
    case cudaDevAttrL2CacheSize: return kL2;
    case cudaDevAttrComputeCapabilityMajor: return capability().major;
    case cudaDevAttrComputeCapabilityMinor: return capability().minor;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrStreamPrioritiesSupported: return 1;
    case cudaDevAttrAsyncEngineCount: return 3;
    default: return 0;
  }
}

}  // namespace

int device_count() {
  static const int count = [] {
    const char *const text = std::getenv("LASP_EMULATED_DEVICES");
    return text == nullptr ? 1 : std::atoi(text);
  }();
  return count;
}

const Capability &capability() {
  static const Capability chosen = [] {
    const char *const text = std::getenv("LASP_EMULATED_CAPABILITY");
    const int number = text == nullptr ? 90 : std::atoi(text);
    if (number == 80) return Capability{8, 0, 164 << 10};
    if (number == 86) return Capability{8, 6, 100 << 10};
    if (number == 90) return Capability{9, 0, 228 << 10};
    std::fprintf(stderr, "LASP_EMULATED_CAPABILITY is 80, 86 or 90\n");
    std::exit(1);
  }();
  return chosen;
}

int current_device() { return contexts.empty() ? 0 : contexts.back(); }
void set_current_device(int device) {
  if (contexts.empty()) return contexts.push_back(device);
  contexts.back() = device;
}
void push_device(int device) { contexts.push_back(device); }
int pop_device() {
  if (contexts.empty()) return -1;
  const int device = contexts.back();
  contexts.pop_back();
  return device;
}

}  // namespace emulator::runtime

using namespace emulator::runtime;

cudaError_t cudaGetDeviceCount(int *count) {
  *count = device_count();
  return note(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
  *device = current_device();
  return note(device_count() > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (!exists(device)) return note(cudaErrorInvalidDevice);
  set_current_device(device);
  return note(broken());
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int device) {
  if (!exists(device)) return note(cudaErrorInvalidDevice);
  *value = attribute(which);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *to, int device) {
  if (!exists(device)) return note(cudaErrorInvalidDevice);
  *to = {};
  std::strcpy(to->name, "emulated");
  to->uuid.bytes[0] = static_cast<char>(device + 1);
  to->totalGlobalMem = kDeviceMemory;
  to->sharedMemPerBlock = kSharedMemory, to->sharedMemPerBlockOptin = capability().shared_opt_in();
  to->sharedMemPerMultiprocessor = capability().shared_of_multiprocessor;
  to->reservedSharedMemPerBlock = kReservedShared;
  to->regsPerBlock = to->regsPerMultiprocessor = kRegisters;
  to->warpSize = emulator::kLanes;
  to->maxThreadsPerBlock = kThreads, to->maxThreadsPerMultiProcessor = kThreadsOfMultiprocessor;
  to->maxBlocksPerMultiProcessor = kBlocksOfMultiprocessor;
  for (int i = 0; i < 3; ++i) to->maxGridSize[i] = kGrid[i], to->maxThreadsDim[i] = kBlock[i];
  to->totalConstMem = kConstant;
  to->major = capability().major, to->minor = capability().minor;
  to->multiProcessorCount = kMultiprocessors;
  to->memoryBusWidth = kBusBits, to->l2CacheSize = kL2;
  to->canMapHostMemory = to->concurrentKernels = to->unifiedAddressing = 1;
  to->clusterLaunch = capability().major >= 9;
  to->streamPrioritiesSupported = 1, to->asyncEngineCount = 3;
  to->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *to, int bytes, int device) {
  if (!exists(device)) return note(cudaErrorInvalidDevice);
  std::snprintf(to, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) {
  unsigned number = 0;
  if (std::sscanf(id, "0000:%x:00.0", &number) != 1 || !exists(static_cast<int>(number) - 1))
    return note(cudaErrorInvalidDevice);
  return *device = static_cast<int>(number) - 1, cudaSuccess;
}
// All of them by NVLink.
cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr, int device, int peer) {
  if (!exists(device) || !exists(peer)) return note(cudaErrorInvalidDevice);
  return *value = device != peer, cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { return *version = kVersion, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = kVersion, cudaSuccess; }
