// The passes on the CPU: phases of the backend with the exchange between them. The order is what makes it fast: own
// state first, then the exchange, and while that runs all work that needs no incoming state. On a device the same
// is enqueued by DevicePasses.
#include <cstring>

#include "base/status.h"
#include "engine/plan.h"
#include "exchange/exchange_log.h"

namespace lasp {

template <class Buffers, class States, class Ahead, class Finish>
void Plan::run_exchange(Pass pass, Buffers buffers, const float *head_decay, States states, Ahead ahead,
                        Finish finish) {
  Comm &comm = context_.comm();
  const ExchangePlan *left_plan = left(pass), *right_plan = right(pass);
  Carver memory(buffers.workspace);
  std::optional<Exchange> to_right, to_left;
  if (left_plan != nullptr) to_right.emplace(*left_plan, memory);
  if (right_plan != nullptr) to_left.emplace(*right_plan, memory);
  buffers.workspace = static_cast<std::byte *>(buffers.workspace) + memory.used();

  states(buffers, to_right ? to_right->local() : AffineMapView{}, to_left ? to_left->local() : AffineMapView{});
  const int32_t operation =
      comm.next_operation(pass == Pass::kForward ? OperationKind::kForward : OperationKind::kBackward);
  const WaitPolicy &policy = context_.wait_policy();
  ExchangeLog log(policy.log, comm);
  try {
    if (to_right)
      to_right->start(comm, *backend_, messages_, left_receipts_, tag_of(operation, kTagLeft), policy, head_decay);
    if (to_left)
      to_left->start(comm, *backend_, messages_, right_receipts_, tag_of(operation, kTagRight), policy, head_decay);
    ahead(buffers, [&] {
      const bool right_done = !to_right || to_right->advance();
      const bool left_done = !to_left || to_left->advance();
      return right_done && left_done;
    });
    if (to_right) to_right->finish();
    if (to_left) to_left->finish();
    finish(buffers, Incoming{to_right ? to_right->incoming() : nullptr, to_left ? to_left->incoming() : nullptr});
    messages_.wait_all(comm, policy, "sending a state");
  } catch (...) {
    messages_.cancel_all(comm);
    throw;
  }
  for (const ExchangePlan *plan : {left_plan, right_plan})
    if (plan != nullptr) log.add(*plan);
  log.write("states");
}

void Plan::forward(const ForwardBuffers &buffers, bool reuse_state_cache, lasp_stream stream) {
  if (passes_ != nullptr) return passes_->forward(buffers, reuse_state_cache, stream);
  if (reuse_state_cache) {
    backend_->forward_from_cache(buffers);
    if (buffers.final_state != nullptr) copy_empty_sequences(buffers.final_state, buffers.initial_state);
    return;
  }
  if (!exchanges()) {
    backend_->forward_alone(buffers);
  } else {
    const float *head_decay = problem_.decay == Decay::kHead ? static_cast<const float *>(buffers.decay) : nullptr;
    run_exchange(
        Pass::kForward, buffers, head_decay,
        [&](const auto &b, AffineMapView left, AffineMapView right) { backend_->forward_states(b, left, right); },
        [&](const auto &b, const Progress &progress) { backend_->forward_ahead(b, progress); },
        [&](const auto &b, const Incoming &incoming) { backend_->forward_finish(b, incoming); });
  }
  if (buffers.final_state == nullptr) return;
  copy_empty_sequences(buffers.final_state, buffers.initial_state);
  if (problem_.broadcast_final_state && exchanges()) broadcast_final_state(buffers.final_state);
}

void Plan::backward(const BackwardBuffers &buffers, lasp_stream stream) {
  if (passes_ != nullptr) return passes_->backward(buffers, stream);
  if (!exchanges()) {
    backend_->backward_alone(buffers);
  } else {
    const float *head_decay = problem_.decay == Decay::kHead ? static_cast<const float *>(buffers.decay) : nullptr;
    run_exchange(
        Pass::kBackward, buffers, head_decay,
        [&](const auto &b, AffineMapView left, AffineMapView right) { backend_->backward_states(b, left, right); },
        [&](const auto &b, const Progress &progress) { backend_->backward_ahead(b, progress); },
        [&](const auto &b, const Incoming &incoming) { backend_->backward_finish(b, incoming); });
  }
  if (buffers.d_initial_state != nullptr) copy_empty_sequences(buffers.d_initial_state, buffers.d_final_state);
}

void Plan::step(const StepBuffers &buffers, lasp_stream stream) {
  if (passes_ != nullptr) return passes_->step(buffers, stream);
  backend_->step(buffers);
}

void Plan::prepare(lasp_stream stream) {
  if (passes_ != nullptr) passes_->prepare(stream);
}

// An empty sequence hands its state through unchanged, and so its gradient.
void Plan::copy_empty_sequences(float *to, const float *from) const {
  const int64_t size = problem_.heads * problem_.state_size();
  for (const int64_t n : work_.empty_sequences) {
    if (from != nullptr) {
      std::memcpy(to + n * size, from + n * size, static_cast<size_t>(size) * sizeof(float));
    } else {
      std::memset(to + n * size, 0, static_cast<size_t>(size) * sizeof(float));
    }
  }
}

void Plan::broadcast_final_state(float *final_state) {
  Comm &comm = context_.comm();
  const int32_t tag = tag_of(comm.next_operation(OperationKind::kFinalState), kTagFinalState);
  const int64_t size = problem_.heads * problem_.state_size();
  const auto run_of = [&](int32_t rank) {
    const auto r = static_cast<size_t>(rank);
    const auto bytes = static_cast<uint64_t>((final_begin_[r + 1] - final_begin_[r]) * size) * sizeof(float);
    return std::pair(final_state + final_begin_[r] * size, bytes);
  };
  const auto [own, own_bytes] = run_of(comm.rank());
  ExchangeLog log(context_.log(), comm);
  try {
    for (int32_t peer = 0; peer < comm.nranks(); ++peer) {
      if (peer == comm.rank()) continue;
      const auto [theirs, their_bytes] = run_of(peer);
      if (their_bytes > 0) {
        messages_.receive(comm, theirs, their_bytes, peer, tag);
        log.add(false, peer, their_bytes);
      }
      if (own_bytes > 0) {
        messages_.send(comm, own, own_bytes, peer, tag);
        log.add(true, peer, own_bytes);
      }
    }
    messages_.wait_all(comm, context_.wait_policy(), "broadcasting final states");
  } catch (...) {
    messages_.cancel_all(comm);
    throw;
  }
  log.write("final states");
}

}  // namespace lasp
