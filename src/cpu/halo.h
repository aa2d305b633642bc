// A halo on the CPU: rows are copied by the calling thread, messages go between host memories.
#pragma once

#include "engine/halo.h"

namespace lasp::cpu {

class CpuHalo final : public HaloPasses {
 public:
  // All outlive it.
  CpuHalo(const HaloPlan &plan, Comm &comm, const WaitPolicy &policy, bool verify_messages);

 private:
  void run(const char *, lasp_stream, FunctionRef<void()> body) override { body(); }
  Comm &comm() const override { return comm_; }
  const Log &log() const override { return policy_.log; }
  void clear(const HaloRows &to, int64_t count) override;
  void gather(std::span<const HaloPart> parts, const HaloRows &from, void *workspace) override;
  void scatter(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) override;
  void add(std::span<const HaloPart> parts, const HaloRows &to, const void *workspace) override;
  void exchange(std::span<const Transfer> messages, int32_t operation, const ExchangeLog &log) override;

  // Calls visit(row of the tensor, row of the message) for each row of the parts that have a place.
  template <class Visit>
  void for_each_row(std::span<const HaloPart> parts, const HaloRows &rows, const void *workspace, Visit visit);

  Comm &comm_;
  const WaitPolicy &policy_;
  Messages messages_;
};

}  // namespace lasp::cpu
