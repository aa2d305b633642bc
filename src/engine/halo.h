// A halo on a plan: its rows and messages, and the order of its two calls, the same on every device. How rows are
// moved and messages travel is what a device implements: cpu/halo.h, cuda/halo.h.
#pragma once

#include <lasp/lasp.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "comm/comm.h"
#include "comm/transfer.h"
#include "core/halo.h"
#include "core/packing.h"
#include "exchange/exchange_log.h"

namespace lasp {

class Plan;

struct HaloForward {
  const void *x;
  void *before, *workspace;
  Packing packing = {};
};
struct HaloBackward {
  const void *d_before;
  void *d_x, *workspace;
  Packing packing = {};
};

// A tensor [B, T, C] or [B, n, C].
struct HaloRows {
  void *data;
  Layout layout;
  DType dtype;
};

class HaloPasses {
 public:
  virtual ~HaloPasses() = default;
  HaloPasses(const HaloPasses &) = delete;
  HaloPasses &operator=(const HaloPasses &) = delete;

  // As Passes::forward and backward.
  void forward(const HaloForward &buffers, lasp_stream stream);
  void backward(const HaloBackward &buffers, lasp_stream stream);

 protected:
  // `plan` outlives it.
  explicit HaloPasses(const HaloPlan &plan);
  const HaloPlan &plan() const { return plan_; }
  // Of one call, without their memory.
  std::vector<Transfer> messages(bool forward) const;
  // The offsets of the call, of a packed plan.
  const Offsets &offsets() const { return offsets_; }

  // Runs the body of a call, with what the device has around it.
  virtual void run(const char *name, lasp_stream stream, FunctionRef<void()> body) = 0;
  virtual Comm &comm() const = 0;
  virtual const Log &log() const = 0;

  // Zero into the first `count` rows of each batch row.
  virtual void clear(const HaloRows &to, int64_t count) = 0;
  // Rows to the places of their parts in the workspace, and back; parts without a place are left alone.
  virtual void gather(std::span<const HaloPart> parts, const HaloRows &from, void *workspace) = 0;
  virtual void scatter(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) = 0;
  // Adds all parts to their rows: float32, in the order of the parts, rounded once.
  virtual void add(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) = 0;
  // One operation's messages, all at once. `log` is written at its end.
  virtual void exchange(std::span<const Transfer> messages, int32_t operation, const ExchangeLog &log) = 0;

 private:
  void send_and_receive(OperationKind kind, DType type, void *workspace, void *before);
  void take_packing(const Packing &packing);
  std::span<const HaloPart> added(DType type);
  std::span<const HaloPart> given_of_each(DType type);
  void clear_each(const HaloRows &before);

  const HaloPlan &plan_;
  std::vector<Transfer> group_;
  Offsets offsets_;
  std::vector<HaloPart> added_;
};

// What Halo::info() would be on a rank of a group, none of which need exist.
lasp_halo_info info_of(const lasp_problem &problem, const lasp_placement &placement,
                       const lasp_halo_options &options);

class Halo {
 public:
  // Collective: validates, agrees with the other ranks. Throws Error. `refusal` is what the caller of this
  // constructor already found wrong.
  Halo(Plan &plan, const lasp_halo_options &options, std::optional<Error> refusal);
  Halo(const Halo &) = delete;
  Halo &operator=(const Halo &) = delete;

  const HaloPlan &plan() const { return plan_; }
  lasp_halo_info info() const { return plan_.info(); }
  HaloPasses &passes() { return *passes_; }

 private:
  HaloPlan plan_;
  std::unique_ptr<HaloPasses> passes_;
};

}  // namespace lasp
