// A libcuda.so.1 that answers what the CUDA runtime asks of a driver before it uses a GPU, as the environment says:
//   LASP_DRIVER_VERSION  the CUDA version that it serves, such as 11040 for 11.4
//   LASP_DRIVER_INIT     what cuInit answers: 0, or a CUresult such as 100, no device
// With LASP_DRIVER_OLD it is a driver of before CUDA 11.3, which has no cuGetProcAddress.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kSuccess = 0, kNotSupported = 801, kInvalidValue = 1 };

static int number(const char *name) {
  const char *const value = getenv(name);
  return value != NULL ? atoi(value) : 0;
}

int cuInit(unsigned int flags) {
  (void)flags;
  return number("LASP_DRIVER_INIT");
}

int cuDriverGetVersion(int *version) {
  *version = number("LASP_DRIVER_VERSION");
  return kSuccess;
}

int cuDeviceGetCount(int *count) {
  *count = 0;
  return kSuccess;
}

int cuGetErrorName(int result, const char **name) {
  (void)result;
  *name = "CUDA_ERROR";
  return kSuccess;
}

#ifndef LASP_DRIVER_OLD
// What the runtime only looks up. It calls none of these while there is no GPU.
static int nothing(void) { return kNotSupported; }

int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status);

int cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
  static const struct {
    const char *name;
    void *address;
  } kKnown[] = {{"cuInit", (void *)cuInit},
                {"cuDriverGetVersion", (void *)cuDriverGetVersion},
                {"cuDeviceGetCount", (void *)cuDeviceGetCount},
                {"cuGetErrorName", (void *)cuGetErrorName}};
  (void)flags;
  *address = NULL;
  if (version > number("LASP_DRIVER_VERSION")) return kInvalidValue;
  *address = strcmp(name, "cuGetProcAddress") == 0 ? (void *)cuGetProcAddress_v2 : (void *)nothing;
  for (size_t i = 0; i < sizeof kKnown / sizeof kKnown[0]; ++i)
    if (strcmp(name, kKnown[i].name) == 0) *address = kKnown[i].address;
  return kSuccess;
}

int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status) {
  const int result = cuGetProcAddress(name, address, version, flags);
  if (status != NULL) *status = result == kSuccess ? 0 : 1;
  return result;
}
#endif
