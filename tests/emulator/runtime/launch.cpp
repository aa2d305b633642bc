// Launches of the stand-in CUDA runtime. LASP_EMULATOR_LAUNCHES=FILE adds a line for each to the file; with
// LASP_EMULATOR_DRY=1 kernels do not run.
#include <cxxabi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "runtime/stream.h"

namespace emulator::runtime {
namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> configurations;  // between <<< >>> and the stub's call

constexpr unsigned kMostThreads = 1024, kMostOfZ = 64, kMostBlocks = 65535, kLargestCluster = 8;

bool any_zero(const Dim3 &d) { return d.x == 0 || d.y == 0 || d.z == 0; }
Dim3 of(const dim3 &d) { return {d.x, d.y, d.z}; }

cudaError_t check(const Launch &launch, const KernelFacts &facts, size_t most_shared) {
  const Dim3 &g = launch.grid, &b = launch.block, &c = launch.cluster;
  if (any_zero(g) || any_zero(b) || any_zero(c)) return cudaErrorInvalidConfiguration;
  if (g.x > 0x7fffffffu || g.y > kMostBlocks || g.z > kMostBlocks) return cudaErrorInvalidConfiguration;
  if (b.x > kMostThreads || b.y > kMostThreads || b.z > kMostOfZ) return cudaErrorInvalidConfiguration;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  if (threads > kMostThreads) return cudaErrorInvalidConfiguration;
  if (threads > static_cast<uint64_t>(facts.max_threads)) return cudaErrorInvalidValue;
  if (uint64_t{c.x} * c.y * c.z > (capability().major >= 9 ? kLargestCluster : 1))
    return cudaErrorInvalidClusterSize;
  if (g.x % c.x != 0 || g.y % c.y != 0 || g.z % c.z != 0) return cudaErrorInvalidValue;
  return launch.dynamic_shared <= most_shared ? cudaSuccess : cudaErrorInvalidValue;
}

std::vector<std::byte> packed(const KernelFacts &facts, void *const *arguments) {
  std::vector<std::byte> parameters;
  for (size_t n = 0; n < facts.parameters.size(); ++n) {
    const auto &[offset, bytes] = facts.parameters[n];
    if (parameters.size() < offset + bytes) parameters.resize(offset + bytes);
    std::memcpy(parameters.data() + offset, arguments[n], bytes);
  }
  return parameters;
}

void write_line(const Launch &launch, double seconds) {
  static const char *const path = std::getenv("LASP_EMULATOR_LAUNCHES");
  if (path == nullptr) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::FILE *const file = std::fopen(path, "a");
  if (file == nullptr) return;
  const std::string mangled(launch.kernel);
  int status = 0;
  char *const name = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  const Dim3 &g = launch.grid, &b = launch.block, &c = launch.cluster;
  std::fprintf(file, "%s grid %u %u %u block %u %u %u cluster %u %u %u shared %zu seconds %.6f\n",
               name != nullptr ? name : mangled.c_str(), g.x, g.y, g.z, b.x, b.y, b.z, c.x, c.y, c.z,
               launch.dynamic_shared, seconds);
  std::free(name);
  std::fclose(file);
}

void run_timed(const Launch &launch) {
  const auto begin = std::chrono::steady_clock::now();
  static const bool dry = std::getenv("LASP_EMULATOR_DRY") != nullptr;
  if (!dry) run(launch);
  write_line(launch, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

cudaError_t launch_kernel(const void *function, const Configuration &how, const Dim3 &cluster,
                          void *const *arguments) {
  const Kernel *const kernel = find_kernel(function);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  const KernelFacts *facts = nullptr;
  if (const cudaError_t error = facts_of(*kernel, facts)) return error;
  const int device = queue_of(how.stream).device();
  if (device != current_device()) return cudaErrorInvalidResourceHandle;
  Launch launch;
  launch.kernel = kernel->name;
  launch.grid = of(how.grid), launch.block = of(how.block), launch.cluster = cluster;
  launch.dynamic_shared = how.shared, launch.device = device;
  if (const cudaError_t error = check(launch, *facts, most_dynamic_shared(*kernel, *facts, device))) return error;
  launch.parameters = packed(*facts, arguments);
  return enqueue(
      how.stream, cudaGraphNodeTypeKernel, [launch = std::move(launch)] { run_timed(launch); }, kernel);
}

Dim3 cluster_of(const cudaLaunchConfig_t &config) {
  for (unsigned n = 0; n < config.numAttrs; ++n) {
    const cudaLaunchAttribute &attribute = config.attrs[n];
    if (attribute.id == cudaLaunchAttributeClusterDimension)
      return {attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z};
  }
  return {};
}

}  // namespace
}  // namespace emulator::runtime

using namespace emulator::runtime;

extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st *stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (configurations.empty()) return cudaErrorMissingConfiguration;
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid, *block = last.block, *shared = last.shared;
  return *static_cast<cudaStream_t *>(stream) = last.stream, cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
  return call([&] { return launch_kernel(kernel, {grid, block, shared, stream}, {}, arguments); });
}
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
  return call([&] { return launch_kernel(function, {grid, block, shared, stream}, {}, arguments); });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  return call([&] {
    const Configuration how = {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream};
    return launch_kernel(function, how, cluster_of(*config), arguments);
  });
}

cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const cudaLaunchConfig_t *config) {
  return call([&] {
    if (find_kernel(function) == nullptr) return cudaErrorInvalidDeviceFunction;
    const emulator::Dim3 cluster = cluster_of(*config);
    const unsigned blocks = cluster.x * cluster.y * cluster.z;
    if (blocks == 0 || blocks > kLargestCluster) return cudaErrorInvalidClusterSize;
    *clusters = kMultiprocessors / static_cast<int>(blocks);
    return cudaSuccess;
  });
}
