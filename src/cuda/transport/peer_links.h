// Messages straight into the memory of other GPUs, over NVLink, by a kernel of ours (kernels/peer_messages.h): in a
// group of which every GPU reaches every other.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/transfer.h"
#include "cuda/device/cuda_call.h"
#include "cuda/transport/peer_memory.h"
#include "exchange/agreement.h"
#include "kernels/peer_messages.h"
#include "kernels/peer_ring.h"

namespace lasp {

class PeerLinks {
 public:
  // Collective: all ranks have links, or none has, and then `why_not` says why. Throws what `gather` throws.
  static std::unique_ptr<PeerLinks> make(const Comm &comm, int32_t device, cudaStream_t stream, Gather gather,
                                         std::string &why_not);
  // Waits for its messages, unless they were ended.
  ~PeerLinks();
  PeerLinks(const PeerLinks &) = delete;
  PeerLinks &operator=(const PeerLinks &) = delete;

  // Throws Error where a group of so many would not fit a launch.
  static void require_room(size_t messages);
  // As DeviceTransport::sends_at_once.
  bool sends_at_once(std::span<const Transfer> messages) const;
  void exchange(std::span<const Transfer> group, cudaStream_t stream);
  // All but its `place` is given.
  void ring(gpu::PeerRing ring, cudaStream_t stream);
  // Kernels wait for nobody any more, and what they bring is void. From any thread.
  void end() noexcept;

 private:
  PeerLinks(const Comm &comm, int32_t device, cudaStream_t stream);
  void map(std::span<const File> files, int32_t device, cudaStream_t stream);

  gpu::PeerGroup group_;
  gpu::PeerList<gpu::kMostPeerMessages> list_;
  bool used_ = false;        // by any kernel
  size_t window_bytes_ = 0;  // for the most lanes that there may be
  PeerMemory window_;
  std::vector<PeerMemory> peers_;  // by rank; none for this one
  struct FreeHost {
    void operator()(uint32_t *word) const { cudaFreeHost(word); }
  };
  std::unique_ptr<uint32_t, FreeHost> ended_;
};

}  // namespace lasp
