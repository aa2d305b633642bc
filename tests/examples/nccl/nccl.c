/* A libnccl.so.2 to link examples/c/nccl.c against where there is no NCCL. It makes no communicator. */
#include "nccl.h"

#include <string.h>

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  memset(id, 0, sizeof *id);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  (void)comm, (void)nranks, (void)id, (void)rank;
  return ncclSystemError;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
  (void)comm, (void)color, (void)key, (void)newcomm, (void)config;
  return ncclSystemError;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  (void)comm;
  return ncclSystemError;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  (void)comm;
  return ncclSystemError;
}
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  (void)sendbuff, (void)recvbuff, (void)count, (void)datatype, (void)op, (void)comm, (void)stream;
  return ncclSystemError;
}
const char *ncclGetErrorString(ncclResult_t result) {
  (void)result;
  return "this is a stand-in for NCCL";
}
