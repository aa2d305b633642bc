// One routine both counts and places: run it with a null base to learn the size, with the caller's pointer to get
// the addresses, so that the two cannot drift.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lasp {

inline constexpr uint64_t kAlignment = 64;  // a cache line, and an AVX-512 vector

class Carver {
 public:
  explicit Carver(void *base) : base_(static_cast<std::byte *>(base)) {}

  template <class T>
  T *take(int64_t count) {
    T *place = base_ == nullptr ? nullptr : reinterpret_cast<T *>(base_ + used_);
    uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }
  uint64_t used() const { return used_; }

 private:
  std::byte *base_;
  uint64_t used_ = 0;
};

}  // namespace lasp
