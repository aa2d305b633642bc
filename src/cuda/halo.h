// A halo on a GPU, only enqueued: rows are gathered on the caller's stream, the exchange stream moves them, and the
// caller's stream goes on with what came.
#pragma once

#include "cuda/backend/halo_rows.h"
#include "cuda/device/device.h"
#include "engine/halo.h"

namespace lasp {

class CudaHalo final : public HaloPasses {
 public:
  CudaHalo(CudaDevice &device, const HaloPlan &plan);

  // As CudaPasses::connect, for both directions.
  void connect();

 private:
  void run(const char *name, lasp_stream stream, FunctionRef<void()> body) override;
  Comm &comm() const override { return device_.comm(); }
  const Log &log() const override { return device_.log(); }
  void clear(const HaloRows &to, int64_t count) override;
  void gather(std::span<const HaloPart> parts, const HaloRows &from, void *workspace) override;
  void scatter(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) override;
  void add(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) override;
  void exchange(std::span<const Transfer> messages, int32_t operation, const ExchangeLog &log) override;

  cuda::HaloTensor tensor(const HaloRows &rows, const void *workspace) const {
    return {rows.data, rows.layout, rows.dtype, const_cast<void *>(workspace), stream_};
  }

  CudaDevice &device_;
  // Of the call that runs.
  lasp_stream stream_ = nullptr;
  bool capturing_ = false;
};

}  // namespace lasp
