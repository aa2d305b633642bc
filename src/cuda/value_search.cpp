#include "cuda/value_search.h"

#include <algorithm>
#include <cstring>

#include "kernels/values.h"

namespace lasp {
namespace {

constexpr size_t kMostProbes = 64;  // at once

static_assert(static_cast<int32_t>(ValueFault::kNan) == static_cast<int32_t>(gpu::ValueFault::kNan) &&
              static_cast<int32_t>(ValueFault::kInfinity) == static_cast<int32_t>(gpu::ValueFault::kInfinity) &&
              static_cast<int32_t>(ValueFault::kAboveZero) == static_cast<int32_t>(gpu::ValueFault::kAboveZero));

}  // namespace

ValueSearch::ValueSearch(CudaDevice &device) : device_(device) {
  const cuda::Current current(device.primary());
  const cuda::RelaxedCapture relaxed;
  cuda::check_allocation(static_cast<cudaError_t>(gpu::load_value_search()), "loading kernels");
  found_.emplace(kMostProbes * sizeof(uint64_t));
}

ValueSearch::~ValueSearch() {
  const cuda::Current current(device_.primary());
  const cuda::RelaxedCapture relaxed;
  found_.reset();
}

std::optional<ValueFound> ValueSearch::find(std::span<const ValueProbe> probes, cudaStream_t stream) {
  const cuda::Current current(device_.primary());
  for (size_t first = 0; first < probes.size(); first += kMostProbes) {
    std::optional<ValueFound> found =
        find_some(probes.subspan(first, std::min(kMostProbes, probes.size() - first)), stream);
    if (!found) continue;
    found->probe += first;
    return found;
  }
  device_.await(stream);  // the caller may count on it, whatever there was to look at
  return std::nullopt;
}

std::optional<ValueFound> ValueSearch::find_some(std::span<const ValueProbe> probes, cudaStream_t stream) {
  const size_t bytes = probes.size() * sizeof(uint64_t);
  cuda::check(cudaMemsetAsync(found_->device(), 0xff, bytes, stream), "looking for values");
  for (size_t i = 0; i < probes.size(); ++i) {
    const ValueProbe &p = probes[i];
    gpu::ValueSearch search;
    search.data = p.data;
    search.strides = {p.layout.batch, p.layout.token, p.layout.head};
    search.batch = p.batch;
    search.tokens = p.tokens;
    search.heads = p.heads;
    search.dim = p.dim;
    search.dtype = static_cast<gpu::DType>(p.type);
    search.is_decay = p.is_decay;
    search.first = reinterpret_cast<uint64_t *>(found_->device()) + i;
    cuda::check(static_cast<cudaError_t>(gpu::launch_value_search(search, stream)), "looking for values");
  }
  cuda::check(cudaMemcpyAsync(found_->host(), found_->device(), bytes, cudaMemcpyDeviceToHost, stream),
              "looking for values");
  device_.await(stream);
  for (size_t i = 0; i < probes.size(); ++i) {
    uint64_t first = 0;
    std::memcpy(&first, found_->host() + i * sizeof first, sizeof first);
    if (first != gpu::kNoFault)
      return ValueFound{i, static_cast<int64_t>(first / gpu::kFaults),
                        static_cast<ValueFault>(first % gpu::kFaults)};
  }
  return std::nullopt;
}

void ValueSearch::read(void *to, const void *from, size_t bytes, cudaStream_t stream) {
  const cuda::Current current(device_.primary());
  device_.await(stream);
  cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "reading offsets");
}

}  // namespace lasp
