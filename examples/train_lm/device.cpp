// Places, and memory there.
#include "device.hpp"

#include <algorithm>
#include <thread>

#include "cuda.hpp"

namespace train_lm {

Place place_of(int device, int local_rank) {
  if (device != LASP_DEVICE_CUDA) return {};
  return {device, local_rank % std::max(1, cuda::device_count())};
}

std::string name_of(const Place &place) { return place.is_cuda() ? cuda::name(place.index) : "CPU"; }

Device::Device(const Place &place) : place_(place) {
  if (!is_cuda()) return;
  cuda::use(place.index);
  stream_ = cuda::make_stream();
}

Device::~Device() {
  if (is_cuda()) cuda::destroy_stream(stream_);
}

bool Device::is_idle() const { return !is_cuda() || cuda::is_idle(stream_); }

void Device::copy(void *to, const void *from, std::size_t bytes) {
  if (bytes == 0) return;
  if (is_cuda())
    cuda::copy(to, from, bytes, stream_);
  else
    std::memcpy(to, from, bytes);
}

void Device::wait() const {
  while (!is_idle()) std::this_thread::yield();
}

DeviceArray::DeviceArray(Device &device, MemoryMeter &host, std::size_t bytes)
    : bytes_(bytes), gpu_(nullptr, Release{&device.meter(), bytes}) {
  if (!device.is_cuda()) {
    host_ = Array<unsigned char>(host, bytes);
    return;
  }
  // Never empty: a rank without tokens still hands valid pointers to the collective calls.
  gpu_.reset(cuda::allocate(std::max<std::size_t>(bytes, 1)));
  device.meter().add(bytes);
}

void DeviceArray::Release::operator()(void *data) const {
  cuda::release(data);
  meter->remove(bytes);
}

std::size_t DeviceArray::alignment() const {
  constexpr std::size_t kCudaMalloc = 256;
  return gpu_ ? kCudaMalloc : Array<unsigned char>::kAlignment;
}

Mirror::Mirror(Device &device, MemoryMeter &host, std::size_t floats) : device_(device) {
  if (device.is_cuda()) copy_ = std::make_unique<DeviceArray>(device, host, floats * sizeof(float));
}

const float *Mirror::upload(const float *host) {
  if (!copy_) return host;
  device_.copy(copy_->data(), host, copy_->bytes());
  return static_cast<const float *>(copy_->data());
}

float *Mirror::place(float *host) { return copy_ ? static_cast<float *>(copy_->data()) : host; }

void Mirror::download(float *host) {
  if (!copy_) return;
  device_.copy(host, copy_->data(), copy_->bytes());
  device_.wait();
}

}  // namespace train_lm
