// Where a rank's attention runs, and the memory liblasp works in. On the CPU that is the model's own: nothing is
// copied. On a GPU only the attention runs; an array of the model goes to the device before a call of liblasp and
// comes back after it. That shows how liblasp is called on a GPU, not how fast it is: a trainer made for GPUs keeps
// its activations there.
#pragma once

#include <lasp/lasp.h>

#include <memory>
#include <string>

#include "memory.hpp"

namespace train_lm {

struct Place {
  int device = LASP_DEVICE_CPU;  // LASP_DEVICE_*
  int index = 0;                 // which GPU
  bool is_cuda() const { return device == LASP_DEVICE_CUDA; }
};

// The GPUs here are dealt out in turn to the ranks here. Where there is none the place is one that liblasp refuses,
// with a sentence that says what is missing.
Place place_of(int device, int local_rank);
std::string name_of(const Place &place);

// A place as one thread uses it: on a GPU it is the thread's current device, with a stream for all of the rank's
// work.
class Device {
 public:
  explicit Device(const Place &place);
  ~Device();
  Device(const Device &) = delete;

  bool is_cuda() const { return place_.is_cuda(); }
  lasp_stream stream() const { return stream_; }  // null on the CPU, as liblasp wants it
  MemoryMeter &meter() { return meter_; }         // of the GPU's memory
  bool is_idle() const;

  // In the order of the stream; on the CPU at once.
  void copy(void *to, const void *from, std::size_t bytes);
  void wait() const;

 private:
  const Place place_;
  lasp_stream stream_ = nullptr;
  MemoryMeter meter_;
};

// Memory of a rank's own on its device. On the CPU it counts as the host's.
class DeviceArray {
 public:
  DeviceArray(Device &device, MemoryMeter &host, std::size_t bytes);

  void *data() { return gpu_ ? gpu_.get() : host_.data(); }
  const void *data() const { return gpu_ ? gpu_.get() : static_cast<const void *>(host_.data()); }
  std::size_t bytes() const { return bytes_; }
  std::size_t alignment() const;

 private:
  struct Release {
    MemoryMeter *meter;
    std::size_t bytes;
    void operator()(void *data) const;
  };
  std::size_t bytes_;
  Array<unsigned char> host_;           // on the CPU
  std::unique_ptr<void, Release> gpu_;  // on a GPU
};

// How the device sees arrays of the model of so many floats: on the CPU they are the arrays themselves, on a GPU a
// copy in its memory, of one array at a time.
class Mirror {
 public:
  Mirror(Device &device, MemoryMeter &host, std::size_t floats);

  const float *upload(const float *host);  // the array's place on the device, with its contents
  float *place(float *host);               // the same for a call to write, ...
  void download(float *host);              // ... and then its contents, waiting for them

 private:
  Device &device_;
  std::unique_ptr<DeviceArray> copy_;  // on a GPU
};

}  // namespace train_lm
