#include "cuda/device_passes.h"

#include <algorithm>

#include "base/status.h"
#include "cuda/device/device.h"
#include "cuda/device/profiler.h"
#include "exchange/exchange_log.h"

namespace lasp {

CudaPasses::CudaPasses(CudaDevice &device, const PassPlan &plan) : device_(device), plan_(plan) {
  const cuda::Current current(device.primary());
  const cuda::RelaxedCapture relaxed;  // for memory that the backend allocates
  backend_ = make_cuda_backend(plan.problem, plan.work, device.capability(), device.multiprocessors(),
                               device.upload_stream());
  if (plan.forward_left != nullptr) forward_.left.emplace(device, *backend_, *plan.forward_left);
  if (plan.forward_right != nullptr) forward_.right.emplace(device, *backend_, *plan.forward_right);
  if (plan.backward_left != nullptr) backward_.left.emplace(device, *backend_, *plan.backward_left);
  if (plan.backward_right != nullptr) backward_.right.emplace(device, *backend_, *plan.backward_right);
  if (plan.problem.broadcast_final_state) plan_broadcast();
}

CudaPasses::~CudaPasses() {
  const cuda::Current current(device_.primary());
  const cuda::RelaxedCapture relaxed;
  backend_.reset();
}

// What every call has around it: the device, the state of the capture, and the memory of a failure.
template <class Body>
void CudaPasses::run(const char *name, lasp_stream stream, bool communicates, Body body) {
  const cuda::Current current(device_.primary());
  capturing_ = cuda::is_capturing(stream);
  const char *refusal = device_.link().capture_refusal();
  if (capturing_ && communicates && refusal != nullptr) throw fail(LASP_ERROR_UNSUPPORTED, "stream: %s", refusal);
  if (!capturing_) device_.check();
  const cuda::Range range(device_.profiled() ? name : nullptr);
  try {
    body();
  } catch (const Error &error) {
    if (error.status == LASP_ERROR_DEVICE) device_.remember(error);
    throw;
  }
}

template <class Buffers, class States, class Ahead, class Finish>
void CudaPasses::run_exchange(Directions &directions, Buffers buffers, States states, Ahead ahead, Finish finish,
                              lasp_stream stream) {
  auto &[left, right] = directions;
  // A result's memory is free until what comes in has been read. Only passes of one direction leave it so.
  const Borrowed result = result_of(buffers);
  Carver memory(buffers.workspace);
  std::optional<Slots> to_right, to_left;
  if (left) to_right.emplace(left->plan(), memory, result);
  if (right) to_left.emplace(right->plan(), memory, result);
  buffers.workspace = static_cast<std::byte *>(buffers.workspace) + memory.used();

  ExchangeFork fork(device_, stream);
  const float *decay = head_decay(buffers.decay);
  if (left) left->fill_known_transitions(*to_right, decay);
  if (right) right->fill_known_transitions(*to_left, decay);
  states(buffers, to_right ? to_right->local() : AffineMapView{}, to_left ? to_left->local() : AffineMapView{});
  fork.again();
  {
    const cuda::Range range(device_.profiled() ? "lasp exchange" : nullptr);
    const int32_t operation = device_.comm().next_operation(&directions == &forward_ ? OperationKind::kForward
                                                                                     : OperationKind::kBackward);
    ExchangeLog log(device_.log(), device_.comm());
    if (!capturing_) device_.begin_watch(left ? left->first_peer() : right->first_peer());
    if (left) left->enqueue(*to_right, operation);
    if (right) right->enqueue(*to_left, operation);
    if (!capturing_) device_.end_watch();
    for (const auto *exchange : {&left, &right})
      if (*exchange) log.add((*exchange)->plan());
    log.write("states", true);
  }
  // All of it: the host does not know when the exchange ends.
  ahead(buffers, [] { return false; });
  fork.join();
  finish(buffers, Incoming{to_right ? to_right->incoming() : nullptr, to_left ? to_left->incoming() : nullptr});
}

Borrowed CudaPasses::result_of(const ForwardBuffers &buffers) const {
  return {buffers.o, backend_->forward_result_bytes()};
}
Borrowed CudaPasses::result_of(const BackwardBuffers &buffers) const {
  return {buffers.dv, backend_->backward_result_bytes()};
}

const float *CudaPasses::head_decay(const void *decay) const {
  return plan_.problem.decay == Decay::kHead ? static_cast<const float *>(decay) : nullptr;
}

void CudaPasses::forward(const ForwardBuffers &buffers, bool reuse_state_cache, lasp_stream stream) {
  run("lasp forward", stream, forward_.any() && !reuse_state_cache, [&] {
    backend_->set_stream(stream);
    if (reuse_state_cache) {
      backend_->forward_from_cache(buffers);
    } else if (!forward_.any()) {
      backend_->forward_alone(buffers);
    } else {
      run_exchange(
          forward_, buffers,
          [&](const auto &b, AffineMapView left, AffineMapView right) { backend_->forward_states(b, left, right); },
          [&](const auto &b, const Progress &progress) { backend_->forward_ahead(b, progress); },
          [&](const auto &b, const Incoming &incoming) { backend_->forward_finish(b, incoming); }, stream);
    }
    if (buffers.final_state == nullptr) return;
    backend_->copy_empty_sequences(stream, buffers.final_state, buffers.initial_state);
    if (!reuse_state_cache && !broadcast_.empty()) broadcast_final_state(buffers.final_state, stream);
  });
}

void CudaPasses::backward(const BackwardBuffers &buffers, lasp_stream stream) {
  run("lasp backward", stream, backward_.any(), [&] {
    backend_->set_stream(stream);
    if (!backward_.any()) {
      backend_->backward_alone(buffers);
    } else {
      run_exchange(
          backward_, buffers,
          [&](const auto &b, AffineMapView left, AffineMapView right) {
            backend_->backward_states(b, left, right);
          },
          [&](const auto &b, const Progress &progress) { backend_->backward_ahead(b, progress); },
          [&](const auto &b, const Incoming &incoming) { backend_->backward_finish(b, incoming); }, stream);
    }
    if (buffers.d_initial_state != nullptr)
      backend_->copy_empty_sequences(stream, buffers.d_initial_state, buffers.d_final_state);
  });
}

void CudaPasses::step(const StepBuffers &buffers, lasp_stream stream) {
  run("lasp step", stream, false, [&] {
    backend_->set_stream(stream);
    backend_->step(buffers);
  });
}

void CudaPasses::plan_broadcast() {
  const Comm &comm = device_.comm();
  const int64_t bytes = plan_.problem.heads * plan_.problem.state_size() * int64_t{sizeof(float)};
  const auto run_of = [&](int32_t rank) {
    const auto r = static_cast<size_t>(rank);
    const int64_t begin = plan_.final_begin[r], end = plan_.final_begin[r + 1];
    // An offset, until the pass says from where.
    return Transfer{false, rank, reinterpret_cast<void *>(begin * bytes),
                    static_cast<uint64_t>((end - begin) * bytes)};
  };
  const Transfer own = run_of(comm.rank());
  for (int32_t peer = 0; peer < comm.nranks(); ++peer) {
    if (peer == comm.rank()) continue;
    if (const Transfer theirs = run_of(peer); theirs.bytes > 0) broadcast_.push_back(theirs);
    if (own.bytes > 0) broadcast_.push_back({true, peer, own.data, own.bytes});
  }
  group_.reserve(broadcast_.size());
  device_.link().reserve(broadcast_, 1);
}

void CudaPasses::broadcast_final_state(float *final_state, lasp_stream stream) {
  Comm &comm = device_.comm();
  group_.clear();
  for (Transfer transfer : broadcast_) {
    transfer.data = reinterpret_cast<std::byte *>(final_state) + reinterpret_cast<intptr_t>(transfer.data);
    group_.push_back(transfer);
    transfer.is_send ? comm.count_sent(transfer.bytes) : comm.count_received(transfer.bytes);
  }
  const int32_t operation = comm.next_operation(OperationKind::kFinalState);
  ExchangeLog log(device_.log(), comm);
  for (const Transfer &transfer : group_) log.add(transfer.is_send, transfer.peer, transfer.bytes);
  ExchangeFork fork(device_, stream);
  if (!capturing_) device_.begin_watch(group_.front().peer);
  device_.link().exchange(group_, device_.exchange_stream(), operation, tag_of(operation, kTagFinalState));
  device_.link().finish(device_.exchange_stream());
  if (!capturing_) device_.end_watch();
  fork.join();
  log.write("final states", true);
}

// Each peer once, in each direction that some message goes.
std::vector<Transfer> CudaPasses::connections() const {
  std::vector<Transfer> peers;
  const auto add = [&](const std::vector<Transfer> &messages) {
    for (const Transfer &message : messages) {
      const bool known = std::any_of(peers.begin(), peers.end(), [&](const Transfer &peer) {
        return peer.peer == message.peer && peer.is_send == message.is_send;
      });
      if (!known) peers.push_back(message);
    }
  };
  add(broadcast_);
  for (const Directions *directions : {&forward_, &backward_})
    for (const auto *exchange : {&directions->left, &directions->right})
      if (*exchange) add((*exchange)->messages());
  return peers;
}

void CudaPasses::connect() {
  const cuda::Current current(device_.primary());
  const std::vector<Transfer> peers = connections();
  if (!peers.empty()) device_.link().connect(peers, device_.exchange_stream());
}

void CudaPasses::prepare(lasp_stream stream) {
  run("lasp prepare", stream, false, [&] {
    if (capturing_)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "stream: it is being captured; prepare the plan before the capture");
    const std::vector<Transfer> peers = connections();
    if (!peers.empty()) device_.link().connect(peers, device_.exchange_stream());
  });
}

}  // namespace lasp
