// What check_values asks of a device: which of some tensors' elements is the first that is not as it should be.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/problem.h"

namespace lasp {

// Elements [batch, tokens, heads, dim] of a tensor, and what they are, for the sentence.
struct ValueProbe {
  const char *name;
  const void *data;
  Layout layout;
  int64_t batch, tokens, heads, dim;
  DType type;
  bool is_decay = false;
  int64_t first_token = -1;    // of the whole buffer; -1: not of tokens
  int64_t first_sequence = 0;  // of states: `batch` counts from it; -1: of heads alone
};

enum class ValueFault { kNan, kInfinity, kAboveZero };

struct ValueFound {
  size_t probe;
  int64_t element;  // counted in [batch, tokens, heads, dim]
  ValueFault fault;
};

// In host memory.
std::optional<ValueFound> find_value(std::span<const ValueProbe> probes);

}  // namespace lasp
