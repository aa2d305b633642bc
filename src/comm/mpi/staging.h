// The transport's own memory, through which every message goes: MPI may go on using it after the caller's memory is
// given back, which a message to or from a dead rank would otherwise make impossible.
#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lasp::mpi {

// A block of the pool. A plain value; {nullptr} for empty messages.
struct Staging {
  void *memory = nullptr;
  int size_class = 0;
};

// Blocks of powers of two. A block is allocated when none of its class is free and then reused for good, so that a
// program that repeats its messages stops allocating after the first time.
class StagingPool {
 public:
  StagingPool() = default;
  ~StagingPool();
  StagingPool(const StagingPool &) = delete;
  StagingPool &operator=(const StagingPool &) = delete;

  Staging take(uint64_t bytes);  // throws std::bad_alloc
  void give_back(Staging staging);
  // The block leaves the pool for good.
  static void free(Staging staging);

 private:
  static constexpr int kSmallestClass = 8;  // 256 bytes
  static constexpr int kLargestClass = 62;

  struct SizeClass {
    std::vector<void *> free;
    size_t made = 0;
  };
  std::array<SizeClass, kLargestClass + 1> classes_;
};

// A message that MPI has not finished although nobody waits for it any more, and the memory it uses.
struct Orphan {
  MPI_Request request;
  Staging staging;
};

// Takes what an end leaves behind when it is destroyed. MPI may still reach this memory at any later time, so it is
// freed only once MPI says that the message is complete, which for a dead peer is never.
void adopt_orphans(std::vector<Orphan> orphans);
void release_complete_orphans();

}  // namespace lasp::mpi
