// The CPU as the engine's device: the threads of a context.
#include "engine/device.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "cpu/halo.h"
#include "cpu/passes.h"

namespace lasp {
namespace {

// Shared memory or a fast network between hosts; only the ratio matters to the choice of schedule.
constexpr Link kAssumedLink{10.0, 10.0};

class CpuDevice final : public Device {
 public:
  CpuDevice(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy)
      : comm_(comm),
        policy_(policy),
        verify_messages_(options.verify_messages != 0),
        pool_(options.cpu_threads),
        description_(std::to_string(pool_.threads()) + " CPU thread(s)") {}

  const std::string &description() const override { return description_; }
  Link assumed_link() const override { return kAssumedLink; }
  void gather(const void *own, void *all, size_t bytes) override {
    gather_by_messages(comm_, own, all, bytes, policy_);
  }
  void check() override {}
  void require_served(const Problem &) const override {}
  // Refuses nothing of a valid problem.
  std::unique_ptr<Passes> make_passes(const PassPlan &plan, Gather) override {
    return std::make_unique<cpu::CpuPasses>(plan, comm_, policy_, verify_messages_, pool_);
  }
  std::unique_ptr<HaloPasses> make_halo(const HaloPlan &plan, Gather) override {
    return std::make_unique<cpu::CpuHalo>(plan, comm_, policy_, verify_messages_);
  }

 private:
  Comm &comm_;
  const WaitPolicy &policy_;
  bool verify_messages_;
  ThreadPool pool_;
  std::string description_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy) {
  return std::make_unique<CpuDevice>(comm, options, policy);
}

}  // namespace lasp
