// The training text and the windows cut from it. Every rank reads the text itself, so no token ever travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace train_lm {

class Text {
 public:
  // Reads `file`; when it is empty, the licence texts that every Debian system has. Throws when there is none.
  explicit Text(const std::string &file);

  const std::string &description() const { return description_; }
  std::size_t bytes() const { return data_.size(); }

  // Where the window of one step and data group begins: a function of the seed alone, not of the ranks.
  std::uint64_t window_begin(std::uint64_t seed, int step, int data_group) const;

  // `count` bytes from `begin` on. The text is a ring: after its end comes its beginning.
  std::vector<std::uint8_t> slice(std::uint64_t begin, std::int64_t count) const;

 private:
  std::vector<std::uint8_t> data_;
  std::string description_;
};

}  // namespace train_lm
