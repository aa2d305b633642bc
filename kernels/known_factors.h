// The composition of maps whose factors nobody has written: they are worked out where they are used, from numbers
// of tokens and the decay per head.
#pragma once

#include "launch.h"

namespace lasp::gpu {

struct KnownFactor {
  bool reset = false;  // 0, whatever the tokens are
  int64_t tokens = 0;
};

// Of `later_factor`, `earlier_factor` and `to_factor` there are none.
struct ComposeKnownMaps : ComposeMaps {
  KnownFactor known[kMost] = {};      // of the later maps
  const float *head_decay = nullptr;  // [H], log; null: no decay
};
int launch_compose_known(const ComposeKnownMaps &, Stream stream);

}  // namespace lasp::gpu
