// Memory as a hostile caller would give it: poisoned, aligned no better than asked for, and with canaries around
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lasp_test {

// 0xff everywhere is a NaN in float32, bfloat16 and float16: whatever was not written shows.
constexpr uint8_t kPoison = 0xff;

class GuardedBuffer {
 public:
  // `data()` is a multiple of `alignment` plus `misalign` bytes.
  GuardedBuffer(size_t bytes, size_t alignment, size_t misalign = 0);

  uint8_t *data() const { return memory_.get() + front_; }
  size_t bytes() const { return bytes_; }
  void poison(uint8_t value = kPoison);
  bool poisoned(size_t begin, size_t end) const;
  bool canaries_intact() const;

 private:
  struct Free {
    void operator()(uint8_t *memory) const;
  };
  size_t bytes_, front_, back_;
  std::unique_ptr<uint8_t, Free> memory_;
};

}  // namespace lasp_test
