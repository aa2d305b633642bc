// Memory as a hostile caller would give it: poisoned, aligned no better than asked for, and with canaries around
// it. On a GPU (LASP_TEST_DEVICE=cuda) the library is given a copy in device memory, canaries included; upload()
// and download() carry the whole of it over and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <lasp/lasp.h>

namespace lasp_test {

// Whether the library under test runs on a GPU: LASP_TEST_DEVICE=cuda in the environment.
bool on_cuda();

// The process keeps what is freed, for buffers that are made anew for every case: a tenth of the time less.
void keep_freed_memory();

// 0xff everywhere is a NaN in float32, bfloat16 and float16: whatever was not written shows.
constexpr uint8_t kPoison = 0xff;

class GuardedBuffer {
 public:
  static constexpr size_t kGuard = 256;
  // `data()` and `call_data()` are a multiple of `alignment` plus `misalign` bytes. `behind` bytes of canary
  // follow.
  GuardedBuffer(size_t bytes, size_t alignment, size_t misalign = 0, size_t behind = kGuard);

  uint8_t *data() const { return memory_.get() + front_; }
  // What a call of the library is given: `data()`, or its like in device memory.
  uint8_t *call_data() const { return device_ ? device_at_ : data(); }
  size_t bytes() const { return bytes_; }
  // Ordered on `stream`; download() returns when the bytes are here. Nothing happens on the CPU.
  void upload(lasp_stream stream);
  // The upload that follows is from a second copy on the device, made here, and finds the first poisoned: a copy
  // from the host would make a busy stream's caller wait.
  void stage();
  void download(lasp_stream stream);
  void poison(uint8_t value = kPoison);
  bool poisoned(size_t begin, size_t end) const;
  bool canaries_intact() const;

 private:
  struct Free {
    void operator()(uint8_t *memory) const;
  };
  struct DeviceFree {
    size_t bytes;
    void operator()(void *memory) const;
  };
  void make_device_copy(size_t alignment);

  size_t bytes_, front_, back_;
  std::unique_ptr<uint8_t, Free> memory_;
  std::unique_ptr<void, DeviceFree> device_{nullptr, DeviceFree{0}};
  std::unique_ptr<void, DeviceFree> staged_{nullptr, DeviceFree{0}};
  uint8_t *device_at_ = nullptr;
};

}  // namespace lasp_test
