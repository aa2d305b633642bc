// The sequences of one pass of a packed plan: where their offsets lie, and the offsets that a plan was last given.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/checksum.h"

namespace lasp {

// Sequence n is tokens [offset n, offset n + 1) of the whole buffer; tokens behind the last offset are padding. For
// a plan that is not packed all is zero.
struct Packing {
  const void *offsets = nullptr;  // [sequences + 1]
  int64_t sequences = 0;
  bool wide = true;  // int64, else int32
  bool on_device = false;

  // Of offsets in host memory.
  int64_t operator[](int64_t n) const {
    if (wide) return static_cast<const int64_t *>(offsets)[n];
    return static_cast<const int32_t *>(offsets)[n];
  }
};

// A packing's offsets, kept from one pass to the next, so that what follows from them is made again only when they
// change. Room is reserved for the most sequences there can be.
class Offsets {
 public:
  explicit Offsets(int64_t most_sequences = 0) { values_.reserve(static_cast<size_t>(most_sequences) + 1); }

  // Takes host offsets; true where they are others than before.
  bool take(const Packing &packing) {
    const auto count = static_cast<size_t>(packing.sequences) + 1;
    bool same = values_.size() == count;
    for (size_t i = 0; same && i < count; ++i) same = values_[i] == packing[static_cast<int64_t>(i)];
    if (same) return false;
    values_.resize(count);
    for (size_t i = 0; i < count; ++i) values_[i] = packing[static_cast<int64_t>(i)];
    checksum_ = checksum(values_.data(), count * sizeof values_[0], 0);
    return true;
  }
  const std::vector<int64_t> &values() const { return values_; }
  // One number for all of them, the same for int32 and int64; 0: nothing was taken.
  uint64_t sum() const { return checksum_; }

 private:
  std::vector<int64_t> values_;
  uint64_t checksum_ = 0;
};

}  // namespace lasp
