// What check_values asks of a GPU: the first element of a tensor that is not as it should be.
#pragma once

#include "launch.h"

namespace lasp::gpu {

enum class ValueFault : int32_t { kNan = 0, kInfinity = 1, kAboveZero = 2 };

// Of elements [batch, tokens, heads, dim]: NaN and infinity; of decays NaN and what is above 0.
struct ValueSearch {
  const void *data = nullptr;
  Strides strides = {};
  int64_t batch = 0, tokens = 0, heads = 0, dim = 0;
  DType dtype = DType::kFloat32;
  bool is_decay = false;
  // The least of kNoFault, which it holds before, and kFaults * (the element's number) + its fault.
  uint64_t *first = nullptr;
};
inline constexpr uint64_t kNoFault = ~uint64_t{0}, kFaults = 4;

int launch_value_search(const ValueSearch &search, Stream stream);
int load_value_search();

}  // namespace lasp::gpu
