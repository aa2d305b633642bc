// What the engine asks of a device: passes for a plan, and a way to compare notes with the other ranks. A plain
// interface, so that the engine compiles without CUDA: cpu/ and cuda/ implement it, and in a build without CUDA
// cuda/absent/ says so.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/comm.h"
#include "core/problem.h"
#include "engine/device_times.h"
#include "engine/halo.h"
#include "engine/passes.h"
#include "engine/value_probe.h"
#include "exchange/agreement.h"
#include "exchange/cost_model.h"

namespace lasp {

// H100 and H200 over NVLink by NCCL, fitted to exchanges of two, four and eight H200 (bench/fit_exchanges.py;
// docs/reference/schedules.md has what the fit left). Folds were measured alone,
// by lasp-bench --calibrate on one H200. Other GPUs and links are taken to
// be like them, for want of numbers of their own.
inline constexpr Link kNvlink{.latency_us = 3.25,
                              .bandwidth_gbs = 382,
                              .round_us = 31.2,
                              .fold_us = 1.4,
                              .fold_gbs = 2585,
                              .dense_us = 3.5,
                              .dense_tflops = 7.6};

class Device {
 public:
  virtual ~Device() = default;
  // "8 CPU thread(s)"; "CUDA device 0, NVIDIA H100, compute capability 9.0, ..., messages by NCCL 2.28.9".
  virtual const std::string &description() const = 0;
  // The CUDA ordinal; 0 on the CPU.
  virtual int32_t index() const { return 0; }
  // The link between ranks where nobody says what it is.
  virtual Link assumed_link() const = 0;
  // Every rank's record of `bytes` bytes (at most kMostRecordBytes) into `all`, in rank order. Collective.
  virtual void gather(const void *own, void *all, size_t bytes) = 0;
  // Before the first plan: finds out how messages go best. Collective; later calls do nothing.
  virtual void meet() {}
  // The group is lost: messages that still wait for other ranks on the device end. From any thread.
  virtual void end_messages() noexcept {}
  // Throws what went wrong since the last call: a failed kernel, a failed link, a peer that does not come.
  // Never blocks. From any thread, also while another is in a call.
  virtual void check() = 0;
  // Whether this is memory of the device that the host cannot be asked to read.
  virtual bool has_memory(const void *) const { return false; }
  // Once work on the stream is done; ends when it is, or throws what keeps it from ending. Bytes of memory that the
  // device has; and the first of these tensors' elements that is not as it should be.
  virtual void read(void *to, const void *from, size_t bytes, lasp_stream) { std::memcpy(to, from, bytes); }
  virtual std::optional<ValueFound> find_value(std::span<const ValueProbe> probes, lasp_stream) {
    return lasp::find_value(probes);
  }
  // With a trace of this context: the device adds when it did what. `collect_times` reads what it has done by now.
  virtual void start_trace(Trace &) {}
  virtual DeviceTimes collect_times() { return {}; }
  // Throws for a problem that the device does not serve, as far as the problem alone tells.
  virtual void require_served(const Problem &problem) const = 0;
  // Collective. What the device refuses only now, or where it fails, the other ranks hear of by `gather`.
  virtual std::unique_ptr<Passes> make_passes(const PassPlan &plan, Gather gather) = 0;
  // The same for a halo; `plan` outlives it.
  virtual std::unique_ptr<HaloPasses> make_halo(const HaloPlan &plan, Gather gather) = 0;
};

// `comm` and `policy` outlive it. Throws Error: no such device, or a comm whose messages cannot reach its memory.
std::unique_ptr<Device> make_cpu_device(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy);
std::unique_ptr<Device> make_cuda_device(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy);
// A GPU that need not be there: its plans have sizes, and run nothing. Throws Error where this build has no kernels
// for it.
std::unique_ptr<Device> make_assumed_cuda_device(Comm &comm, const lasp_placement &placement);

}  // namespace lasp
