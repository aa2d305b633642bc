// What processes tell each other, as plain bytes: lengths, then contents. One list of fields serves both
// directions.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/rank_run.h"

namespace lasp_test {

using Bytes = std::vector<char>;

class ByteWriter {
 public:
  template <class T>
  void value(const T &x) {
    static_assert(std::is_trivially_copyable_v<T>);
    raw(&x, sizeof x);
  }
  template <class Range>
  void range(const Range &x) {
    value(static_cast<uint64_t>(x.size()));
    raw(x.data(), x.size() * sizeof(x[0]));
  }
  Bytes bytes;

 private:
  void raw(const void *from, size_t count) {
    const auto *const first = static_cast<const char *>(from);
    bytes.insert(bytes.end(), first, first + count);
  }
};

class ByteReader {
 public:
  ByteReader(const char *at, size_t left) : at_(at), left_(left) {}
  explicit ByteReader(const Bytes &bytes) : ByteReader(bytes.data(), bytes.size()) {}
  template <class T>
  void value(T &x) {
    static_assert(std::is_trivially_copyable_v<T>);
    raw(&x, sizeof x);
  }
  template <class Range>
  void range(Range &x) {
    uint64_t count = 0;
    value(count);
    if (count > left_ / sizeof(x[0])) throw std::runtime_error("a message is too short");
    x.resize(count);
    raw(x.data(), count * sizeof(x[0]));
  }

 private:
  void raw(void *to, size_t count) {
    if (count > left_) throw std::runtime_error("a message is too short");
    if (count != 0) std::memcpy(to, at_, count);
    at_ += count;
    left_ -= count;
  }
  const char *at_;
  size_t left_;
};

template <class T>
Bytes bytes_of(const T &x) {
  ByteWriter writer;
  fields(writer, x);
  return std::move(writer.bytes);
}
template <class T>
T from_bytes(const Bytes &bytes) {
  ByteReader reader(bytes);
  T x;
  fields(reader, x);
  return x;
}

// T, to be read from, or const T, to be written.
template <class Given, class T>
concept MaybeConst = std::is_same_v<std::remove_const_t<Given>, T>;

template <class Archive, MaybeConst<RankResult> Result>
void fields(Archive &archive, Result &result) {
  archive.value(result.plan_status);
  archive.range(result.complaints);
  for (auto &tensor : result.tensors) archive.range(tensor);
  archive.value(result.info);
  archive.value(result.tensor_cores);
  archive.value(result.bytes_sent);
  archive.value(result.bytes_received);
}

}  // namespace lasp_test
