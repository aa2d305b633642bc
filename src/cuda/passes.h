// The passes on a GPU, only enqueued: the caller's stream finds this rank's own maps, the exchange stream moves
// maps, meanwhile the caller's stream does what needs no incoming state, and then what does.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/backend/cuda_backend.h"
#include "cuda/device/device.h"
#include "cuda/device_exchange.h"
#include "engine/passes.h"

namespace lasp {

class CudaPasses final : public Passes {
 public:
  CudaPasses(CudaDevice &device, const PassPlan &plan);
  ~CudaPasses() override;

  Backend &backend() override { return *backend_; }
  // Makes the connections that any of the passes uses, all at once: made one by one, as messages come to need them,
  // two ranks could each wait for the other's next step. Collective, once, at plan creation; ends when it has run.
  void connect();
  void prepare(lasp_stream stream) override;

 private:
  // A direction that the pass does not use is empty.
  struct Directions {
    std::optional<DeviceExchange> left, right;
  };

  void run(const Call &call, FunctionRef<void()> body) override;
  Comm &comm() const override { return device_.comm(); }
  const Log &log() const override { return device_.log(); }
  void open_exchange(Pass pass, const PassMaps &maps, const float *log_decay) override;
  void start_exchange(int32_t operation, const ExchangeLog &log) override;
  // The host does not know when the exchange ends: all work goes ahead of it.
  bool advance_exchange() override { return false; }
  void await_exchange() override;
  void end_exchange(const ExchangeLog &) override;
  void cancel_exchange() override;
  int32_t begin_span(const char *name) override {
    DeviceTrace *const times = device_.tracing();
    return times != nullptr ? times->begin({.kind = Traced::kDevice, .name = name}, stream_) : -1;
  }
  void end_span(int32_t span) override { device_.tracing()->end(span); }
  void copy(void *to, const void *from, uint64_t bytes) override;
  void clear(void *to, uint64_t bytes) override;
  void keep_all(float *factors, int64_t count) override;
  void move(float *states, const StateMessages &messages, const ExchangeLog &log) override;
  void reserve(std::span<const StateMessage> messages);
  std::vector<Transfer> connections() const;
  bool sends_at_once() const;  // whether this rank's messages wait for nobody
  int32_t first_peer() const { return (directions_->left ? directions_->left : directions_->right)->first_peer(); }

  CudaDevice &device_;
  cuda::PendingMark marks_;
  std::unique_ptr<CudaBackend> backend_;
  Directions forward_, backward_;
  std::vector<Transfer> moved_;  // of no exchange: the plan's messages, without their memory
  std::vector<Transfer> group_;

  // Of the call that runs.
  lasp_stream stream_ = nullptr;
  bool capturing_ = false;
  Directions *directions_ = nullptr;  // of the exchange
  const PassMaps *maps_ = nullptr;
  const float *log_decay_ = nullptr;  // [H] for per-head decay
  bool marked_ = false;               // whether it leaves marks
  bool ending_ = false;               // whether the mark of the exchange's end has been set
  std::optional<ExchangeFork> fork_;
};

}  // namespace lasp
