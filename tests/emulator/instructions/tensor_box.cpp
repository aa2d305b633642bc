// Boxes of a tensor map, as the copy engine moves them.
#include "instructions/tensor_box.h"

#include "instructions/convert.h"

namespace emulator {

constexpr size_t kMostRowBytes = 256 * 8;

TensorBox::TensorBox(const Block &block, uint64_t map, int rank, const Instruction &instruction)
    : instruction_(&instruction) {
  const std::byte *const at = generic_memory(block, map, 8, false);
  generic_memory(block, map + sizeof map_ - 8, 8, false);
  std::memcpy(&map_, at, sizeof map_);
  if (map_.rank != rank) fail(instruction, "a tensor map of another rank");
  row_bytes_ = size_t{map_.box[0]} * map_.element_bytes;
  if (row_bytes_ == 0 || row_bytes_ > kMostRowBytes || row_bytes_ % 16 != 0) fail(instruction, "the size of a box");
  if (map_.swizzle != 0 && row_bytes_ != map_.swizzle) fail(instruction, "rows of a box unlike its swizzle");
  bytes_ = row_bytes_;
  for (int d = 1; d < rank; ++d) bytes_ *= map_.box[d];
}

void TensorBox::perform(Action action, uint64_t shared_address, std::byte *shared) const {
  const bool loads = action == Action::kLoad;
  const uint64_t address = without_rank(shared_address), mask = map_.swizzle ? map_.swizzle / 16 - 1 : 0;
  // Of a row, the elements that there are.
  const int64_t begin = std::clamp<int64_t>(-int64_t{coordinates_[0]}, 0, map_.box[0]);
  const int64_t end = std::clamp<int64_t>(int64_t{map_.extent[0]} - coordinates_[0], begin, map_.box[0]);
  const size_t before = static_cast<size_t>(begin) * map_.element_bytes;
  const size_t some = static_cast<size_t>(end - begin) * map_.element_bytes;
  GlobalSpan span;
  int index[5] = {};
  std::byte row[kMostRowBytes];
  for (size_t offset = 0; offset < bytes_; offset += row_bytes_) {
    bool there = some != 0;
    uint64_t global = map_.address + static_cast<uint64_t>(coordinates_[0] + begin) * map_.element_bytes;
    for (int d = 1; d < map_.rank; ++d) {
      const int64_t at = int64_t{coordinates_[d]} + index[d];
      there = there && at >= 0 && at < map_.extent[d];
      global += static_cast<uint64_t>(at) * map_.stride[d];
    }
    const auto piece = [&](size_t at) {
      const uint64_t plain = address + offset + at;
      return shared + ((plain ^ (plain >> 7 & mask) << 4) - address);
    };
    if (loads) {
      std::memset(row, 0, row_bytes_);
      if (there) std::memcpy(row + before, span(global, some, false, *instruction_), some);
      for (size_t at = 0; at < row_bytes_; at += 16) std::memcpy(piece(at), row + at, 16);
    } else if (there) {
      for (size_t at = 0; at < row_bytes_; at += 16) std::memcpy(row + at, piece(at), 16);
      std::byte *const to = span(global, some, true, *instruction_);
      if (action == Action::kAdd)
        add(to, row + before, some);
      else
        std::memcpy(to, row + before, some);
    }
    for (int d = 1; d < map_.rank && ++index[d] == map_.box[d]; ++d) index[d] = 0;
  }
}

namespace {

template <typename T, typename F>
void add_elements(std::byte *to, const std::byte *from, size_t bytes, F sum) {
  for (size_t i = 0; i < bytes; i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, to + i, sizeof x);
    std::memcpy(&y, from + i, sizeof y);
    x = sum(x, y);
    std::memcpy(to + i, &x, sizeof x);
  }
}

}  // namespace

void TensorBox::add(std::byte *to, const std::byte *from, size_t bytes) const {
  switch (map_.kind) {
    case TensorMap::kFloat32: return add_elements<float>(to, from, bytes, [](float x, float y) { return x + y; });
    case TensorMap::kFloat16:
      return add_elements<uint16_t>(to, from, bytes,
                                    [](uint16_t x, uint16_t y) { return to_half(from_half(x) + from_half(y)); });
    case TensorMap::kBFloat16:
      return add_elements<uint16_t>(
          to, from, bytes, [](uint16_t x, uint16_t y) { return to_bfloat16(from_bfloat16(x) + from_bfloat16(y)); });
  }
}

}  // namespace emulator
