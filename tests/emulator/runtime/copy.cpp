// Copies and fills of the stand-in CUDA runtime.
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/stream.h"

namespace emulator::runtime {
namespace {

constexpr size_t kStagedAtOnce = 64 << 10, kPage = 4096, kWorthGiving = 1 << 20;

bool may_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if ((to_device && !is_allocation(to)) || (from_device && !is_allocation(from))) return false;
  return within_allocation(to, bytes) && within_allocation(from, bytes);
}

bool captured(cudaStream_t stream) {
  const std::lock_guard lock(capture_mutex());
  return in_capture(stream);
}

// Memory that is not pinned has been read, or written, when the call returns; a little is taken along instead.
cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!may_copy(to, from, bytes, kind)) return cudaErrorInvalidValue;
  const bool pageable = !is_allocation(from) || !is_allocation(to);
  if (pageable && is_allocation(to) && bytes <= kStagedAtOnce && !captured(stream)) {
    const auto *const begin = static_cast<const std::byte *>(from);
    std::vector<std::byte> staged(begin, begin + bytes);
    return enqueue(stream, cudaGraphNodeTypeMemcpy,
                   [to, staged = std::move(staged)] { std::memcpy(to, staged.data(), staged.size()); });
  }
  const cudaError_t error = enqueue(stream, cudaGraphNodeTypeMemcpy, [=] { std::memmove(to, from, bytes); });
  if (error == cudaSuccess && pageable && !captured(stream)) queue_of(stream).wait();
  return error;
}

// Whole pages of large memory that becomes zero are given back.
void fill(void *to, int value, size_t bytes) {
  auto *begin = static_cast<std::byte *>(to), *const end = begin + bytes;
  if (value != 0 || bytes < kWorthGiving || !is_lazy(to)) {
    std::memset(to, value, bytes);
    return;
  }
  std::byte *const first = begin + (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
  std::byte *const last = end - reinterpret_cast<uintptr_t>(end) % kPage;
  std::memset(begin, 0, static_cast<size_t>(first - begin));
  madvise(first, static_cast<size_t>(last - first), MADV_DONTNEED);
  std::memset(last, 0, static_cast<size_t>(end - last));
}

cudaError_t set(void *to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!is_allocation(to) || !within_allocation(to, bytes)) return cudaErrorInvalidValue;
  return enqueue(stream, cudaGraphNodeTypeMemset, [=] { fill(to, value, bytes); });
}

}  // namespace
}  // namespace emulator::runtime

using namespace emulator::runtime;

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call([&] { return copy(to, from, bytes, kind, stream); });
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
  return call([&] { return copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream); });
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  return call([&] {
    if (const cudaError_t error = refuse_unsafe()) return error;
    if (const cudaError_t error = copy(to, from, bytes, kind, nullptr)) return error;
    if (kind != cudaMemcpyDeviceToDevice) queue_of(nullptr).wait();
    return broken();
  });
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return call([&] {
    if (width == 0 || height == 0) return cudaSuccess;
    if (width > pitch || !is_allocation(to) || !within_allocation(to, pitch * (height - 1) + width))
      return cudaErrorInvalidValue;
    return enqueue(stream, cudaGraphNodeTypeMemset, [=] {
      for (size_t row = 0; row < height; ++row) fill(static_cast<std::byte *>(to) + row * pitch, value, width);
    });
  });
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return call([&] { return set(to, value, bytes, stream); });
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  return call([&] {
    if (const cudaError_t error = refuse_unsafe()) return error;
    return set(to, value, bytes, nullptr);
  });
}
