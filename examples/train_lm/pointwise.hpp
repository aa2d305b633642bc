// Everything of the model that is not a matrix product: norms, gates, softmax and their gradients, on a tile of
// rows. Forward functions are also used by the backward pass, which computes cheap values again instead of keeping
// them.
#pragma once

#include <cstdint>

namespace train_lm {

// y = x / rms(x) * gain over each of `groups` runs of `width` in a row; gain is [groups * width].
void rms_norm(const float *x, const float *gain, std::int64_t rows, int groups, int width, float *y);

// dx (+)= gradient of x; d_gain += gradient of the gain.
enum class Store { write, add };
void rms_norm_backward(const float *x, const float *gain, const float *dy, std::int64_t rows, int groups, int width,
                       Store store, float *dx, float *d_gain);

// a = silu(gate) * up, where a row of gate_up is [gate | up], each `width` wide.
void gate(const float *gate_up, std::int64_t rows, int width, float *a);
void gate_backward(const float *gate_up, const float *da, std::int64_t rows, int width, float *d_gate_up);

// Turns logits into their gradient, (softmax - one_hot(target)) * scale, in place, and returns the sum of
// -log softmax[target] over the rows.
double cross_entropy(float *logits, const std::uint8_t *targets, std::int64_t rows, int classes, float scale);

// x += y
void add(const float *y, std::int64_t count, float *x);

}  // namespace train_lm
