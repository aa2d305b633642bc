// A GPU as the engine's device: a context's CUDA device, and passes on it.
#include <cmath>

#include "base/status.h"
#include "core/names.h"
#include "cuda/device/device.h"
#include "cuda/halo.h"
#include "cuda/passes.h"
#include "engine/device.h"

namespace lasp {
namespace {

// Eight H200 over NVLink by NCCL: a chain of seven messages of 2 MiB takes 134 us, of 8 MiB 283 us.
constexpr Link kAssumedLink{15.0, 250.0};

void refuse_wide_gradients(const Problem &p) {
  if (!p.backward) return;
  const auto same = [](const char *name, DType type, const char *of_name, DType of) {
    if (type == of) return;
    throw fail(LASP_ERROR_UNSUPPORTED, "%s.dtype = %s, %s = %s: this mix of types is computed on the CPU only",
               name, dtype_name(static_cast<int64_t>(type)).c_str(), of_name,
               dtype_name(static_cast<int64_t>(of)).c_str());
  };
  same("dq", p.dq_dtype, "dtype", p.dtype);
  same("dk", p.dk_dtype, "dtype", p.dtype);
  same("dv", p.dv_dtype, "dtype", p.dtype);
  same("d_decay_layout", p.d_decay_dtype, "decay_layout.dtype", p.decay_dtype);
}

class CudaEngineDevice final : public Device {
 public:
  CudaEngineDevice(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy)
      : device_(comm, options, policy) {}

  const std::string &description() const override { return device_.description(); }
  Link assumed_link() const override { return kAssumedLink; }
  void gather(const void *own, void *all, size_t bytes) override { device_.gather(own, all, bytes); }
  void check() override { device_.check(); }

  void require_served(const Problem &problem) const override {
    if (problem.delta)
      throw fail(LASP_ERROR_UNSUPPORTED, "write = LASP_WRITE_DELTA: the delta rule is computed on the CPU only");
    if (problem.packed)
      throw fail(LASP_ERROR_UNSUPPORTED, "max_sequences = %lld: packed plans are computed on the CPU only",
                 static_cast<long long>(problem.num_sequences));
    if (problem.segment > 0)
      throw fail(LASP_ERROR_UNSUPPORTED, "segment = %lld: on the CPU only",
                 static_cast<long long>(problem.segment));
    refuse_wide_gradients(problem);
    // The gradient of the state holds the scale, and the gradients of k and v have it without.
    if (problem.backward && !std::isfinite(1 / problem.scale))
      throw fail(LASP_ERROR_UNSUPPORTED,
                 "scale = %g: with backward = 1 on the CPU only, for here gradients are divided "
                 "by it",
                 double(problem.scale));
  }

  std::unique_ptr<Passes> make_passes(const PassPlan &plan, Gather gather) override {
    return make<CudaPasses>(plan, gather);
  }

  std::unique_ptr<HaloPasses> make_halo(const HaloPlan &plan, Gather gather) override {
    return make<CudaHalo>(plan, gather);
  }

 private:
  // What one rank cannot make is made on none. Then all connect.
  template <class Made, class Plan>
  std::unique_ptr<Made> make(const Plan &plan, Gather gather) {
    std::unique_ptr<Made> made;
    std::optional<Error> refusal;
    try {
      made = std::make_unique<Made>(device_, plan);
    } catch (...) {
      refusal = current_error();
    }
    agree_on_refusal(device_.comm(), refusal, gather);
    made->connect();
    return made;
  }

  CudaDevice device_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(Comm &comm, const lasp_context_options &options,
                                         const WaitPolicy &policy) {
  return std::make_unique<CudaEngineDevice>(comm, options, policy);
}

}  // namespace lasp
