#include "nccl/communicator.h"

#include <utility>

namespace emulated_nccl {
namespace {

void run(void *user) {
  const Work &work = *static_cast<Work *>(user);
  work.group.run(work.rank, work.transfers);
}

void run_once(void *user) {
  run(user);
  delete static_cast<Work *>(user);
}

}  // namespace
}  // namespace emulated_nccl

using namespace emulated_nccl;

cudaError_t ncclComm::enqueue(std::vector<Transfer> transfers, cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &status)) return error;
  const bool once = status == cudaStreamCaptureStatusNone;
  auto work = std::make_unique<Work>(Work{group, rank, std::move(transfers)});
  const cudaError_t error = cudaLaunchHostFunc(stream, once ? run_once : run, work.get());
  if (error == cudaSuccess) once ? static_cast<void>(work.release()) : captured_.push_back(std::move(work));
  return error;
}
