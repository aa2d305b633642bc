#include "cuda/passes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status.h"
#include "core/decay.h"
#include "cuda/device/profiler.h"

namespace lasp {

CudaPasses::CudaPasses(CudaDevice &device, const PassPlan &plan) : Passes(plan), device_(device) {
  const cuda::Current current(device.primary());
  const cuda::RelaxedCapture relaxed;  // for memory that the backend allocates
  backend_ = make_cuda_backend({plan.problem, plan.partition, plan.ranges, plan.rank, device.capability(),
                                device.multiprocessors(), device.copy_bytes_per_us()},
                               device.upload_stream());
  backend_->set_marks(marks_);
  // For the stages. Where it cannot, they say so; the other calls need nothing of it.
  if (plan.problem.delta && plan.ranges.nranks() > 1) {
    try {
      backend_->prepare_to_compose(0, device.upload_stream());
    } catch (const Error &error) {
      if (error.status != LASP_ERROR_LIBRARY_MISSING) throw;
    }
  }
  const auto make = [&](Directions &directions, const PassExchanges &exchanges) {
    if (exchanges.left != nullptr) directions.left.emplace(device, *backend_, *exchanges.left);
    if (exchanges.right != nullptr) directions.right.emplace(device, *backend_, *exchanges.right);
  };
  make(forward_, plan.forward);
  make(backward_, plan.backward);
  if (plan.relay != nullptr)
    for (const StateMessage &message : plan.relay->messages()) reserve({&message, 1});
  reserve(plan.broadcast);
}

// Of one operation.
void CudaPasses::reserve(std::span<const StateMessage> messages) {
  if (messages.empty()) return;
  std::vector<Transfer> group;
  for (const StateMessage &message : messages)
    group.push_back({message.is_send, message.peer, nullptr, message.bytes});
  device_.transport().reserve(group, 1);
  group_.reserve(std::max(group_.capacity(), group.size()));
  moved_.insert(moved_.end(), group.begin(), group.end());
}

CudaPasses::~CudaPasses() {
  const cuda::Current current(device_.primary());
  const cuda::RelaxedCapture relaxed;
  // Memory is freed once kernels have ended, and those of a lost group may wait for ever.
  if (device_.comm().async_status() != LASP_OK) device_.end_messages();
  backend_.reset();
}

void CudaPasses::run(const Call &call, FunctionRef<void()> body) {
  device_.run({call.name, call.stream, call.communicates}, [&](bool capturing) {
    stream_ = call.stream;
    capturing_ = capturing;
    backend_->set_stream(stream_);
    body();
  });
}

void CudaPasses::open_exchange(Pass pass, const PassMaps &maps, const float *log_decay) {
  directions_ = pass == Pass::kForward ? &forward_ : &backward_;
  maps_ = &maps;
  fork_.emplace(device_, stream_);
  marked_ = capturing_;
  ending_ = false;
  if (marked_) marks_.set(device_.begin_mark(first_peer()));
  log_decay_ = log_decay;
}

void CudaPasses::start_exchange(int32_t operation, const ExchangeLog &log) {
  auto &[left, right] = *directions_;
  fork_->again();
  const cuda::Range range(device_.profiled() ? "lasp exchange" : nullptr);
  const DeviceSpan span(device_.tracing(), "exchange", device_.exchange_stream());
  marked_ ? device_.leave(marks_.take(), device_.exchange_stream()) : device_.begin_watch(first_peer());
  if (left) left->enqueue(*maps_->left, operation, log_decay_);
  if (right) right->enqueue(*maps_->right, operation, log_decay_);
  if (!marked_) device_.end_watch();
  // Messages that wait for nobody go first: work ahead would take all multiprocessors, and others wait for them.
  if (sends_at_once()) fork_->join();
  log.write("states", true);
}

bool CudaPasses::sends_at_once() const {
  const auto at_once = [&](const std::optional<DeviceExchange> &exchange) {
    return !exchange || (!exchange->waits() && device_.transport().sends_at_once(exchange->messages()));
  };
  return at_once(directions_->left) && at_once(directions_->right);
}

void CudaPasses::await_exchange() {
  fork_->join();
  ending_ = true;
  if (marked_) marks_.set(device_.end_mark());
}

void CudaPasses::end_exchange(const ExchangeLog &) {
  fork_.reset();
  if (std::exchange(marked_, false)) device_.leave(marks_.take(), stream_);
}

// A graph may still come of what has been captured: what it begins it ends.
void CudaPasses::cancel_exchange() {
  fork_.reset();
  const gpu::Mark pending = marks_.take();  // none: the beginning's was the last to be left, or the end's
  const bool open = pending.marks != nullptr ? pending.ends : !ending_;
  if (std::exchange(marked_, false) && open) gpu::launch_mark(device_.end_mark(), stream_);
}

void CudaPasses::copy(void *to, const void *from, uint64_t bytes) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying a map");
}

void CudaPasses::clear(void *to, uint64_t bytes) {
  if (bytes > 0) cuda::check(cudaMemsetAsync(to, 0, bytes, stream_), "clearing a map");
}

// Of -0.0, that is: four bytes of zero, then of each the last.
void CudaPasses::keep_all(float *factors, int64_t count) {
  static_assert(std::bit_cast<uint32_t>(kKeepsAll) == 0x80000000u);
  const auto rows = static_cast<size_t>(count);
  clear(factors, rows * sizeof(float));
  cuda::check(cudaMemset2DAsync(reinterpret_cast<std::byte *>(factors) + 3, sizeof(float), 0x80, 1, rows, stream_),
              "filling a map");
}

void CudaPasses::move(float *states, const StateMessages &messages, const ExchangeLog &log) {
  group_.clear();
  for (const StateMessage &message : messages.list)
    group_.push_back({message.is_send, message.peer, states + message.offset, message.bytes});
  device_.enqueue({stream_, capturing_, messages.operation, tag_of(messages.operation, messages.tag)}, group_);
  log.write(messages.name, true);
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
  add(moved_);
  for (const Directions *directions : {&forward_, &backward_})
    for (const auto *exchange : {&directions->left, &directions->right})
      if (*exchange) add((*exchange)->messages());
  return peers;
}

void CudaPasses::connect() {
  const cuda::Current current(device_.primary());
  const std::vector<Transfer> peers = connections();
  if (!peers.empty()) device_.transport().connect(peers, device_.exchange_stream());
}

void CudaPasses::prepare(lasp_stream stream) {
  run({"lasp prepare", stream, false}, [&] {
    if (capturing_)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "stream: it is being captured; prepare the plan before the capture");
    const std::vector<Transfer> peers = connections();
    if (!peers.empty()) device_.transport().connect(peers, device_.exchange_stream());
  });
}

}  // namespace lasp
