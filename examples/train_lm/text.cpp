// Reads the text and draws windows by a counter-based generator.
#include "text.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "random.hpp"

namespace train_lm {
namespace {

constexpr const char *kLicences = "/usr/share/common-licenses";  // in base-files: on every Debian system

std::vector<std::uint8_t> read_file(const std::string &path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("The text file " + path + " cannot be read.");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Links (GPL -> GPL-3) are left out, and the order is by name, so that the text is the same everywhere.
std::vector<std::string> licence_files() {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error;
  for (const fs::directory_entry &entry : fs::directory_iterator(kLicences, error))
    if (!entry.is_symlink() && entry.is_regular_file()) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  if (files.empty())
    throw std::runtime_error(std::string("There is no text in ") + kLicences + "; name one with --text FILE.");
  return files;
}

}  // namespace

Text::Text(const std::string &file) {
  if (!file.empty()) {
    data_ = read_file(file);
    description_ = file;
  } else {
    const std::vector<std::string> files = licence_files();
    for (const std::string &name : files) {
      const std::vector<std::uint8_t> bytes = read_file(name);
      data_.insert(data_.end(), bytes.begin(), bytes.end());
    }
    description_ = std::to_string(files.size()) + " licence texts in " + kLicences;
  }
  if (data_.size() < 2) throw std::runtime_error("The text " + description_ + " holds fewer than two bytes.");
}

std::uint64_t Text::window_begin(std::uint64_t seed, int step, int data_group) const {
  const std::uint64_t counter = (static_cast<std::uint64_t>(step) << 20) + static_cast<std::uint64_t>(data_group);
  return mix(mix(seed ^ 0x7465787477696e64ULL) + counter) % data_.size();
}

std::vector<std::uint8_t> Text::slice(std::uint64_t begin, std::int64_t count) const {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  std::uint64_t at = begin % data_.size();
  for (std::uint8_t &byte : bytes) {
    byte = data_[at];
    if (++at == data_.size()) at = 0;
  }
  return bytes;
}

}  // namespace train_lm
