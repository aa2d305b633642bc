// Memory of exactly the bytes stated, poisoned on both sides: AddressSanitizer sees one byte too many. One region
// is used again for every input, which is several times cheaper than the heap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "draw.h"

namespace lasp_fuzz {

class Memory {
 public:
  Memory() = default;
  ~Memory();  // poisons all that was taken
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;

  // Filled with `fill`; at a multiple of `alignment` (a power of two) plus `shift`. Null when there is no room.
  unsigned char *take(uint64_t bytes, size_t alignment, uint8_t fill, size_t shift = 0);

  // A struct as a caller may give it: mostly whole, sometimes of another size, with a tail of zeros or not, and
  // never more memory behind it than its size says (but always the size itself). What the library reads ends at a
  // whole word: half a pointer would be a wild one.
  enum class End { kWord, kAnywhere };
  template <class T>
  T *place(Draw &in, T value, End end = End::kWord) {
    const size_t size = in.rarely(16) ? drawn_size(in, sizeof(T), end) : sizeof(T);
    const size_t room = size > kMostRoom ? sizeof(size_t) : std::max(size, sizeof(size_t));
    const uint8_t tail = size > sizeof(T) && in.rarely(4) ? in.byte() : uint8_t{0};
    unsigned char *at = take(room, alignof(T), tail);
    value.size = size;
    std::memcpy(at, &value, std::min(room, sizeof(T)));
    return reinterpret_cast<T *>(at);
  }

 private:
  static constexpr size_t kMostRoom = 1 << 16;  // the largest struct that the library looks at
  static size_t drawn_size(Draw &in, size_t whole, End end);
};

}  // namespace lasp_fuzz
