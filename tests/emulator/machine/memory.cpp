// Which memory kernels may touch, and where addresses lead.
#include <atomic>
#include <cstdio>
#include <mutex>
#include <shared_mutex>

#include "machine/machine.h"

namespace emulator {
namespace {

std::shared_mutex mutex;
// Allocations by where they begin; never destroyed, since memory is freed while the process ends.
std::map<uint64_t, size_t> &allocations() {
  static auto *all = new std::map<uint64_t, size_t>;
  return *all;
}
std::atomic<uint64_t> changes{0};

// The allocation that the thread found last.
struct Found {
  uint64_t begin = 1, end = 0, version = 0;
};
thread_local Found found;

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

[[noreturn]] void out_of_bounds(const char *what, uint64_t address, size_t bytes) {
  throw Fault(std::string(what) + " of " + std::to_string(bytes) + " bytes at " + hex(address) +
              " is out of bounds");
}
void check_alignment(uint64_t address, size_t bytes) {
  if ((bytes & (bytes - 1)) == 0 && bytes <= 16 && address % bytes != 0)
    throw Fault("address " + hex(address) + " is no multiple of " + std::to_string(bytes));
}

}  // namespace

void add_memory(const void *data, size_t bytes) {
  const std::unique_lock lock(mutex);
  allocations()[reinterpret_cast<uint64_t>(data)] = bytes;
  ++changes;
}
void remove_memory(const void *data) {
  const std::unique_lock lock(mutex);
  allocations().erase(reinterpret_cast<uint64_t>(data));
  ++changes;
}
size_t memory_at(const void *data, const void **begin) {
  const std::shared_lock lock(mutex);
  const auto address = reinterpret_cast<uint64_t>(data);
  auto next = allocations().upper_bound(address);
  if (next == allocations().begin()) return 0;
  --next;
  if (address >= next->first + next->second) return 0;
  if (begin != nullptr) *begin = reinterpret_cast<const void *>(next->first);
  return next->second;
}

std::byte *global_memory(uint64_t address, size_t bytes, bool write) {
  check_alignment(address, bytes);
  if (address < found.begin || address >= found.end || bytes > found.end - address || found.version != changes) {
    const void *begin = nullptr;
    const uint64_t version = changes;
    const size_t size = memory_at(reinterpret_cast<const void *>(address), &begin);
    const auto first = reinterpret_cast<uint64_t>(begin);
    if (size == 0 || bytes > first + size - address) out_of_bounds(write ? "a store" : "a load", address, bytes);
    found = {first, first + size, version};
  }
  return reinterpret_cast<std::byte *>(address);
}

namespace {

// The block of the cluster whose shared memory it is.
const Block &owner_of(const Block &block, uint64_t address, size_t bytes) {
  const uint64_t rank = address >> 24;
  if (rank == 0) return block;
  if (rank > block.cluster->blocks.size()) out_of_bounds("an access to a cluster's shared memory", address, bytes);
  const Block &owner = *block.cluster->blocks[rank - 1];
  for (const Warp &w : owner.warps) {
    if (w.alive != 0) return owner;
  }
  throw Fault("the shared memory at " + hex(address) + " is that of a block that has ended");
}

}  // namespace

std::byte *shared_memory(const Block &block, uint64_t address, size_t bytes) {
  check_alignment(address, bytes);
  const Block &owner = owner_of(block, address, bytes);
  const uint64_t offset = (address & 0xffffff) - kSharedBase;
  if (offset > owner.shared.size() || bytes > owner.shared.size() - offset)
    out_of_bounds("an access to shared memory", address, bytes);
  return const_cast<std::byte *>(owner.shared.data()) + offset;
}

std::byte *local_memory(const Warp &warp, int lane, uint64_t address, size_t bytes) {
  check_alignment(address, bytes);
  const uint64_t offset =
      address - reinterpret_cast<uint64_t>(warp.local) - static_cast<uint64_t>(lane) * warp.local_bytes;
  if (offset > warp.local_bytes || bytes > warp.local_bytes - offset)
    out_of_bounds("an access to local memory", address, bytes);
  return reinterpret_cast<std::byte *>(address);
}

const std::byte *parameter_memory(const Block &block, uint64_t address, size_t bytes) {
  check_alignment(address, bytes);
  const uint64_t offset = address - reinterpret_cast<uint64_t>(block.parameters);
  if (offset > block.parameter_bytes || bytes > block.parameter_bytes - offset)
    out_of_bounds("a load of a parameter", address, bytes);
  return reinterpret_cast<const std::byte *>(address);
}

std::byte *generic_memory(const Block &block, uint64_t address, size_t bytes, bool write) {
  if (address >> 56 == kSharedWindow >> 56) return shared_memory(block, address - kSharedWindow, bytes);
  return global_memory(address, bytes, write);
}

}  // namespace emulator
