#include "cpu/passes.h"

#include <algorithm>
#include <cstring>

#include "core/decay.h"
#include "cpu/cpu_backend.h"

namespace lasp::cpu {
namespace {

size_t steps_of(const ExchangePlan *plan) { return plan == nullptr ? 0 : plan->list.steps.size(); }

}  // namespace

CpuPasses::CpuPasses(const PassPlan &plan, Comm &comm, const WaitPolicy &policy, bool verify_messages,
                     ThreadPool &pool)
    : Passes(plan),
      comm_(comm),
      policy_(policy),
      backend_(make_cpu_backend(plan.problem, plan.partition, pool)),
      offsets_(plan.problem.packed ? plan.problem.num_sequences : 0) {
  const size_t left = steps_of(plan.forward.left), right = steps_of(plan.backward.right);
  left_.receipts.resize(left);
  right_.receipts.resize(right);
  messages_.reserve(left + right + 2 * static_cast<size_t>(comm.nranks()), verify_messages);
}

void CpuPasses::set_packing(const Packing &packing) {
  if (!offsets_.take(packing)) return;
  backend_->repack(plan().ranges, plan().rank, offsets_.values());
  messages_.set_packing(offsets_.sum());
}

void CpuPasses::OneWay::open(const std::optional<Slots> &maps) {
  exchange.reset();
  if (maps) exchange.emplace(*maps);
}

void CpuPasses::open_exchange(Pass, const PassMaps &maps, const float *log_decay) {
  left_.open(maps.left);
  right_.open(maps.right);
  log_decay_ = log_decay;
}

void CpuPasses::start_exchange(int32_t operation, const ExchangeLog &) {
  const auto start = [&](OneWay &way, TagKind kind) {
    if (way.exchange)
      way.exchange->start(comm_, *backend_, messages_, way.receipts, tag_of(operation, kind), policy_, log_decay_);
  };
  start(left_, kTagLeft);
  start(right_, kTagRight);
}

bool CpuPasses::advance_exchange() {
  const bool left_done = left_.advance();
  const bool right_done = right_.advance();
  return left_done && right_done;
}

void CpuPasses::await_exchange() {
  left_.finish();
  right_.finish();
}

void CpuPasses::copy(void *to, const void *from, uint64_t bytes) { std::memcpy(to, from, bytes); }

void CpuPasses::clear(void *to, uint64_t bytes) { std::memset(to, 0, bytes); }

void CpuPasses::keep_all(float *factors, int64_t count) { std::fill_n(factors, count, kKeepsAll); }

void CpuPasses::end_exchange(const ExchangeLog &log) {
  messages_.wait_all(comm_, policy_, "sending a state");
  log.write("states");
}

void CpuPasses::cancel_exchange() { messages_.cancel_all(comm_); }

void CpuPasses::move(float *states, const StateMessages &messages, const ExchangeLog &log) {
  const int32_t tag = tag_of(messages.operation, messages.tag);
  try {
    for (const StateMessage &message : messages.list) {
      float *const at = states + message.offset;
      if (message.is_send) {
        messages_.send(comm_, at, message.bytes, message.peer, tag);
      } else {
        messages_.receive(comm_, at, message.bytes, message.peer, tag);
      }
    }
    messages_.wait_all(comm_, policy_, messages.doing);
  } catch (...) {
    messages_.cancel_all(comm_);
    throw;
  }
  log.write(messages.name);
}

}  // namespace lasp::cpu
