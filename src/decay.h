// Powers of a constant per-head decay, the same for a token, a chunk and a whole rank.
#pragma once

#include <cstdint>

namespace lasp {

// exp(n * g) for a float32 log decay g, rounded once to float32. A g that is the float32 nearest to a whole
// multiple of -ln 2 is taken as that multiple, so that a decay of 1/2 is exact for every n.
float head_decay_power(float g, int64_t n);

// exp(g) of one token as base + rest, g as above: base is a power of two, so that a product with it is exact, and
// what is rounded is the small rest. A decay below 2^-90 is all base; one below 2^-126 is zero.
struct SplitDecay {
  float base, rest;
};
SplitDecay head_decay_split(float g);

}  // namespace lasp
