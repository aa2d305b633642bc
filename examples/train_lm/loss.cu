// The loss, norms and AdamW on a GPU. Sums over many elements are double, in an order that does not change.
#include "kernels.cuh"

namespace train_lm {
namespace {

constexpr int kWarps = kBlock / 32;

// A warp takes a row: its loss, and its gradient by what logits[i] - largest gives. Block b's losses go to sums[b].
template <typename T>
__global__ void softmax_loss(const float *logits, const std::uint8_t *targets, std::int64_t rows, int classes,
                             float scale, T *d_logits, double *sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double loss = 0.0;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < rows;
       row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const float *from = logits + row * classes;
    const int target = targets[row];
    const float at_target = from[target];
    float largest = -INFINITY, sum = 0.0f;
    for (int i = lane; i < classes; i += 32) largest = fmaxf(largest, from[i]);
    for (int distance = 16; distance > 0; distance /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    for (int i = lane; i < classes; i += 32) sum += expf(from[i] - largest);
    sum = warp_sum(sum);
    if (lane == 0) loss += static_cast<double>(logf(sum) + (largest - at_target));
    const float factor = scale / sum;
    for (int i = 4 * lane; i < classes; i += 4 * 32) {
      Four x = load(from + i);
      for (int j = 0; j < 4; ++j) x.v[j] = expf(x.v[j] - largest) * factor - (i + j == target ? scale : 0.0f);
      store(d_logits + row * classes + i, x);
    }
  }
  loss = block_sum(loss);
  if (threadIdx.x == 0) sums[blockIdx.x] = loss;
}

// Block b's sums of x^2 and |x| go to sums[b] and sums[gridDim.x + b].
__global__ void sum_norms(const float *x, std::size_t vectors, double *sums) {
  double squares = 0.0, sizes = 0.0;
  for (std::size_t i = std::size_t{blockIdx.x} * kBlock + threadIdx.x; i < vectors;
       i += std::size_t{gridDim.x} * kBlock) {
    const Four v = load(x + 4 * i);
    for (int j = 0; j < 4; ++j) {
      squares += static_cast<double>(v.v[j]) * v.v[j];
      sizes += fabs(static_cast<double>(v.v[j]));
    }
  }
  squares = block_sum(squares);
  sizes = block_sum(sizes);
  if (threadIdx.x != 0) return;
  sums[blockIdx.x] = squares;
  sums[gridDim.x + blockIdx.x] = sizes;
}

// Block b: to[b] (+)= the sum of `count` values from values + b * count on.
__global__ void sum_values(const double *values, int count, bool add, double *to) {
  double sum = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlock)
    sum += values[static_cast<std::size_t>(blockIdx.x) * count + i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) to[blockIdx.x] = sum + (add ? to[blockIdx.x] : 0.0);
}

template <typename T>
__global__ void narrow_floats(const float *x, std::size_t vectors, T *y) {
  for (std::size_t i = std::size_t{blockIdx.x} * kBlock + threadIdx.x; i < vectors;
       i += std::size_t{gridDim.x} * kBlock)
    store(y + 4 * i, load(x + 4 * i));
}

// In arrays.weights it leaves what products read, unless that is the parameters.
template <typename T>
__global__ void adam_step(AdamStep s, const float *gradient, const double *squares, std::size_t vectors,
                          std::size_t decayed, float *parameters, float *first, float *second, T *weights) {
  const float shrink = fminf(1.0f, s.clip / fmaxf(static_cast<float>(sqrt(*squares)), 1e-30f));
  for (std::size_t i = std::size_t{blockIdx.x} * kBlock + threadIdx.x; i < vectors;
       i += std::size_t{gridDim.x} * kBlock) {
    const float keep = i < decayed ? s.keep : 1.0f;
    const Four g = load(gradient + 4 * i);
    Four p = load(parameters + 4 * i), m = load(first + 4 * i), v = load(second + 4 * i);
    for (int j = 0; j < 4; ++j) {
      const float x = g.v[j] * shrink;
      m.v[j] = s.beta1 * m.v[j] + (1.0f - s.beta1) * x;
      v.v[j] = s.beta2 * v.v[j] + (1.0f - s.beta2) * x * x;
      p.v[j] = p.v[j] * keep - s.size * m.v[j] / (sqrtf(v.v[j] * s.second_scale) + s.epsilon);
    }
    store(parameters + 4 * i, p);
    store(first + 4 * i, m);
    store(second + 4 * i, v);
    if (weights != nullptr) store(weights + 4 * i, p);
  }
}

}  // namespace

void CudaDevice::cross_entropy(float *logits, const std::uint8_t *targets, std::int64_t rows, int classes,
                               float scale, Real d_logits, double *loss) {
  const unsigned grid = blocks((rows + kWarps - 1) / kWarps);
  double *sums = scratch<double>(grid);
  with_type(d_logits, [&]<typename T>(T *to) {
    softmax_loss<<<grid, kBlock, 0, stream()>>>(logits, targets, rows, classes, scale, to, sums);
  });
  sum_values<<<1, kBlock, 0, stream()>>>(sums, static_cast<int>(grid), true, loss);
  launched("softmax_loss");
}

void CudaDevice::total(const double *values, int count, double *sum) {
  sum_values<<<1, kBlock, 0, stream()>>>(values, count, false, sum);
  launched("sum_values");
}

// Counts are multiples of four: the model's width is one of eight.
void CudaDevice::norms(const float *x, std::size_t count, double *squares_and_sizes) {
  const unsigned grid = blocks(static_cast<std::int64_t>(count / 4 / kBlock + 1));
  double *sums = scratch<double>(2 * std::size_t{grid});
  sum_norms<<<grid, kBlock, 0, stream()>>>(x, count / 4, sums);
  sum_values<<<2, kBlock, 0, stream()>>>(sums, static_cast<int>(grid), false, squares_and_sizes);
  launched("sum_norms");
}

void CudaDevice::narrow(const float *x, std::size_t count, Real y) {
  if (as<const float>(y) == x) return;
  const unsigned grid = blocks(static_cast<std::int64_t>(count / 4 / kBlock + 1));
  with_type(y, [&]<typename T>(T *to) { narrow_floats<<<grid, kBlock, 0, stream()>>>(x, count / 4, to); });
  launched("narrow_floats");
}

void CudaDevice::adam(const AdamStep &step, const float *gradient, const double *squares, std::size_t count,
                      std::size_t decayed, const AdamArrays &arrays) {
  const unsigned grid = blocks(static_cast<std::int64_t>(count / 4 / kBlock + 1));
  with_type(arrays.weights, [&]<typename T>(T *to) {
    adam_step<<<grid, kBlock, 0, stream()>>>(step, gradient, squares, count / 4, decayed / 4, arrays.parameters,
                                             arrays.first, arrays.second, arrays.weights.size == 4 ? nullptr : to);
  });
  launched("adam_step");
}

}  // namespace train_lm
