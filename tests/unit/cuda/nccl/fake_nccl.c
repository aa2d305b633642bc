/* The functions that liblasp asks of an NCCL, of a communicator of one rank on device 0. Built into several
 * libraries, of which a test loads none, one or two. FAKE_VERSION is what it says of itself. */
#if defined(FAKE_HIDDEN)
#define SHOWN __attribute__((visibility("hidden")))
#else
#define SHOWN __attribute__((visibility("default")))
#endif

SHOWN int ncclGetVersion(int *version) {
  *version = FAKE_VERSION;
  return 0;
}
SHOWN int ncclCommCount(const void *comm, int *count) {
  (void)comm;
  *count = 1;
  return 0;
}
SHOWN int ncclCommUserRank(const void *comm, int *rank) {
  (void)comm;
  *rank = 0;
  return 0;
}
SHOWN int ncclCommCuDevice(const void *comm, int *device) {
  (void)comm;
  *device = 0;
  return 0;
}
SHOWN int ncclCommGetAsyncError(void *comm, int *result) {
  (void)comm;
  *result = 0;
  return 0;
}
SHOWN const char *ncclGetErrorString(int result) {
  (void)result;
  return "an error";
}
SHOWN int ncclSend(void) { return 1; }
SHOWN int ncclRecv(void) { return 1; }
SHOWN int ncclAllGather(void) { return 1; }
SHOWN int ncclGroupStart(void) { return 1; }
SHOWN int ncclGroupEnd(void) { return 1; }
/* So that a library whose functions are hidden holds them all the same. */
__attribute__((visibility("default"))) void *fake_nccl_version(void) { return (void *)ncclGetVersion; }
