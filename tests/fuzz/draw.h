// What every target needs: choices drawn from the fuzzer's bytes, what a call's status must be, and the choices
// that count as something new seen.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lasp_fuzz {

// Ends the program with a sentence: the input at hand shows a defect.
[[noreturn]] void broken(const char *what);

// Returns a status that every call of the interface may answer with, and that has its sentence; other statuses, and
// those that say the library is at fault, end the program.
lasp_status checked(lasp_status status);

// Choices from the front of the bytes. Bytes that are used up are zeros, which choose what is plain and legal.
class Draw {
 public:
  Draw(const uint8_t *data, size_t size) : data_(data), size_(size) {}

  void take(void *to, size_t bytes) {
    const size_t given = bytes < size_ ? bytes : size_;
    std::memset(to, 0, bytes);
    if (given > 0) std::memcpy(to, data_, given);
    data_ += given, size_ -= given;
  }
  template <class T>
  T take() {
    T value;
    take(&value, sizeof value);
    return value;
  }
  uint8_t byte() { return take<uint8_t>(); }
  int32_t below(int32_t bound) { return bound <= 256 ? byte() % bound : take<uint16_t>() % bound; }
  template <class T, size_t N>
  T one_of(const T (&values)[N]) {
    return values[byte() % N];
  }
  bool rarely(int32_t in) { return byte() % in == in - 1; }
  // Values that break arithmetic, or any.
  int32_t nasty32();
  int64_t nasty64();

 private:
  const uint8_t *data_;
  size_t size_;
};

// Tells libFuzzer that this input shows feature number `feature` (below kFeatures): it keeps an input for each.
constexpr int32_t kFeatures = 4096;
void seen(int32_t feature);

// The body of a target: one input. Defined by each fuzz_*.cpp.
void one_input(Draw &in);
// What a target does before its first input.
void prepare();

}  // namespace lasp_fuzz
