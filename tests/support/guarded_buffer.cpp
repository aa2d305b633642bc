// Under AddressSanitizer nothing follows the data, so that its own red zone catches reads beyond the end as well.
#include "support/guarded_buffer.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "support/device.h"

namespace lasp_test {
namespace {

constexpr uint8_t kCanary = 0xa5;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kMostBehind = 0;
#elif defined(__SANITIZE_THREAD__)
constexpr size_t kMostBehind = GuardedBuffer::kGuard;  // it looks at every byte, and other builds find an overrun
#else
constexpr size_t kMostBehind = SIZE_MAX;
#endif

// Each byte is the one before it: memcmp is fast, under sanitizers too.
bool all_equal(const uint8_t *from, size_t count, uint8_t value) {
  return count == 0 || (from[0] == value && std::memcmp(from, from + 1, count - 1) == 0);
}

}  // namespace

bool on_cuda() {
  static const bool cuda = [] {
    const char *const device = std::getenv("LASP_TEST_DEVICE");
    return device != nullptr && std::string_view(device) == "cuda";
  }();
  return cuda;
}

void keep_freed_memory() {
#if defined(M_TRIM_THRESHOLD) && defined(M_MMAP_THRESHOLD)
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
#endif
}

void GuardedBuffer::DeviceFree::operator()(void *memory) const { gpu::release(memory, bytes); }

void GuardedBuffer::Free::operator()(uint8_t *memory) const { std::free(memory); }

GuardedBuffer::GuardedBuffer(size_t bytes, size_t alignment, size_t misalign, size_t behind)
    : bytes_(bytes),
      front_((kGuard + alignment - 1) / alignment * alignment + misalign),
      back_(std::min(behind, kMostBehind)) {
  void *memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void *)), front_ + bytes_ + back_) != 0)
    throw std::bad_alloc();
  memory_.reset(static_cast<uint8_t *>(memory));
  std::memset(memory_.get(), kCanary, front_);
  std::memset(memory_.get() + front_ + bytes_, kCanary, back_);
  poison();
  if (on_cuda()) make_device_copy(alignment);
}

// Poisoned at once: what is read before upload() has run is a NaN, not an earlier buffer's content.
void GuardedBuffer::make_device_copy(size_t alignment) {
  const size_t bytes = front_ + bytes_ + back_ + alignment;
  device_ = {gpu::allocate(bytes), DeviceFree{bytes}};
  const auto base = reinterpret_cast<uintptr_t>(device_.get());
  device_at_ =
      static_cast<uint8_t *>(device_.get()) + ((base + alignment - 1) / alignment * alignment - base) + front_;
  gpu::fill(device_.get(), kPoison, bytes, nullptr);
  gpu::wait(nullptr);
}

void GuardedBuffer::upload(lasp_stream stream) {
  if (!device_) return;
  const void *const from = staged_ ? staged_.get() : memory_.get();
  gpu::copy(device_at_ - front_, from, front_ + bytes_ + back_, stream);
}

void GuardedBuffer::stage() {
  if (!device_) return;
  const size_t bytes = front_ + bytes_ + back_;
  if (!staged_) staged_ = {gpu::allocate(bytes), DeviceFree{bytes}};
  gpu::copy(staged_.get(), memory_.get(), bytes, nullptr);
  gpu::fill(device_at_ - front_, kPoison, bytes, nullptr);
  gpu::wait(nullptr);
}

void GuardedBuffer::download(lasp_stream stream) {
  if (!device_) return;
  gpu::copy(memory_.get(), device_at_ - front_, front_ + bytes_ + back_, stream);
  gpu::wait(stream);
}

void GuardedBuffer::poison(uint8_t value) {
  if (bytes_ != 0) std::memset(data(), value, bytes_);
}

bool GuardedBuffer::poisoned(size_t begin, size_t end) const {
  return all_equal(data() + begin, end - begin, kPoison);
}

bool GuardedBuffer::canaries_intact() const {
  return all_equal(memory_.get(), front_, kCanary) && all_equal(data() + bytes_, back_, kCanary);
}

}  // namespace lasp_test
