// The .npy header is one Python dict literal; only the three keys NumPy writes are looked at.
#include "support/npy.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace lasp_test {
namespace {

[[noreturn]] void fail(const std::string &path, const std::string &why) {
  throw std::runtime_error(path + ": " + why);
}

std::vector<int64_t> parse_shape(const std::string &path, const std::string &header) {
  const size_t key = header.find("'shape': (");
  if (key == std::string::npos) fail(path, "no shape in the header");
  const size_t open = key + 10, close = header.find(')', open);
  if (close == std::string::npos) fail(path, "the shape does not end");
  std::vector<int64_t> shape;
  size_t at = open;
  while (at < close) {
    size_t used = 0;
    shape.push_back(std::stoll(header.substr(at, close - at), &used));
    at = header.find_first_not_of(", ", at + used);
    if (at == std::string::npos) break;
  }
  return shape;
}

}  // namespace

NpyArray read_npy(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be opened");
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.size() < 10 || bytes.compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) != 0) {
    fail(path, "not a version 1 .npy file");
  }
  const size_t header_bytes = static_cast<uint8_t>(bytes[8]) + 256u * static_cast<uint8_t>(bytes[9]);
  const std::string header = bytes.substr(10, header_bytes);
  if (header.find("'descr': '<f4'") == std::string::npos) fail(path, "not little-endian float32");
  if (header.find("'fortran_order': False") == std::string::npos) fail(path, "not in C order");

  NpyArray array;
  array.shape = parse_shape(path, header);
  size_t count = 1;
  for (const int64_t extent : array.shape) count *= static_cast<size_t>(extent);
  if (bytes.size() != 10 + header_bytes + 4 * count) fail(path, "size and shape disagree");
  array.values.resize(count);
  if (count != 0) std::memcpy(array.values.data(), bytes.data() + 10 + header_bytes, 4 * count);
  return array;
}

}  // namespace lasp_test
