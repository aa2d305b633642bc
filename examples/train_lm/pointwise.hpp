// Everything of the model that is not a matrix product: norms, gates, softmax and their gradients, on a tile of
// rows. Forward functions are also used by the backward pass, which computes cheap values again instead of keeping
// them.
#pragma once

#include <cstdint>

namespace train_lm {

// An RMS norm over each of `groups` runs of `width` in a row.
struct Norm {
  int groups, width;
  float epsilon;
};
constexpr Norm stream_norm(int d_model) { return {1, d_model, 1e-5f}; }
// A head's output passes near zero as q.k changes sign. An almost unguarded norm there makes gradients of any size,
// which turn rounding errors into visible differences of the loss within some tens of steps.
constexpr Norm head_norm(int heads, int head_dim) { return {heads, head_dim, 1e-2f}; }

// y = x / sqrt(mean(x^2) + epsilon) * gain; gain is [groups * width].
void rms_norm(const float *x, const float *gain, std::int64_t rows, const Norm &norm, float *y);

// dx (+)= gradient of x; d_gain += gradient of the gain.
enum class Store { write, add };
void rms_norm_backward(const float *x, const float *gain, const float *dy, std::int64_t rows, const Norm &norm,
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
