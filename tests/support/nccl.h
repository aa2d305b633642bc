// NCCL as a program that owns communicators uses it: found by name at run time, declared here as far as needed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lasp/lasp.h>

namespace gpu {

// The bytes that make one group out of many ranks: made by one rank, told to all.
using NcclId = std::array<char, 128>;

std::string why_no_nccl();  // one sentence; "" when libnccl.so.2 was found
std::string nccl_version();
NcclId make_nccl_id();

// One rank's communicator, on the thread's current device. Destroyed with the object.
class NcclRank {
 public:
  // Collective over the ranks. `blocking` false: NCCL calls return at once and are polled (ncclConfig_t.blocking =
  // 0).
  NcclRank(const NcclId &id, int32_t rank, int32_t nranks, bool blocking = true);
  ~NcclRank();
  NcclRank(const NcclRank &) = delete;
  NcclRank &operator=(const NcclRank &) = delete;

  ncclComm *get() const { return comm_; }
  // What the owner of a communicator does about a lost peer: its kernels end. The object may then only be
  // destroyed.
  void abort();

 private:
  ncclComm *comm_ = nullptr;
};

// Communicators of devices 0 .. nranks-1, made by as many threads.
std::vector<std::unique_ptr<NcclRank>> make_nccl_group(int32_t nranks, bool blocking = true);

}  // namespace gpu
