// The passes on the CPU: messages between host memories, looked after by the thread that works, between two pieces
// of work.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/rank_work.h"
#include "engine/passes.h"

namespace lasp::cpu {

class CpuPasses final : public Passes {
 public:
  // All outlive it.
  CpuPasses(const PassPlan &plan, Comm &comm, const WaitPolicy &policy, bool verify_messages, ThreadPool &pool);

  Backend &backend() override { return *backend_; }
  void prepare(lasp_stream) override {}

 private:
  void run(const Call &, FunctionRef<void()> body) override { body(); }
  Comm &comm() const override { return comm_; }
  const Log &log() const override { return policy_.log; }
  void open_exchange(Pass pass, const PassMaps &maps, const float *log_decay) override;
  void start_exchange(int32_t operation, const ExchangeLog &log) override;
  bool advance_exchange() override;
  void await_exchange() override;
  void end_exchange(const ExchangeLog &log) override;
  void cancel_exchange() override;
  void copy(void *to, const void *from, uint64_t bytes) override;
  void clear(void *to, uint64_t bytes) override;
  void keep_all(float *factors, int64_t count) override;
  void set_packing(const Packing &packing) override;
  void move(float *states, const StateMessages &messages, const ExchangeLog &log) override;

  // The exchange of a pass in one direction; empty where it has none.
  struct OneWay {
    std::optional<Exchange> exchange;
    std::vector<size_t> receipts;

    void open(const std::optional<Slots> &maps);
    bool advance() { return !exchange || exchange->advance(); }
    void finish() {
      if (exchange) exchange->finish();
    }
  };

  Comm &comm_;
  const WaitPolicy &policy_;
  std::unique_ptr<RankWork> backend_;
  Offsets offsets_;
  Messages messages_;
  OneWay left_, right_;
  const float *log_decay_ = nullptr;
};

}  // namespace lasp::cpu
