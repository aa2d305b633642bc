// Memory of one rank, counted: every large array of a rank is an Array that tells the rank's MemoryMeter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace train_lm {

class MemoryMeter {
 public:
  void add(std::size_t bytes) { peak_ = std::max(peak_, now_ += bytes); }
  void remove(std::size_t bytes) { now_ -= bytes; }
  std::size_t peak() const { return peak_; }

 private:
  std::size_t now_ = 0, peak_ = 0;
};

template <typename T>
class Array {
 public:
  static constexpr std::size_t kAlignment = 4096;  // a page: more than any kernel or plan asks for

  Array() = default;
  Array(MemoryMeter &meter, std::size_t count) : meter_(&meter), count_(count) {
    // Never empty: a rank without tokens still hands valid pointers to the collective calls.
    data_ = static_cast<T *>(::operator new (std::max<std::size_t>(bytes(), 1), std::align_val_t{kAlignment}));
    std::memset(static_cast<void *>(data_), 0, bytes());
    meter_->add(bytes());
  }
  Array(Array &&other) noexcept { swap(other); }
  Array &operator=(Array &&other) noexcept {
    swap(other);
    return *this;
  }
  ~Array() {
    if (data_ == nullptr) return;
    meter_->remove(bytes());
    ::operator delete (static_cast<void *>(data_), std::align_val_t{kAlignment});
  }

  T *data() { return data_; }
  const T *data() const { return data_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  T &operator[](std::size_t i) { return data_[i]; }
  const T &operator[](std::size_t i) const { return data_[i]; }

 private:
  void swap(Array &other) {
    std::swap(meter_, other.meter_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

  MemoryMeter *meter_ = nullptr;
  T *data_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace train_lm
