// The seam for messages between device memories: groups of sends and receives that are ordered on a stream.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/comm.h"
#include "comm/transfer.h"
#include "cuda/device/cuda_call.h"
#include "kernels/peer_ring.h"

namespace lasp {

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  virtual std::string description() const = 0;
  // Why a pass cannot be captured into a graph over this transport; null: it can.
  virtual const char *capture_refusal() const { return nullptr; }
  // Before the passes, which allocate nothing: an operation (an exchange in one direction, a broadcast) will have
  // these messages, in this many groups.
  virtual void reserve(std::span<const Transfer>, size_t /*groups*/) {}
  // Whether sends of these messages end without their receivers, as long as these have taken all earlier ones.
  virtual bool sends_at_once(std::span<const Transfer>) const { return false; }
  // Throws Error where a group may not have so many messages.
  virtual void require_room(size_t /*messages*/) const {}

  // One group: the messages go at once. A send reads its data, and a receive has written it, in the stream's order.
  // Sizes of matching halves are equal; between two ranks messages match in order.
  virtual void exchange(std::span<const Transfer> group, cudaStream_t stream, int32_t operation, int32_t tag) = 0;
  // Whether messages go by peer memory. The same on all ranks.
  virtual bool by_peer_memory() const { return false; }
  // Where they do: the ring of an exchange as one launch, which also applies this rank's map. The transport fills
  // `place`. Its messages are those of the ring's groups.
  virtual void ring(const gpu::PeerRing &, cudaStream_t) {}
  // After the operation's last group: what was sent may be written again by later work on the stream.
  virtual void finish(cudaStream_t) {}

  // Finds the way that messages go, once for all plans. Collective.
  virtual void meet(cudaStream_t) {}
  // Makes connections to the peers of these messages, as first messages would; their data is not touched.
  // Collective; ends when it has run.
  virtual void connect(std::span<const Transfer>, cudaStream_t) {}
  // Every rank's record of `bytes` bytes into `all`, in rank order. Collective.
  virtual void gather(const void *own, void *all, size_t bytes, cudaStream_t stream) = 0;
  // Throws when the transport has failed. Never blocks.
  virtual void check() {}
  // The group is lost: messages that still wait for others end as soon as they can. From any thread.
  virtual void end_messages() noexcept {}
};

// `policy` outlives the transport.
// Where nobody is talked to: a group of one, a detached comm.
std::unique_ptr<DeviceTransport> make_self_device_transport(const char *description);
std::unique_ptr<DeviceTransport> make_threads_device_transport(Comm &comm, int32_t device,
                                                               const WaitPolicy &policy);
// Over a caller's functions that take device memory.
std::unique_ptr<DeviceTransport> make_custom_device_transport(Comm &comm, const WaitPolicy &policy);
std::unique_ptr<DeviceTransport> make_nccl_device_transport(Comm &comm, const WaitPolicy &policy);

// The CUDA device that a comm is on; -1: on none of its own, as all but those over NCCL.
int32_t device_of(const Comm &comm);
// Throws Error where the comm's messages cannot reach the device's memory. Calls nothing of CUDA.
void require_reach(const Comm &comm, int32_t device);
// The right one for the comm.
std::unique_ptr<DeviceTransport> make_device_transport(Comm &comm, int32_t device, const WaitPolicy &policy);

// Waits until the stream is idle, and throws when the transport fails meanwhile, or as Wait::poll does.
void wait_for_stream(Comm &comm, cudaStream_t stream, const WaitPolicy &policy, const char *what,
                     DeviceTransport &transport);

}  // namespace lasp
