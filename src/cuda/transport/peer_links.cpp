#include "cuda/transport/peer_links.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "cuda/transport/file_mailbox.h"

namespace lasp {
namespace {

// What a rank offers to the others.
struct Offer {
  int32_t rank = -1;
  int32_t stands = 0;
  int32_t multiprocessors = 0;
  FileMailbox::Name mailbox{};
  char machine[40] = {};  // as the kernel has named it since it was started
  char bus_id[16] = {};
  char why_not[160] = {};
};
static_assert(sizeof(Offer) <= kMostRecordBytes);

void say(Offer &offer, const std::string &why_not) {
  offer.stands = 0;
  std::strncpy(offer.why_not, why_not.c_str(), sizeof offer.why_not - 1);
}

// Runs a step of this rank's, if all is well so far. Then all ranks hear how it went with each: whether all are
// well.
class Steps {
 public:
  Steps(Offer &own, int32_t nranks, Gather gather)
      : own_(own), gather_(gather), all_(static_cast<size_t>(nranks)) {}

  template <class Step>
  bool take(Step step) {
    try {
      if (own_.stands != 0) step();
    } catch (...) {  // whatever it is: the others wait
      say(own_, current_error().sentence);
    }
    gather_(&own_, all_.data(), sizeof(Offer));
    for (size_t rank = 0; rank < all_.size(); ++rank)
      if (all_[rank].rank != static_cast<int32_t>(rank) || all_[rank].stands == 0) {
        bad_ = rank;
        return false;
      }
    return true;
  }
  const std::vector<Offer> &all() const { return all_; }
  std::string why_not() const { return "rank " + std::to_string(bad_) + ": " + std::string(all_[bad_].why_not); }

 private:
  Offer &own_;
  Gather gather_;
  std::vector<Offer> all_;
  size_t bad_ = 0;
};

void require_wanted() {
  const char *const text = secure_getenv("LASP_PEER_MEMORY");
  if (text != nullptr && std::string_view(text) == "0") throw fail(LASP_ERROR_UNSUPPORTED, "LASP_PEER_MEMORY is 0");
}

void identify(Offer &offer, int32_t device) {
  cuda::check(cudaDeviceGetPCIBusId(offer.bus_id, sizeof offer.bus_id, device), "cudaDeviceGetPCIBusId");
  cuda::check(cudaDeviceGetAttribute(&offer.multiprocessors, cudaDevAttrMultiProcessorCount, device),
              "cudaDeviceGetAttribute");
  std::ifstream("/proc/sys/kernel/random/boot_id").read(offer.machine, sizeof offer.machine - 1);
}

void require_neighbour(const Offer &own, const Offer &peer, int32_t device) {
  if (std::string_view(peer.machine) != own.machine)
    throw fail(LASP_ERROR_UNSUPPORTED, "rank %d is on another machine", peer.rank);
  // Kernels of two processes on one GPU would take turns by time, and each would wait through its own.
  if (std::string_view(peer.bus_id) == own.bus_id)
    throw fail(LASP_ERROR_UNSUPPORTED, "rank %d has the same GPU", peer.rank);
  require_nvlink(device, peer.bus_id);
}

std::vector<File> received(const FileMailbox &mailbox, int32_t nranks) {
  std::vector<File> files(static_cast<size_t>(nranks));
  for (int32_t n = 1; n < nranks; ++n) {
    std::optional<FileMailbox::Received> next = mailbox.receive();
    const bool right = next && next->from >= 0 && next->from < nranks && next->file.is_open();
    if (!right || files[static_cast<size_t>(next->from)].is_open())
      throw fail(LASP_ERROR_TRANSPORT, "a window of another rank has not come");
    files[static_cast<size_t>(next->from)] = std::move(next->file);
  }
  return files;
}

}  // namespace

PeerLinks::PeerLinks(const Comm &comm, int32_t device, cudaStream_t stream) {
  group_.place.layout.ranks = comm.nranks();
  group_.place.rank = comm.rank();
  for (const auto load : {gpu::load_peer_messages, gpu::load_peer_ring})
    cuda::check_allocation(static_cast<cudaError_t>(load()), "loading kernels");
  window_bytes_ = static_cast<size_t>(group_.place.layout.bytes());
  window_ = PeerMemory::make(device, window_bytes_, stream);
  group_.place.window = window_.data();
  void *word = nullptr;
  cuda::check(cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocMapped), "cudaHostAlloc");
  ended_.reset(new (word) uint32_t(0));
  group_.place.ended = ended_.get();
}

void PeerLinks::map(std::span<const File> files, int32_t device, cudaStream_t stream) {
  std::vector<std::byte *> windows;
  for (const File &file : files) {
    peers_.push_back(file.is_open() ? PeerMemory::map(file, device, window_bytes_) : PeerMemory());
    windows.push_back(peers_.back().data());
  }
  cuda::check(cudaMemcpyAsync(group_.place.window + group_.place.layout.windows(), windows.data(),
                              windows.size() * sizeof(void *), cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
  cuda::check(cudaStreamSynchronize(stream), "cudaMemcpyAsync");
}

std::unique_ptr<PeerLinks> PeerLinks::make(const Comm &comm, int32_t device, cudaStream_t stream, Gather gather,
                                           std::string &why_not) {
  Offer offer{.rank = comm.rank(), .stands = 1};
  Steps steps(offer, comm.nranks(), gather);
  std::optional<FileMailbox> mailbox;
  std::unique_ptr<PeerLinks> links;
  const auto open_window = [&] {
    require_wanted();
    identify(offer, device);
    offer.mailbox = mailbox.emplace().name();
    links.reset(new PeerLinks(comm, device, stream));
  };
  const auto hand_window_over = [&] {
    const File own = links->window_.file();
    int32_t &blocks = links->group_.place.layout.blocks;
    for (const Offer &peer : steps.all()) {
      blocks = std::min(blocks, gpu::kLaneBlocksOfMultiprocessor * peer.multiprocessors);
      if (peer.rank == comm.rank()) continue;
      require_neighbour(offer, peer, device);
      mailbox->send(peer.mailbox, own, comm.rank());
    }
  };
  const auto map_windows = [&] { links->map(received(*mailbox, comm.nranks()), device, stream); };
  try {
    if (steps.take(open_window) && steps.take(hand_window_over) && steps.take(map_windows)) return links;
  } catch (...) {
    // The group is lost. What it enqueued may wait for ever, so that nothing here may wait for the device.
    if (links) links->end();
    throw;
  }
  why_not = steps.why_not();
  return nullptr;
}

PeerLinks::~PeerLinks() {
  if (ended_ == nullptr) return;
  if (std::atomic_ref(*ended_).load() == 0) {
    if (used_) cudaDeviceSynchronize();  // memory that a kernel uses must stay mapped
    return;
  }
  window_.leak();
  for (PeerMemory &peer : peers_) peer.leak();
  static_cast<void>(ended_.release());
}

void PeerLinks::require_room(size_t messages) {
  if (messages > static_cast<size_t>(gpu::kMostPeerMessages))
    throw fail(
        LASP_ERROR_UNSUPPORTED,
        "%zu messages at once: between GPUs that write each other's memory at most %d; cut the tokens in fewer "
        "runs, or set LASP_PEER_MEMORY=0",
        messages, gpu::kMostPeerMessages);
}

bool PeerLinks::sends_at_once(std::span<const Transfer> messages) const {
  const gpu::PeerLayout &layout = group_.place.layout;
  for (int32_t peer = 0; peer < layout.ranks; ++peer) {
    int64_t pieces = 0;  // of the first lane, which has most
    for (const Transfer &message : messages)
      if (message.is_send && message.peer == peer && message.bytes > 0)
        pieces += (layout.share_of(static_cast<int64_t>(message.bytes)) + gpu::kSlotBytes - 1) / gpu::kSlotBytes;
    if (pieces > int64_t{gpu::kSlots}) return false;
  }
  return true;
}

void PeerLinks::exchange(std::span<const Transfer> group, cudaStream_t stream) {
  require_room(group.size());
  int count = 0, ways = 0;
  for (const bool sends : {true, false}) {
    for (int32_t peer = 0; peer < group_.place.layout.ranks; ++peer) {
      const int first = count;
      for (const Transfer &transfer : group)
        if (transfer.is_send == sends && transfer.peer == peer && transfer.bytes > 0)
          list_.messages[count++] = {static_cast<std::byte *>(transfer.data), static_cast<int64_t>(transfer.bytes),
                                     peer, sends};
      if (count > first) list_.first[ways++] = static_cast<uint16_t>(first);
    }
  }
  list_.first[ways] = static_cast<uint16_t>(count);
  group_.count = count, group_.ways = ways;
  used_ = true;
  cuda::check(static_cast<cudaError_t>(gpu::launch_peer_messages(group_, list_, stream)), "messages");
}

void PeerLinks::ring(gpu::PeerRing ring, cudaStream_t stream) {
  used_ = true;
  ring.place = group_.place;
  cuda::check(static_cast<cudaError_t>(gpu::launch_peer_ring(ring, stream)), "the ring");
}

void PeerLinks::end() noexcept { std::atomic_ref(*ended_).store(1); }

}  // namespace lasp
