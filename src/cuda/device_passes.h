// The passes on a GPU: the same order as on the CPU (execute.cpp), but only enqueued. The caller's stream finds
// this rank's map, the exchange stream moves maps, meanwhile the caller's stream does what needs no incoming state,
// and then what does.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/backend/cuda_backend.h"
#include "cuda/device_exchange.h"
#include "engine/device.h"

namespace lasp {

class CudaDevice;

class CudaPasses final : public DevicePasses {
 public:
  CudaPasses(CudaDevice &device, const PassPlan &plan);
  ~CudaPasses() override;

  const Backend &backend() const override { return *backend_; }
  void forward(const ForwardBuffers &buffers, bool reuse_state_cache, lasp_stream stream) override;
  void backward(const BackwardBuffers &buffers, lasp_stream stream) override;
  void step(const StepBuffers &buffers, lasp_stream stream) override;
  void connect() override;
  void prepare(lasp_stream stream) override;

 private:
  // A direction that the pass does not use is empty.
  struct Directions {
    std::optional<DeviceExchange> left, right;
    bool any() const { return left || right; }
  };

  // What the exchange may use of the result of a pass that is written last.
  Borrowed result_of(const ForwardBuffers &buffers) const;
  Borrowed result_of(const BackwardBuffers &buffers) const;

  template <class Body>
  void run(const char *name, lasp_stream stream, bool communicates, Body body);
  template <class Buffers, class States, class Ahead, class Finish>
  void run_exchange(Directions &directions, Buffers buffers, States states, Ahead ahead, Finish finish,
                    lasp_stream stream);
  void broadcast_final_state(float *final_state, lasp_stream stream);
  void plan_broadcast();
  std::vector<Transfer> connections() const;
  const float *head_decay(const void *decay) const;

  CudaDevice &device_;
  PassPlan plan_;
  std::unique_ptr<CudaBackend> backend_;
  Directions forward_, backward_;
  std::vector<Transfer> broadcast_;  // with offsets from final_state for data
  std::vector<Transfer> group_;
  bool capturing_ = false;
};

}  // namespace lasp
