#include "cuda/device_exchange.h"

#include <algorithm>
#include <optional>

namespace lasp {

DeviceExchange::DeviceExchange(CudaDevice &device, CudaBackend &backend, const ExchangePlan &plan)
    : device_(device), backend_(backend), plan_(plan), rounds_(make_rounds(plan.list)) {
  for (const ExchangeStep &step : plan.list.steps)
    if (step.op == Op::kSend || step.op == Op::kReceive)
      messages_.push_back({step.op == Op::kSend, plan.peer_rank(step.peer), nullptr, plan.message_bytes(step)});
  for (const ExchangeStep &step : plan.list.steps)
    if (step.op == Op::kCompose) backend.prepare_to_compose(step.end - step.begin, device.upload_stream());
  if (plan.map.is_known()) find_known();
  group_.reserve(messages_.size());
  for (const Round &round : rounds_) {
    device.transport().require_room(static_cast<size_t>(
        std::count_if(plan.list.steps.begin() + static_cast<int64_t>(round.begin),
                      plan.list.steps.begin() + static_cast<int64_t>(round.end),
                      [](const ExchangeStep &step) { return step.op == Op::kSend || step.op == Op::kReceive; })));
    chains_.push_back(make_chains(plan.list, round, backend.most_composed()));
    for (const Chain &chain : chains_.back()) later_.reserve(chain.size()), later_known_.reserve(chain.size());
  }
  device.transport().reserve(messages_, rounds_.size());
}

int32_t DeviceExchange::first_peer() const {
  for (const Transfer &message : messages_)
    if (!message.is_send) return message.peer;
  return messages_.empty() ? -1 : messages_.front().peer;
}

// As the transitions in slots would be, if they were written: a slot that nothing is received in has an own map.
void DeviceExchange::find_known() {
  const std::vector<ExchangeStep> &steps = plan_.list.steps;
  std::vector<std::optional<KnownTransition>> slots(static_cast<size_t>(plan_.list.slots));
  for (const ExchangeStep &step : steps)
    if ((step.op == Op::kReceive || step.op == Op::kCopy) && plan_.knows_transition(step))
      slots[static_cast<size_t>(step.slot)] = known_transition(plan_, step);
  known_.resize(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].op != Op::kCompose) continue;
    const auto of_slot = [&](int32_t slot) {
      auto &known = slots[static_cast<size_t>(slot)];
      if (!known) known = known_transition(plan_, plan_.place_of(steps[i].at));
      return *known;
    };
    const KnownTransition later = known_[i] = of_slot(steps[i].later);
    if (!steps[i].transition) continue;
    const KnownTransition earlier = of_slot(steps[i].earlier);
    slots[static_cast<size_t>(steps[i].slot)] = {later.reset || earlier.reset, later.tokens + earlier.tokens};
  }
}

void DeviceExchange::enqueue(const Slots &slots, int32_t operation, const float *log_decay) {
  Comm &comm = device_.comm();
  const cudaStream_t stream = device_.exchange_stream();
  const int32_t tag = tag_of(operation, plan_.direction == Direction::kLeftToRight ? kTagLeft : kTagRight);
  if (is_ring()) return enqueue_ring(slots, tag, log_decay);
  auto receive = plan_.receives.begin();
  for (const Round &round : rounds_) {
    group_.clear();
    const auto add = [&](const ExchangeStep &step) {
      const bool is_send = step.op == Op::kSend;
      const uint64_t bytes = plan_.message_bytes(step);
      group_.push_back({is_send, plan_.peer_rank(step.peer), slots.message(step), bytes});
      is_send ? comm.count_sent(bytes) : comm.count_received(bytes);
    };
    for (size_t i = round.begin; i < round.end; ++i)
      if (plan_.list.steps[i].op == Op::kSend) add(plan_.list.steps[i]);
    for (; receive != plan_.receives.end() && *receive < round.end; ++receive) add(plan_.list.steps[*receive]);
    if (!group_.empty()) device_.exchange(group_, operation, tag);
    for (size_t i = round.begin; i < round.end; ++i)
      if (const ExchangeStep &step = plan_.list.steps[i]; step.op == Op::kCopy)
        cuda::check(cudaMemcpyAsync(slots.message(step), slots.source(step), plan_.message_bytes(step),
                                    cudaMemcpyDeviceToDevice, stream),
                    "copying a state");
    for (const Chain &chain : chains_[static_cast<size_t>(&round - rounds_.data())])
      compose(slots, chain, log_decay);
  }
  device_.transport().finish(stream);
}

void DeviceExchange::enqueue_ring(const Slots &slots, int32_t tag, const float *log_decay) {
  Comm &comm = device_.comm();
  const AffineMap &map = plan_.map;
  gpu::PeerRing ring;
  ring.shape = {map.rows, map.heads, map.head_dim_k, map.head_dim_v, map.kind == Transition::kDiagonal};
  group_.clear();
  for (const ExchangeStep &step : plan_.list.steps) {
    if (step.op == Op::kCompose) {
      if (known_.empty()) {
        ring.own_factor = slots.map(step.later).transition;
      } else {
        const KnownTransition &own = known_[static_cast<size_t>(&step - plan_.list.steps.data())];
        ring.known = {own.reset, own.tokens};
      }
      continue;
    }
    const bool is_send = step.op == Op::kSend;
    const uint64_t bytes = plan_.message_bytes(step);
    (is_send ? ring.to : ring.from) = plan_.peer_rank(step.peer);
    is_send ? comm.count_sent(bytes) : comm.count_received(bytes);
    group_.push_back({is_send, plan_.peer_rank(step.peer), slots.message(step), bytes});
  }
  ring.own_state = slots.local().state;
  ring.incoming = const_cast<float *>(slots.incoming());
  ring.log_decay = log_decay;
  if (!group_.empty()) device_.ring(ring, group_, tag);
}

void DeviceExchange::compose(const Slots &slots, const Chain &chain, const float *log_decay) {
  const std::vector<ExchangeStep> &steps = plan_.list.steps;
  const ExchangeStep &first = steps[chain.front()], &last = steps[chain.back()];
  if (!known_.empty()) {
    later_known_.clear();
    for (const size_t i : chain) later_known_.push_back({slots.state(steps[i].later), known_[i]});
    return backend_.compose_known(device_.exchange_stream(), slots.state(last.slot), later_known_,
                                  slots.state(first.earlier), log_decay, last.begin, last.end);
  }
  AffineMapView to = slots.map(last.slot);
  if (!last.transition) to.transition = nullptr;
  later_.clear();
  for (const size_t i : chain) later_.push_back(slots.map(steps[i].later));
  backend_.compose(device_.exchange_stream(), to, later_, slots.map(first.earlier), last.begin, last.end);
}

}  // namespace lasp
