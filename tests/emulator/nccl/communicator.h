// A rank's communicator, and its work on streams.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <vector>

#include "nccl/group.h"

namespace emulated_nccl {

// These go at once.
struct Work {
  Group &group;
  int rank;
  std::vector<Transfer> transfers;
};

}  // namespace emulated_nccl

// Never freed: streams and graphs may hold its work still when the rank is done with it.
struct ncclComm {
  ncclComm(emulated_nccl::Group &of_group, int own_rank, int own_device)
      : group(of_group), rank(own_rank), device(own_device) {}
  // These go when the stream gets there; of a stream that is captured, whenever its graph gets there.
  cudaError_t enqueue(std::vector<emulated_nccl::Transfer> transfers, cudaStream_t stream);

  emulated_nccl::Group &group;
  const int rank, device;
  std::atomic<bool> ended{false};  // aborted or destroyed

 private:
  std::vector<std::unique_ptr<emulated_nccl::Work>> captured_;
};
