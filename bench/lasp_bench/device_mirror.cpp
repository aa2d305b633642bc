#include "device_mirror.h"

#include <algorithm>

namespace bench {
namespace {

constexpr size_t kMostSets = 16;

// Enough that one round over all sets moves four times what the L2 cache holds.
size_t sets_for(const std::vector<const Memory *> &memories) {
  size_t bytes = 1;
  for (const Memory *memory : memories) bytes += memory->bytes();
  return std::clamp<size_t>(4 * gpu::l2_bytes() / bytes + 1, 1, kMostSets);
}

}  // namespace

DeviceMirror::DeviceMirror(Link &link, std::vector<const Memory *> memories, const Memory *shared)
    : stream_((gpu::use_device(link.device()), gpu::make_stream())),
      memories_(std::move(memories)),
      shared_(shared) {
  shared_memory_.emplace_back(shared->bytes());
  sets_.resize(static_cast<size_t>(link.largest(static_cast<double>(sets_for(memories_)))));
  for (std::vector<DeviceMemory> &set : sets_)
    for (const Memory *memory : memories_) set.emplace_back(memory->bytes());
}

DeviceMirror::~DeviceMirror() { gpu::destroy_stream(stream_); }

size_t DeviceMirror::index(const Memory &memory) const {
  return static_cast<size_t>(std::find(memories_.begin(), memories_.end(), &memory) - memories_.begin());
}

lasp_buffer DeviceMirror::buffer(const Memory &memory) const {
  const DeviceMemory &there = &memory == shared_ ? shared_memory_[0] : sets_[set_][index(memory)];
  return {there.data(), there.bytes()};
}

void DeviceMirror::upload(const Memory &memory) {
  for (const auto &set : sets_) gpu::copy(set[index(memory)].data(), memory.data(), memory.bytes(), stream_);
  gpu::wait(stream_);
}

void DeviceMirror::spoil(const Memory &memory) {
  if (&memory == shared_) return gpu::fill(shared_memory_[0].data(), 0xff, memory.bytes(), stream_);
  for (const auto &set : sets_) gpu::fill(set[index(memory)].data(), 0xff, memory.bytes(), stream_);
}

void DeviceMirror::download(const Memory &memory) const {
  gpu::copy(memory.data(), sets_[set_][index(memory)].data(), memory.bytes(), stream_);
  gpu::wait(stream_);
}

std::vector<double> copy_rates(lasp_stream stream) {
  constexpr size_t kBytes = size_t{1} << 30;
  const DeviceMemory from(kBytes), to(kBytes);
  gpu::fill(from.data(), 0x3f, kBytes, stream);
  std::vector<double> rates;
  for (int i = -3; i < 15; ++i) {  // the first ones warm up
    gpu::Event begin, end;
    begin.record(stream);
    gpu::copy(to.data(), from.data(), kBytes, stream);
    end.record(stream);
    end.wait();
    if (i >= 0) rates.push_back(2.0 * kBytes / end.milliseconds_since(begin) * 1e-6);
  }
  return rates;
}

}  // namespace bench
