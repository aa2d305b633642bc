// Kernels as programs register them when they are loaded: their PTX is taken out of the fat binaries.
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>

#include "runtime/runtime.h"

namespace emulator::runtime {
namespace {

struct Wrapper {
  uint32_t magic, version;
  const std::byte *data;
  void *unused;
};
struct Header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // of all entries
};
struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes;  // 0: not compressed
};
constexpr uint32_t kWrapperMagic = 0x466243b1, kHeaderMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;

struct Registry {
  std::mutex mutex;
  std::map<const void *, CUkern_st *> stubs;
  std::map<const void *, std::unique_ptr<CUkern_st>> kernels;
};
Registry &registry() {
  static auto *const all = new Registry;
  return *all;
}

// What a device of 9.0 makes of the text: 9.0a is best, then what is nearest below it. 0: nothing.
int fitness(std::string_view ptx) {
  constexpr std::string_view kTarget = ".target sm_";
  const size_t begin = ptx.find(kTarget);
  if (begin == std::string_view::npos) return 0;
  int number = 0;
  size_t end = begin + kTarget.size();
  for (; end < ptx.size() && std::isdigit(static_cast<unsigned char>(ptx[end])); ++end)
    number = 10 * number + (ptx[end] - '0');
  if (end < ptx.size() && ptx[end] == 'a') return number == 90 ? 1000 : 0;
  if (end < ptx.size() && ptx[end] == 'f') return 0;
  return number <= 90 ? number : 0;
}

std::string_view best_ptx(const std::byte *data) {
  Header header;
  std::memcpy(&header, data, sizeof header);
  std::string_view best;
  if (header.magic != kHeaderMagic) return best;
  const std::byte *at = data + header.header_bytes, *const end = at + header.bytes;
  while (at < end) {
    Entry entry;
    std::memcpy(&entry, at, sizeof entry);
    const auto *const text = reinterpret_cast<const char *>(at + entry.header_bytes);
    at += entry.header_bytes + entry.bytes;
    if (entry.kind != kPtx || entry.compressed_bytes != 0) continue;
    const std::string_view ptx(text, strnlen(text, entry.bytes));
    if (fitness(ptx) > (best.empty() ? 0 : fitness(best))) best = ptx;
  }
  return best;
}

// What a fat binary's handle points to.
struct Module {
  bool has_ptx = false;
};

}  // namespace

Kernel *find_kernel(const void *function) {
  const std::lock_guard lock(registry().mutex);
  const auto stub = registry().stubs.find(function);
  if (stub != registry().stubs.end()) return stub->second;
  const auto kernel = registry().kernels.find(function);
  return kernel != registry().kernels.end() ? kernel->second.get() : nullptr;
}

cudaError_t facts_of(const Kernel &kernel, const KernelFacts *&to) {
  if (!kernel.has_ptx) return cudaErrorNoKernelImageForDevice;
  try {
    to = &facts(kernel.name);
    return cudaSuccess;
  } catch (const Fault &fault) {
    break_all(fault.what());
    return broken();
  }
}

size_t most_dynamic_shared(const Kernel &kernel, const KernelFacts &facts, int device) {
  const std::lock_guard lock(registry().mutex);
  const auto set = kernel.most_shared.find(device);
  const size_t usual = facts.static_shared < kSharedMemory ? kSharedMemory - facts.static_shared : 0;
  return set != kernel.most_shared.end() ? static_cast<size_t>(set->second) : usual;
}

}  // namespace emulator::runtime

using namespace emulator::runtime;

extern "C" {

void **__cudaRegisterFatBinary(void *binary) {
  Wrapper wrapper;
  std::memcpy(&wrapper, binary, sizeof wrapper);
  auto *const module = new Module;
  if (wrapper.magic == kWrapperMagic) {
    const std::string_view ptx = best_ptx(wrapper.data);
    module->has_ptx = !ptx.empty();
    if (module->has_ptx) emulator::add_module(ptx);
  }
  return reinterpret_cast<void **>(module);
}
void __cudaRegisterFatBinaryEnd(void **) {}
char __cudaInitModule(void **) { return 1; }
// A library that is unloaded takes its text along; nothing here unloads one.
void __cudaUnregisterFatBinary(void **) {}

void __cudaRegisterFunction(void **module, const char *stub, char *, const char *name, int, uint3 *, uint3 *,
                            dim3 *, dim3 *, int *) {
  const std::lock_guard lock(registry().mutex);
  auto kernel = std::make_unique<CUkern_st>();
  kernel->name = name;
  kernel->has_ptx = reinterpret_cast<const Module *>(module)->has_ptx;
  registry().stubs[stub] = kernel.get();
  registry().kernels[kernel.get()] = std::move(kernel);
}
// No kernel here has variables that the host sees.
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}

cudaError_t __cudaGetKernel(cudaKernel_t *to, const void *stub) {
  *to = static_cast<CUkern_st *>(find_kernel(stub));
  return note(*to != nullptr ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *to, const void *function) {
  return call([&] {
    const Kernel *const kernel = find_kernel(function);
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    const emulator::KernelFacts *facts = nullptr;
    if (const cudaError_t error = facts_of(*kernel, facts)) return error;
    *to = {};
    to->sharedSizeBytes = facts->static_shared;
    to->maxThreadsPerBlock = facts->max_threads;
    to->numRegs = 65536 / facts->max_threads < 255 ? 65536 / facts->max_threads : 255;
    to->ptxVersion = to->binaryVersion = 90;
    to->maxDynamicSharedSizeBytes = static_cast<int>(most_dynamic_shared(*kernel, *facts, current_device()));
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute which, int value) {
  return call([&] {
    Kernel *const kernel = find_kernel(function);
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    if (which == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorNotSupported;
    const emulator::KernelFacts *facts = nullptr;
    if (const cudaError_t error = facts_of(*kernel, facts)) return error;
    if (value < 0 || static_cast<size_t>(value) + facts->static_shared > capability().shared_opt_in())
      return cudaErrorInvalidValue;
    const std::lock_guard lock(registry().mutex);
    kernel->most_shared[current_device()] = value;
    return cudaSuccess;
  });
}
