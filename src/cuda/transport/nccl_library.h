// NCCL, found at run time, in the process: a communicator must be used by the very library that made it. Its types
// are declared here as far as they are needed; the values are NCCL's ABI.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace lasp {

enum NcclResult : int32_t { kNcclSuccess = 0, kNcclRemoteError = 6, kNcclInProgress = 7 };
constexpr int kNcclBytes = 1;  // ncclUint8

struct NcclLibrary {
  int (*get_version)(int *version);
  int (*comm_count)(const ncclComm *, int *count);
  int (*comm_user_rank)(const ncclComm *, int *rank);
  int (*comm_cu_device)(const ncclComm *, int *device);
  int (*comm_get_async_error)(ncclComm *, int *result);
  const char *(*get_error_string)(int result);
  int (*send)(const void *, size_t count, int type, int peer, ncclComm *, lasp_stream);
  int (*recv)(void *, size_t count, int type, int peer, ncclComm *, lasp_stream);
  int (*all_gather)(const void *, void *, size_t count, int type, ncclComm *, lasp_stream);
  int (*group_start)();
  int (*group_end)();
  int32_t version = 0;  // 21800 is 2.18.0
  std::string where;    // its file, or what else says which one it is
};

// A borrowed communicator and the library it belongs to.
struct NcclGroup {
  NcclLibrary library;
  ncclComm *comm = nullptr;
  int32_t rank = 0, nranks = 1, device = 0;
};

// "2.18.3".
std::string nccl_version_text(int32_t version);

// The caller's functions, or those of the only NCCL that the process has loaded. Throws LASP_ERROR_LIBRARY_MISSING
// where that is none or several, or too old, and LASP_ERROR_INVALID_ARGUMENT for a table with a gap.
NcclLibrary find_nccl(const lasp_nccl_functions *functions);

}  // namespace lasp
