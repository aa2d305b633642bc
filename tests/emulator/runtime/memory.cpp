// Memory of the stand-in CUDA runtime. What is fresh is NaN, so that use of it shows; large allocations read as
// zero instead, and take no memory of the machine until they are written.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "runtime/capture.h"
#include "runtime/runtime.h"
#include "runtime/stream.h"

namespace emulator::runtime {
namespace {

constexpr size_t kAlignment = 256, kLazyFrom = size_t{64} << 20;

struct Allocation {
  size_t bytes = 0;
  int device = 0;
  bool host = false, lazy = false;
};

// Never torn down, as threads of streams.
struct Memory {
  std::mutex mutex;
  std::map<const std::byte *, Allocation> allocations;
  std::map<int, size_t> used;  // by device
};
Memory &memory() {
  static auto *const all = new Memory;
  return *all;
}

// The allocation that contains the address. With the mutex held.
const std::pair<const std::byte *const, Allocation> *find(const void *data) {
  const auto *const address = static_cast<const std::byte *>(data);
  auto found = memory().allocations.upper_bound(address);
  if (found == memory().allocations.begin()) return nullptr;
  --found;
  return address < found->first + found->second.bytes ? &*found : nullptr;
}

void *fresh(size_t bytes, bool lazy) {
  void *data = nullptr;
  if (!lazy) {
    if (posix_memalign(&data, kAlignment, bytes) != 0) return nullptr;
    return std::memset(data, 0xff, bytes);
  }
  data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

cudaError_t allocate(void **to, size_t bytes, bool host) {
  *to = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = refuse_unsafe()) return error;
  const std::lock_guard lock(memory().mutex);
  const Allocation made = {bytes, current_device(), host, bytes >= kLazyFrom};
  size_t &used = memory().used[made.device];
  if (!host && bytes > kDeviceMemory - used) return cudaErrorMemoryAllocation;
  void *const data = fresh(bytes, made.lazy);
  if (data == nullptr) return cudaErrorMemoryAllocation;
  if (!host) used += bytes;
  memory().allocations[static_cast<const std::byte *>(data)] = made;
  add_memory(data, bytes);
  return *to = data, cudaSuccess;
}

// Waits for the device, as CUDA does.
cudaError_t release(void *data, bool host) {
  if (data == nullptr) return cudaSuccess;
  if (const cudaError_t error = refuse_unsafe()) return error;
  wait_for_device(current_device());
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().allocations.find(static_cast<const std::byte *>(data));
  if (found == memory().allocations.end() || found->second.host != host) return cudaErrorInvalidValue;
  const Allocation gone = found->second;
  memory().allocations.erase(found);
  remove_memory(data);
  if (!host) memory().used[gone.device] -= gone.bytes;
  gone.lazy ? static_cast<void>(munmap(data, gone.bytes)) : std::free(data);
  return cudaSuccess;
}

}  // namespace

void add_mapping(void *data, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  memory().allocations[static_cast<const std::byte *>(data)] = {bytes, current_device(), false, false};
  add_memory(data, bytes);
}
void remove_mapping(void *data) {
  const std::lock_guard lock(memory().mutex);
  memory().allocations.erase(static_cast<const std::byte *>(data));
  remove_memory(data);
}

bool within_allocation(const void *data, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  const auto *const found = find(data);
  if (found == nullptr) return true;
  return bytes <= static_cast<size_t>(found->first + found->second.bytes - static_cast<const std::byte *>(data));
}

bool is_allocation(const void *data) {
  const std::lock_guard lock(memory().mutex);
  return find(data) != nullptr;
}

bool is_lazy(const void *data) {
  const std::lock_guard lock(memory().mutex);
  const auto *const found = find(data);
  return found != nullptr && found->second.lazy;
}

}  // namespace emulator::runtime

using namespace emulator::runtime;

cudaError_t cudaMalloc(void **to, size_t bytes) {
  return call([&] { return allocate(to, bytes, false); });
}
cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned) {
  return call([&] { return allocate(to, bytes, true); });
}
cudaError_t cudaFree(void *data) {
  return call([&] { return release(data, false); });
}
cudaError_t cudaFreeHost(void *data) {
  return call([&] { return release(data, true); });
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  return call([&] {
    const std::lock_guard lock(memory().mutex);
    *total = kDeviceMemory;
    *free = kDeviceMemory - memory().used[current_device()];
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *to, const void *data) {
  return call([&] {
    *to = {};
    to->type = cudaMemoryTypeUnregistered;
    to->device = cudaInvalidDeviceId;
    const std::lock_guard lock(memory().mutex);
    const auto *const found = find(data);
    if (found == nullptr) return cudaSuccess;
    to->type = found->second.host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    to->device = found->second.device;
    to->devicePointer = const_cast<void *>(data);
    if (found->second.host) to->hostPointer = to->devicePointer;
    return cudaSuccess;
  });
}
