#include "memory.h"

#include <sanitizer/asan_interface.h>

namespace lasp_fuzz {
namespace {

constexpr size_t kRoom = 4 << 20, kRedZone = 64;
alignas(4096) unsigned char region[kRoom];
size_t used = 0;
const bool poisoned_at_first = (ASAN_POISON_MEMORY_REGION(region, sizeof region), true);

}  // namespace

Memory::~Memory() {
  ASAN_POISON_MEMORY_REGION(region, used);
  used = 0;
}

unsigned char *Memory::take(uint64_t bytes, size_t alignment, uint8_t fill, size_t shift) {
  if (!poisoned_at_first || bytes > kRoom) return nullptr;
  const size_t begin = (used + kRedZone + alignment - 1) / alignment * alignment + shift;
  if (begin + bytes + kRedZone > kRoom) return nullptr;
  used = (begin + bytes + 15) / 16 * 16;
  ASAN_UNPOISON_MEMORY_REGION(region + begin, bytes);
  std::memset(region + begin, fill, bytes);
  return region + begin;
}

size_t Memory::drawn_size(Draw &in, size_t whole, End end) {
  switch (in.below(4)) {
    case 0: {  // an older caller, or nonsense
      const size_t size = in.take<uint16_t>() % (whole + 1);
      return end == End::kWord ? size / 8 * 8 : size;
    }
    case 1: return whole + 1 + in.byte();  // a newer one
    case 2: return whole - 8;              // without its last field
    default: return in.rarely(2) ? in.take<size_t>() | size_t{1} << 63 : (size_t{1} << 16) + in.byte();
  }
}

}  // namespace lasp_fuzz
