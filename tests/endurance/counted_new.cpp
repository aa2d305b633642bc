// The operators. liblasp takes operator new from the process like everything else of the C++ runtime, so what the
// program defines is what it uses; interposition itself is tested in allocation_test.cpp.
#include "counted_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> live{0};

thread_local int inside = 0;
thread_local int64_t until_failure = 0, failures = 0, quiet_failures = 0;
thread_local bool keeps_failing = false;

bool refuses() {
  if (inside == 0 || until_failure == 0) return false;
  if (until_failure > 1) {
    --until_failure;
    return false;
  }
  if (!keeps_failing) until_failure = 0;
  return true;
}

void refuse() {
  ++failures;
  throw std::bad_alloc();
}

void *counted(void *memory) {
  if (memory == nullptr) throw std::bad_alloc();
  live.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void release(void *memory) {
  if (memory == nullptr) return;
  live.fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

namespace allocation {

int64_t live_blocks() { return live.load(std::memory_order_relaxed); }

void fail_at(int64_t n, bool for_good) {
  until_failure = n;
  keeps_failing = for_good;
  failures = quiet_failures = 0;
}

int64_t failed() { return failures; }
int64_t failed_quietly() { return quiet_failures; }

InLibrary::InLibrary() { ++inside; }
InLibrary::~InLibrary() { --inside; }

}  // namespace allocation

// Not inlined, because gcc 12 would take malloc and free for a mismatch of the operators that they implement.
#define NOINLINE __attribute__((noinline))
NOINLINE void *operator new(std::size_t bytes) {
  if (refuses()) refuse();
  return counted(std::malloc(bytes ? bytes : 1));
}
NOINLINE void *operator new(std::size_t bytes, std::align_val_t alignment) {
  if (refuses()) refuse();
  void *memory = nullptr;
  const int error = posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes ? bytes : 1);
  return counted(error == 0 ? memory : nullptr);
}
NOINLINE void *operator new(std::size_t bytes, const std::nothrow_t &) noexcept {
  if (refuses()) {
    ++quiet_failures;
    return nullptr;
  }
  void *const memory = std::malloc(bytes ? bytes : 1);
  return memory != nullptr ? counted(memory) : nullptr;
}
NOINLINE void operator delete(void *memory, const std::nothrow_t &) noexcept { release(memory); }
NOINLINE void operator delete(void *memory) noexcept { release(memory); }
NOINLINE void operator delete(void *memory, std::size_t) noexcept { release(memory); }
NOINLINE void operator delete(void *memory, std::align_val_t) noexcept { release(memory); }
NOINLINE void operator delete(void *memory, std::size_t, std::align_val_t) noexcept { release(memory); }
