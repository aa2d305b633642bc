// Decays that multiply a state again and again: of a token, a chunk, a run of chunks, a whole rank.
//
// Such a decay is one float, its code. The nearest float32 to an exp(g) near 1 is wrong by up to 2^-25, and by the
// same amount wherever g is the same: n of them would be wrong by n times that. So a decay above exp(-1/2) is kept
// as exp(g) - 1, with its sign bit set, and any other as exp(g), with its sign bit clear. A decay below the
// smallest normal float32 is zero. The GPU's kernels have the same code (kernels/device.cuh).
#pragma once

#include <cmath>
#include <cstdint>

namespace lasp {

inline constexpr float kKeepsAll = -0.0f;   // the code of 1
inline constexpr float kForgetsAll = 0.0f;  // the code of 0
inline bool forgets_all(float code) { return code == 0 && !std::signbit(code); }

// The code of exp(log_decay), and the decay that a code stands for.
float decay_code(double log_decay);
double decay_value(float code);
// The code of one decay after another.
float compose_decays(float later, float earlier);

// exp(n * g) for a float32 log decay g, rounded once to float32. A g that is the float32 nearest to a whole
// multiple of -ln 2 is taken as that multiple, so that a decay of 1/2 is exact for every n.
float head_decay_power(float g, int64_t n);
// The code of the same.
float head_decay_code(float g, int64_t n);

}  // namespace lasp
