// NCCL communicators, by functions found at run time: neither its header nor the library is needed to build.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <string>

namespace train_lm {

// What makes one group out of many processes: created by one, told to all.
struct NcclId {
  char bytes[128];
};

// An NCCL library: `path`, or, when that is empty, the one already in the process, else libnccl.so.2.
class Nccl {
 public:
  explicit Nccl(const std::string &path);

  NcclId create_id() const;
  const lasp_nccl_functions &functions() const { return functions_; }  // so that liblasp uses the same library

 private:
  friend class NcclComm;
  void check(int result, const char *call) const;

  int (*get_unique_id_)(NcclId *) = nullptr;
  int (*comm_init_rank_)(struct ncclComm **, int, NcclId, int) = nullptr;
  int (*comm_destroy_)(struct ncclComm *) = nullptr;
  int (*comm_abort_)(struct ncclComm *) = nullptr;
  int (*all_reduce_)(const void *, void *, std::size_t, int, int, struct ncclComm *, lasp_stream) = nullptr;
  const char *(*get_error_string_)(int) = nullptr;
  lasp_nccl_functions functions_ = LASP_NCCL_FUNCTIONS_INIT;
};

// One rank's communicator, on the thread's current device. Making it is collective. Destroyed with the object, or
// aborted when that is left by an exception.
class NcclComm {
 public:
  NcclComm(const Nccl &nccl, const NcclId &id, int rank, int ranks);
  ~NcclComm();
  NcclComm(const NcclComm &) = delete;
  struct ncclComm *get() const {
    return comm_;
  }
  // Sums over all ranks, in place, in the order of the stream. Collective.
  void sum(float *data, std::size_t count, lasp_stream stream) const;
  void sum(double *data, std::size_t count, lasp_stream stream) const;

 private:
  const Nccl &nccl_;
  struct ncclComm *comm_ = nullptr;
  int exceptions_;
};

}  // namespace train_lm
