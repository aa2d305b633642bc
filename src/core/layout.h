// What validation asks of a tensor's shape and strides.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <initializer_list>

#include "core/problem.h"

namespace lasp {

// The product, or an error that names it when a tensor of that many bytes could not be addressed.
int64_t checked_bytes(const char *what, std::initializer_list<int64_t> factors);

// A tensor [B, T, heads, dim], the bytes of an element, and whether it is only read.
struct Shape {
  int64_t batch, tokens, heads, dim, bytes;
  bool input;
};

// Fills in the contiguous default, or checks that the caller's strides keep every element in a place of its own,
// but for those of an input that one element serves by stride 0.
Layout check_strides(const char *name, const lasp_layout &given, const Shape &shape);
// What a layout says but for strides, whether or not the problem has its tensor: its type, or the `standard` one.
DType check_type(const char *name, const lasp_layout &given, DType standard);

}  // namespace lasp
