// The device a call works on, made current without the caller noticing. cudaSetDevice would not do: putting the
// caller's device back with it starts a CUDA context there, even on a device that the caller never touched.
#pragma once

#include <cstdint>

struct CUctx_st;

namespace lasp::cuda {

// Holds a device's primary context, the one that every CUDA runtime in the process uses.
class PrimaryContext {
 public:
  explicit PrimaryContext(int32_t device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext &) = delete;
  PrimaryContext &operator=(const PrimaryContext &) = delete;

 private:
  friend class Current;
  using Push = int (*)(CUctx_st *);
  using Pop = int (*)(CUctx_st **);
  using Retain = int (*)(CUctx_st **, int);
  using Release = int (*)(int);
  Push push_ = nullptr;
  Pop pop_ = nullptr;
  Release release_ = nullptr;
  int device_ = 0;
  CUctx_st *context_ = nullptr;
};

// While it lives the device is this thread's current one; then what was current before is again.
class Current {
 public:
  explicit Current(const PrimaryContext &context);
  ~Current();
  Current(const Current &) = delete;
  Current &operator=(const Current &) = delete;

 private:
  const PrimaryContext &context_;
};

}  // namespace lasp::cuda
