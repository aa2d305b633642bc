// A GPU as the engine's device: a context's CUDA device, and passes on it.
#include <cmath>

#include "base/status.h"
#include "cuda/device/device.h"
#include "cuda/passes.h"
#include "engine/device.h"

namespace lasp {
namespace {

// Eight H200 over NVLink by NCCL: a chain of seven messages of 2 MiB takes 134 us, of 8 MiB 283 us.
constexpr Link kAssumedLink{15.0, 250.0};

class CudaEngineDevice final : public Device {
 public:
  CudaEngineDevice(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy)
      : device_(comm, options, policy) {}

  const std::string &description() const override { return device_.description(); }
  Link assumed_link() const override { return kAssumedLink; }
  void gather(const void *own, void *all, size_t bytes) override { device_.gather(own, all, bytes); }
  void check() override { device_.check(); }

  void require_served(const Problem &problem) const override {
    if (problem.segment > 0)
      throw fail(LASP_ERROR_UNSUPPORTED, "segment = %lld: on the CPU only",
                 static_cast<long long>(problem.segment));
    // The gradient of the state holds the scale, and the gradients of k and v have it without.
    if (problem.backward && !std::isfinite(1 / problem.scale))
      throw fail(LASP_ERROR_UNSUPPORTED,
                 "scale = %g: with backward = 1 on the CPU only, for here gradients are divided "
                 "by it",
                 double(problem.scale));
  }

  std::unique_ptr<Passes> make_passes(const PassPlan &plan, Gather gather) override {
    std::unique_ptr<CudaPasses> passes;
    std::optional<Error> refusal;
    try {
      passes = std::make_unique<CudaPasses>(device_, plan);
    } catch (...) {
      refusal = current_error();
    }
    agree_on_refusal(device_.comm(), refusal, gather);
    passes->connect();
    return passes;
  }

 private:
  CudaDevice device_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(Comm &comm, const lasp_context_options &options,
                                         const WaitPolicy &policy) {
  return std::make_unique<CudaEngineDevice>(comm, options, policy);
}

}  // namespace lasp
