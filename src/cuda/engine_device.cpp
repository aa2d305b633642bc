// A GPU as the engine's device: a context's CUDA device, and passes on it.
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "cuda/device/device.h"
#include "cuda/halo.h"
#include "cuda/passes.h"
#include "cuda/value_search.h"
#include "engine/device.h"

namespace lasp {
namespace {

void require_served_by_gpu(const Problem &problem) {
  if (problem.segment > 0)
    throw fail(LASP_ERROR_UNSUPPORTED, "segment = %lld: on the CPU only", static_cast<long long>(problem.segment));
  // The gradient of the state holds the scale, and the gradients of k and v have it without; but not the delta
  // rule's. Zero is a case of its own (PlanInputs::do_of).
  if (problem.backward && !problem.delta && problem.scale != 0 && !std::isfinite(1 / problem.scale))
    throw fail(LASP_ERROR_UNSUPPORTED,
               "scale = %g: with backward = 1 a scale this small is for the CPU only, since gradients are divided "
               "by it here; 0 is not",
               double(problem.scale));
}

class CudaEngineDevice final : public Device {
 public:
  CudaEngineDevice(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy)
      : device_(comm, options, policy) {
    if (options.check_values == 1) values_.emplace(device_);
  }

  const std::string &description() const override { return device_.description(); }
  int32_t index() const override { return device_.index(); }
  Link assumed_link() const override { return kNvlink; }
  void gather(const void *own, void *all, size_t bytes) override { device_.gather(own, all, bytes); }
  void meet() override { device_.meet(); }
  void end_messages() noexcept override { device_.end_messages(); }
  void check() override { device_.check(); }
  void start_trace(Trace &trace) override { device_.start_trace(trace); }
  DeviceTimes collect_times() override { return device_.collect_times(); }

  bool has_memory(const void *data) const override { return device_.has_memory(data); }
  void read(void *to, const void *from, size_t bytes, lasp_stream stream) override {
    values_->read(to, from, bytes, stream);
  }
  std::optional<ValueFound> find_value(std::span<const ValueProbe> probes, lasp_stream stream) override {
    return values_->find(probes, stream);
  }
  void require_served(const Problem &problem) const override { require_served_by_gpu(problem); }
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
  std::optional<ValueSearch> values_;  // with check_values
};

// Passes that nobody runs.
class AssumedPasses final : public Passes {
 public:
  AssumedPasses(const PassPlan &plan, const lasp_placement &at, Comm &comm)
      : Passes(plan),
        comm_(comm),
        backend_(make_assumed_backend(
            {plan.problem, plan.partition, plan.ranges, plan.rank, at.capability, at.multiprocessors})) {}

  Backend &backend() override { return *backend_; }
  void prepare(lasp_stream) override { never(); }

 private:
  [[noreturn]] static void never() { throw fail(LASP_ERROR_INTERNAL, "a plan that is only assumed was run"); }
  void run(const Call &, FunctionRef<void()>) override { never(); }
  Comm &comm() const override { return comm_; }
  const Log &log() const override { return log_; }
  void open_exchange(Pass, const PassMaps &, const float *) override { never(); }
  void start_exchange(int32_t, const ExchangeLog &) override { never(); }
  bool advance_exchange() override { never(); }
  void await_exchange() override { never(); }
  void end_exchange(const ExchangeLog &) override { never(); }
  void cancel_exchange() override { never(); }
  void copy(void *, const void *, uint64_t) override { never(); }
  void clear(void *, uint64_t) override { never(); }
  void keep_all(float *, int64_t) override { never(); }
  void move(float *, const StateMessages &, const ExchangeLog &) override { never(); }

  Comm &comm_;
  Log log_;
  std::unique_ptr<CudaBackend> backend_;
};

class AssumedDevice final : public Device {
 public:
  AssumedDevice(Comm &comm, const lasp_placement &at) : comm_(comm), at_(at), description_("an assumed GPU") {}

  const std::string &description() const override { return description_; }
  Link assumed_link() const override { return kNvlink; }
  // A group of one; in others the context answers for all.
  void gather(const void *own, void *all, size_t bytes) override { std::memcpy(all, own, bytes); }
  void check() override {}
  void require_served(const Problem &problem) const override { require_served_by_gpu(problem); }
  std::unique_ptr<Passes> make_passes(const PassPlan &plan, Gather) override {
    return std::make_unique<AssumedPasses>(plan, at_, comm_);
  }
  std::unique_ptr<HaloPasses> make_halo(const HaloPlan &, Gather) override {
    throw fail(LASP_ERROR_INTERNAL, "a halo of a plan that is only assumed");
  }

 private:
  Comm &comm_;
  const lasp_placement at_;
  const std::string description_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(Comm &comm, const lasp_context_options &options,
                                         const WaitPolicy &policy) {
  return std::make_unique<CudaEngineDevice>(comm, options, policy);
}

std::unique_ptr<Device> make_assumed_cuda_device(Comm &comm, const lasp_placement &placement) {
  if (!architecture_served(LASP_CUDA_ARCHITECTURES, placement.capability))
    throw fail(LASP_ERROR_NO_DEVICE, "placement.capability = %d: not compiled in, only %s", placement.capability,
               LASP_CUDA_ARCHITECTURES);
  return std::make_unique<AssumedDevice>(comm, placement);
}

}  // namespace lasp
