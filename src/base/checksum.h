// The checksum that travels with a message: of its bytes, their number, and a seed that says which message it is.
// One that was changed within eight bytes on a multiple of eight, so also by any single bit, is always found: every
// step below is a bijection of each of its two arguments. Other changes go unseen with a chance of about 2^-64. It
// guards against damage, not against a forger. The rounds are those of xxHash64: 32 bytes at once, in four lanes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lasp {

namespace checksum_detail {

constexpr uint64_t kOdd1 = 0x9e3779b185ebca87, kOdd2 = 0xc2b2ae3d27d4eb4f, kStart = 0x27d4eb2f165667c5;

constexpr uint64_t mix(uint64_t sum, uint64_t word) { return std::rotl(sum + word * kOdd2, 31) * kOdd1; }

inline uint64_t word_at(const unsigned char *from, size_t bytes = 8) {
  uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

}  // namespace checksum_detail

inline uint64_t checksum(const void *data, uint64_t bytes, uint64_t seed) {
  using namespace checksum_detail;
  const auto *from = static_cast<const unsigned char *>(data);
  uint64_t sum = mix(mix(kStart, seed), bytes), left = bytes;
  if (left >= 32) {
    uint64_t a = kOdd1 + kOdd2, b = kOdd2, c = 0, d = ~kOdd1;
    for (; left >= 32; left -= 32, from += 32) {
      a = mix(a, word_at(from));
      b = mix(b, word_at(from + 8));
      c = mix(c, word_at(from + 16));
      d = mix(d, word_at(from + 24));
    }
    sum = mix(mix(mix(mix(sum, a), b), c), d);
  }
  for (; left >= 8; left -= 8, from += 8) sum = mix(sum, word_at(from));
  if (left > 0) sum = mix(sum, word_at(from, left));
  return sum ^ sum >> 32;
}

// Which message it is: the sender, the tag (15 bits), and its number among those of one sender, receiver and tag.
constexpr uint64_t message_seed(int32_t sender, int32_t tag, uint32_t number) {
  return static_cast<uint64_t>(sender) << 47 | static_cast<uint64_t>(tag) << 32 | number;
}

}  // namespace lasp
