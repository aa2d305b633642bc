// Reads the .npy files of the test vectors: version 1, little-endian float32, C order; anything else throws.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lasp_test {

struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

NpyArray read_npy(const std::string &path);

}  // namespace lasp_test
