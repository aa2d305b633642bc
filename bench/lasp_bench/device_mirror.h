// A rank's buffers on its GPU: several sets of them, used in turn, so that no call finds in the L2 cache what the
// one before left there.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "group.h"
#include "memory.h"
#include "support/device.h"

namespace bench {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : data_(bytes == 0 ? nullptr : gpu::allocate(bytes)), bytes_(bytes) {}
  ~DeviceMemory() { gpu::release(data_, bytes_); }
  DeviceMemory(DeviceMemory &&other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  DeviceMemory(const DeviceMemory &) = delete;
  DeviceMemory &operator=(const DeviceMemory &) = delete;

  void *data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void *data_;
  size_t bytes_;
};

class DeviceMirror {
 public:
  // Makes the link's device the thread's own. `memories` live as long as this; of `shared`, the workspace, one copy
  // will do. All ranks have as many sets, since each round over them makes as many calls.
  DeviceMirror(Link &link, std::vector<const Memory *> memories, const Memory *shared);
  ~DeviceMirror();
  DeviceMirror(const DeviceMirror &) = delete;
  DeviceMirror &operator=(const DeviceMirror &) = delete;

  lasp_stream stream() const { return stream_; }
  int sets() const { return static_cast<int>(sets_.size()); }
  void next() { set_ = (set_ + 1) % sets_.size(); }

  lasp_buffer buffer(const Memory &memory) const;  // of the present set
  void upload(const Memory &memory);               // to every set
  void spoil(const Memory &memory);                // fills every set with NaN
  void download(const Memory &memory) const;       // from the present set

 private:
  size_t index(const Memory &memory) const;

  lasp_stream stream_;
  std::vector<const Memory *> memories_;
  const Memory *shared_;
  std::vector<std::vector<DeviceMemory>> sets_;
  std::vector<DeviceMemory> shared_memory_;
  size_t set_ = 0;
};

// Bytes read and written per second, in GB/s, by copies within the current device: samples.
std::vector<double> copy_rates(lasp_stream stream);

}  // namespace bench
