// The staging memory's pool, and the memory of messages that outlive their end; staging.h says why.
#include "comm/mpi/staging.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

namespace lasp::mpi {

StagingPool::~StagingPool() {
  for (SizeClass &size_class : classes_) {
    for (void *memory : size_class.free) std::free(memory);
  }
}

Staging StagingPool::take(uint64_t bytes) {
  if (bytes == 0) return {};
  const int index = std::max<int>(kSmallestClass, static_cast<int>(std::bit_width(bytes - 1)));
  if (index > kLargestClass) throw std::bad_alloc();
  SizeClass &size_class = classes_[index];
  if (!size_class.free.empty()) {
    void *memory = size_class.free.back();
    size_class.free.pop_back();
    return {memory, index};
  }
  size_class.free.reserve(size_class.made + 1);  // so that giving back never allocates
  void *memory = std::aligned_alloc(64, size_t{1} << index);
  if (!memory) throw std::bad_alloc();
  ++size_class.made;
  return {memory, index};
}

void StagingPool::give_back(Staging staging) {
  if (staging.memory) classes_[staging.size_class].free.push_back(staging.memory);
}

void StagingPool::free(Staging staging) { std::free(staging.memory); }

namespace {

struct Orphanage {
  std::mutex mutex;
  std::vector<Orphan> orphans;
};

// Never destroyed: MPI may write to what it holds as long as the process lives.
Orphanage &orphanage() {
  static auto *instance = new Orphanage;
  return *instance;
}

}  // namespace

void adopt_orphans(std::vector<Orphan> orphans) {
  if (orphans.empty()) return;
  Orphanage &home = orphanage();
  std::lock_guard lock(home.mutex);
  home.orphans.insert(home.orphans.end(), orphans.begin(), orphans.end());
}

void release_complete_orphans() {
  Orphanage &home = orphanage();
  std::lock_guard lock(home.mutex);
  std::erase_if(home.orphans, [](Orphan &orphan) {
    int done = 0;
    if (MPI_Test(&orphan.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return false;
    StagingPool::free(orphan.staging);
    return true;
  });
}

}  // namespace lasp::mpi
