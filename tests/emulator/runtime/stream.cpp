// Streams of the stand-in CUDA runtime.
#include "runtime/stream.h"

#include <algorithm>
#include <map>
#include <thread>

namespace emulator::runtime {
namespace {

// Never torn down: threads of streams may outlive the program's statics.
struct Moments {
  std::mutex mutex;
  std::condition_variable reached;
};
Moments &moments() {
  static auto *const all = new Moments;
  return *all;
}

struct Queues {
  std::mutex mutex;
  std::vector<std::weak_ptr<Queue>> all;
  std::map<int, std::shared_ptr<Queue>> of_devices;
};
Queues &queues() {
  static auto *const all = new Queues;
  return *all;
}

std::shared_ptr<Queue> make_queue(int device) {
  auto queue = std::make_shared<Queue>(device);
  std::vector<std::weak_ptr<Queue>> &all = queues().all;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto &old) { return old.expired(); }), all.end());
  all.push_back(queue);
  return queue;
}

cudaError_t make_stream(cudaStream_t *stream) {
  const std::lock_guard lock(queues().mutex);
  *stream = new CUstream_st{make_queue(current_device()), {}};
  return cudaSuccess;
}

}  // namespace

bool Moment::reached() const {
  const std::lock_guard lock(moments().mutex);
  return reached_;
}
void Moment::reach() {
  const std::lock_guard lock(moments().mutex);
  reached_ = true;
  time_ = Clock::now();
  moments().reached.notify_all();
}
void Moment::wait() const {
  std::unique_lock lock(moments().mutex);
  moments().reached.wait(lock, [this] { return reached_; });
}
Moment::Clock::time_point Moment::time() const {
  const std::lock_guard lock(moments().mutex);
  return time_;
}

void Queue::push(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!started_) std::thread([self = shared_from_this()] { self->serve(); }).detach();
  started_ = true;
  work_.push_back(std::move(work));
  ++pushed_;
  changed_.notify_all();
}

void Queue::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return left_ || !work_.empty(); });
    if (work_.empty()) return;
    {
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
    }
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

bool Queue::idle() {
  const std::lock_guard lock(mutex_);
  return done_ == pushed_;
}

void Queue::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, until = pushed_] { return done_ >= until; });
}

void Queue::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

Queue &queue_of(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return *stream->queue;
  const std::lock_guard lock(queues().mutex);
  std::shared_ptr<Queue> &queue = queues().of_devices[current_device()];
  if (!queue) queue = make_queue(current_device());
  return *queue;
}

void wait_for_device(int device) {
  std::vector<std::shared_ptr<Queue>> there;
  {
    const std::lock_guard lock(queues().mutex);
    for (const auto &queue : queues().all)
      if (auto one = queue.lock(); one && one->device() == device) there.push_back(std::move(one));
  }
  for (const auto &queue : there) queue->wait();
}

void run_guarded(const std::function<void()> &work) {
  if (broken() != cudaSuccess) return;
  try {
    work();
  } catch (const std::exception &fault) {
    break_all(fault.what());
  }
}

cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, std::function<void()> run, const Kernel *kernel) {
  {
    const std::lock_guard lock(capture_mutex());
    if (in_capture(stream)) {
      auto node = std::make_shared<CUgraphNode_st>(CUgraphNode_st{type, std::move(run), kernel, {}});
      return add_node(stream->captured, std::move(node));
    }
  }
  queue_of(stream).push([run = std::move(run)] { run_guarded(run); });
  return cudaSuccess;
}

}  // namespace emulator::runtime

using namespace emulator::runtime;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
  return call([&] { return make_stream(stream); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  return call([&] { return make_stream(stream); });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  stream->queue->leave();
  const std::lock_guard lock(capture_mutex());
  delete stream;
  return note(broken());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call([&] {
    if (const cudaError_t error = refuse_captured(stream)) return error;
    queue_of(stream).wait();
    return broken();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call([&] {
    if (const cudaError_t error = refuse_captured(stream)) return error;
    return queue_of(stream).idle() ? broken() : cudaErrorNotReady;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call([&] {
    if (const cudaError_t error = refuse_unsafe()) return error;
    wait_for_device(current_device());
    return broken();
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user) {
  return call([&] { return enqueue(stream, cudaGraphNodeTypeHost, [=] { function(user); }); });
}
