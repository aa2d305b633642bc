// The CPU's functions, for the most part those of linalg.hpp and pointwise.hpp.
#include "device_cpu.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <numeric>

#include "linalg.hpp"

namespace train_lm {
namespace {

constexpr std::align_val_t kPage{4096};  // more than any kernel or plan asks for

float *floats(Real x) { return reinterpret_cast<float *>(x.data); }

void adam_range(const AdamStep &s, float shrink, float keep, const float *gradient, std::size_t begin,
                std::size_t end, const AdamArrays &arrays) {
  float *p = arrays.parameters, *m = arrays.first, *v = arrays.second;
#pragma omp simd
  for (std::size_t i = begin; i < end; ++i) {
    const float g = gradient[i] * shrink;
    m[i] = s.beta1 * m[i] + (1.0f - s.beta1) * g;
    v[i] = s.beta2 * v[i] + (1.0f - s.beta2) * g * g;
    p[i] = p[i] * keep - s.size * m[i] / (std::sqrt(v[i] * s.second_scale) + s.epsilon);
  }
}

}  // namespace

void *CpuDevice::allocate(std::size_t bytes) {
  void *data = ::operator new(std::max<std::size_t>(bytes, 1), kPage);
  std::memset(data, 0, bytes);
  meter().add(bytes);
  return data;
}

void CpuDevice::release(void *data, std::size_t bytes) noexcept {
  meter().remove(bytes);
  ::operator delete(data, kPage);
}

void CpuDevice::zero(void *data, std::size_t bytes) { std::memset(data, 0, bytes); }

void CpuDevice::copy(void *to, const void *from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void CpuDevice::multiply(std::int64_t m, int n, int k, Real a, Real b, float beta, Real c) {
  train_lm::multiply(m, n, k, floats(a), floats(b), beta, floats(c));
}

void CpuDevice::multiply(std::int64_t m, int n, int k, Real a, Real b, float *c) {
  train_lm::multiply(m, n, k, floats(a), floats(b), 0.0f, c);
}

void CpuDevice::multiply_transposed(std::int64_t m, int n, int k, Real a, Real b, Real c) {
  train_lm::multiply_transposed(m, n, k, floats(a), floats(b), floats(c));
}

void CpuDevice::add_outer(std::int64_t rows, int m, int n, Real a, Real b, float *c) {
  train_lm::add_outer(rows, m, n, floats(a), floats(b), c);
}

void CpuDevice::gather(const std::uint8_t *tokens, std::int64_t rows, int width, Real table, Real x) {
  for (std::int64_t t = 0; t < rows; ++t)
    std::copy_n(floats(table + static_cast<std::int64_t>(tokens[t]) * width), width, floats(x + t * width));
}

void CpuDevice::add_by_token(const std::uint8_t *tokens, std::int64_t rows, int width, Real dx, float *table) {
  for (std::int64_t t = 0; t < rows; ++t)
    train_lm::add(floats(dx + t * width), width, table + static_cast<std::int64_t>(tokens[t]) * width);
}

void CpuDevice::rms_norm(Real x, const float *gain, std::int64_t rows, const Norm &norm, Real y) {
  train_lm::rms_norm(floats(x), gain, rows, norm, floats(y));
}

void CpuDevice::rms_norm_backward(Real x, const float *gain, Real dy, std::int64_t rows, const Norm &norm,
                                  Store store, Real dx, float *d_gain) {
  train_lm::rms_norm_backward(floats(x), gain, floats(dy), rows, norm, store, floats(dx), d_gain);
}

void CpuDevice::gate(Real gate_up, std::int64_t rows, int width, Real a) {
  train_lm::gate(floats(gate_up), rows, width, floats(a));
}

void CpuDevice::gate_backward(Real gate_up, Real da, std::int64_t rows, int width, Real d_gate_up) {
  train_lm::gate_backward(floats(gate_up), floats(da), rows, width, floats(d_gate_up));
}

void CpuDevice::cross_entropy(float *logits, const std::uint8_t *targets, std::int64_t rows, int classes,
                              float scale, Real d_logits, double *loss) {
  *loss += train_lm::cross_entropy(logits, targets, rows, classes, scale);
  if (floats(d_logits) != logits) std::copy_n(logits, rows * classes, floats(d_logits));
}

void CpuDevice::add(const float *y, std::size_t count, float *x) {
  train_lm::add(y, static_cast<std::int64_t>(count), x);
}

void CpuDevice::total(const double *values, int count, double *sum) {
  *sum = std::accumulate(values, values + count, 0.0);
}

void CpuDevice::norms(const float *x, std::size_t count, double *squares_and_sizes) {
  double squares = 0.0, sizes = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    squares += static_cast<double>(x[i]) * x[i];
    sizes += std::fabs(static_cast<double>(x[i]));
  }
  squares_and_sizes[0] = squares, squares_and_sizes[1] = sizes;
}

void CpuDevice::narrow(const float *x, std::size_t count, Real y) {
  if (floats(y) != x) std::copy_n(x, count, floats(y));
}

void CpuDevice::adam(const AdamStep &step, const float *gradient, const double *squares, std::size_t count,
                     std::size_t decayed, const AdamArrays &arrays) {
  const float shrink = static_cast<float>(std::min(1.0, step.clip / std::max(std::sqrt(*squares), 1e-30)));
  adam_range(step, shrink, step.keep, gradient, 0, decayed, arrays);
  adam_range(step, shrink, 1.0f, gradient, decayed, count, arrays);
}

}  // namespace train_lm
