// Places, and which device serves them.
#include "device.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "device_cpu.hpp"
#ifdef TRAIN_LM_HAS_CUDA
#include "cuda.hpp"
#include "device_cuda.hpp"
#endif

namespace train_lm {

void Device::wait() const {
  while (!is_idle()) std::this_thread::yield();
}

#ifdef TRAIN_LM_HAS_CUDA

Place place_of(const Place &kind, int local_rank) {
  Place place = kind;
  if (kind.is_cuda()) place.index = local_rank % std::max(1, cuda::device_count());
  return place;
}

std::string name_of(const Place &place) { return place.is_cuda() ? cuda::name(place.index) : "CPU"; }

std::unique_ptr<Device> make_device(const Place &place, int threads) {
  if (place.is_cuda()) return std::make_unique<CudaDevice>(place);
  return std::make_unique<CpuDevice>(place, threads);
}

#else

Place place_of(const Place &kind, int) {
  if (kind.is_cuda())
    throw std::runtime_error("This train_lm was built without CUDA; --device cpu is what it has.");
  return kind;
}

std::string name_of(const Place &) { return "CPU"; }

std::unique_ptr<Device> make_device(const Place &place, int threads) {
  return std::make_unique<CpuDevice>(place, threads);
}

#endif

}  // namespace train_lm
