// The element-wise loops, written so that the compiler turns them into vector code without -ffast-math.
#include "pointwise.hpp"

#include <bit>
#include <cmath>

namespace train_lm {
namespace {

// exp by range reduction and a polynomial, within 2 units in the last place; inlined, so loops over it vectorise.
inline float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float power = std::bit_cast<float>((std::bit_cast<std::int32_t>(shifted) - 0x4b400000 + 127) << 23);
  return (p * r * r + r + 1.0f) * power;
}

inline float inverse_rms(const float *x, int width, float epsilon) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < width; ++i) sum += x[i] * x[i];
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + epsilon);
}

}  // namespace

void rms_norm(const float *x, const float *gain, std::int64_t rows, const Norm &norm, float *y) {
  const int width = norm.width;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int group = 0; group < norm.groups; ++group, x += width, y += width) {
      const float r = inverse_rms(x, width, norm.epsilon);
      const float *g = gain + static_cast<std::int64_t>(group) * width;
#pragma omp simd
      for (int i = 0; i < width; ++i) y[i] = x[i] * r * g[i];
    }
  }
}

// With n = x r, r = 1/sqrt(mean(x^2) + eps): dx = r (g dy - n mean(g dy n)).
void rms_norm_backward(const float *x, const float *gain, const float *dy, std::int64_t rows, const Norm &norm,
                       Store store, float *dx, float *d_gain) {
  const float keep = store == Store::add ? 1.0f : 0.0f;
  const int width = norm.width;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int group = 0; group < norm.groups; ++group, x += width, dy += width, dx += width) {
      const float r = inverse_rms(x, width, norm.epsilon);
      const float *g = gain + static_cast<std::int64_t>(group) * width;
      float *dg = d_gain + static_cast<std::int64_t>(group) * width;
      float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
      for (int i = 0; i < width; ++i) {
        dg[i] += dy[i] * x[i] * r;
        dot += dy[i] * g[i] * x[i];
      }
      const float share = dot * r * r * r / static_cast<float>(width);
      if (keep == 0.0f) {
#pragma omp simd
        for (int i = 0; i < width; ++i) dx[i] = dy[i] * g[i] * r - x[i] * share;
      } else {
#pragma omp simd
        for (int i = 0; i < width; ++i) dx[i] += dy[i] * g[i] * r - x[i] * share;
      }
    }
  }
}

void gate(const float *gate_up, std::int64_t rows, int width, float *a) {
  for (std::int64_t row = 0; row < rows; ++row, gate_up += 2 * width, a += width) {
    const float *g = gate_up, *u = gate_up + width;
#pragma omp simd
    for (int i = 0; i < width; ++i) a[i] = g[i] / (1.0f + fast_exp(-g[i])) * u[i];
  }
}

void gate_backward(const float *gate_up, const float *da, std::int64_t rows, int width, float *d_gate_up) {
  for (std::int64_t row = 0; row < rows; ++row, gate_up += 2 * width, d_gate_up += 2 * width, da += width) {
    const float *g = gate_up, *u = gate_up + width;
    float *dg = d_gate_up, *du = d_gate_up + width;
#pragma omp simd
    for (int i = 0; i < width; ++i) {
      const float s = 1.0f / (1.0f + fast_exp(-g[i]));
      du[i] = da[i] * g[i] * s;
      dg[i] = da[i] * u[i] * s * (1.0f + g[i] * (1.0f - s));
    }
  }
}

double cross_entropy(float *logits, const std::uint8_t *targets, std::int64_t rows, int classes, float scale) {
  double loss = 0.0;
  for (std::int64_t row = 0; row < rows; ++row, logits += classes) {
    const float target = logits[targets[row]];
    float largest = logits[0], sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < classes; ++i) largest = logits[i] > largest ? logits[i] : largest;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < classes; ++i) {
      logits[i] = fast_exp(logits[i] - largest);
      sum += logits[i];
    }
    loss += std::log(static_cast<double>(sum)) + static_cast<double>(largest) - static_cast<double>(target);
    const float factor = scale / sum;
#pragma omp simd
    for (int i = 0; i < classes; ++i) logits[i] *= factor;
    logits[targets[row]] -= scale;
  }
  return loss;
}

void add(const float *y, std::int64_t count, float *x) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) x[i] += y[i];
}

}  // namespace train_lm
