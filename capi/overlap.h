// Whether two buffers of a call share memory.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace lasp {

// What a buffer occupies from its first byte on: a tensor [B, T, heads, dim] with strides, or a run of bytes.
struct Extent {
  Layout layout;  // in elements
  int64_t batch = 0, tokens = 0, heads = 0, dim = 0;
  int64_t element = 1;  // bytes

  static Extent floats(int64_t count) { return {{}, 1, 1, 1, count, sizeof(float)}; }
  static Extent run(int64_t bytes) { return {{}, 1, 1, 1, bytes, 1}; }  // strides of single entries do not count
  int64_t bytes() const { return layout.extent(batch, tokens, heads, dim) * element; }
};

struct Place {
  uintptr_t address;
  Extent extent;
};

// Whether the bytes from the first to the last of one meet those of the other.
bool ranges_meet(const Place &a, const Place &b);

// Whether an element of one lies in an element of the other. Never true of two that only interleave. Found for
// certain where one of them has no gaps, or both have the same strides, as the parts of one packed buffer have; for
// others only by a search of limited length.
bool share_an_element(const Place &a, const Place &b);

}  // namespace lasp
