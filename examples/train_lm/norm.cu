// RMS norms on a GPU. A team of threads, a warp or a block, holds one group of a row in registers.
#include <algorithm>
#include <type_traits>

#include "kernels.cuh"

namespace train_lm {
namespace {

// One of the teams of a launch, of kThreads threads each: 32 or kBlock.
template <int kThreads>
struct Crew {
  static constexpr int kPerBlock = kBlock / kThreads;
  __device__ std::int64_t number() const {
    return static_cast<std::int64_t>(blockIdx.x) * kPerBlock + threadIdx.x / kThreads;
  }
  __device__ std::int64_t teams() const { return static_cast<std::int64_t>(gridDim.x) * kPerBlock; }
  template <typename T>
  __device__ T sum(T x) const {
    if constexpr (kThreads == 32)
      return warp_sum(x);
    else
      return block_sum(x);
  }
};

// Which columns of a group a thread holds: kVectors times four, kThreads vectors apart.
template <int kThreads>
__device__ int column(int vector) {
  return 4 * (static_cast<int>(threadIdx.x) % kThreads + kThreads * vector);
}

template <int kThreads, int kVectors, typename T>
__device__ void load_group(const T *from, int width, Four (&to)[kVectors]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = column<kThreads>(i);
    to[i] = c < width ? load(from + c) : Four{};
  }
}

template <typename T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kBlock)
    norm_forward(const T *x, const float *gain, std::int64_t rows, Norm norm, T *y) {
  const Crew<kThreads> team;
  const std::int64_t items = rows * norm.groups;
  for (std::int64_t item = team.number(); item < items; item += team.teams()) {
    Four v[kVectors];
    load_group<kThreads>(x + item * norm.width, norm.width, v);
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      for (int j = 0; j < 4; ++j) squares += v[i].v[j] * v[i].v[j];
    const float r = 1.0f / sqrtf(team.sum(squares) / static_cast<float>(norm.width) + norm.epsilon);
    const float *g = gain + item % norm.groups * norm.width;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = column<kThreads>(i);
      if (c >= norm.width) continue;
      const Four w = load(g + c);
      Four out;
      for (int j = 0; j < 4; ++j) out.v[j] = v[i].v[j] * r * w.v[j];
      store(y + item * norm.width + c, out);
    }
  }
}

// dx as in pointwise.cpp. A team keeps to one group, so that its share of the gain's gradient stays in registers;
// that goes to row team / groups of `shares` [teams / groups, groups * width].
template <typename T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kBlock)
    norm_backward(const T *x, const float *gain, const T *dy, std::int64_t rows, Norm norm, bool add, T *dx,
                  float *shares) {
  const Crew<kThreads> team;
  const std::int64_t group = team.number() % norm.groups, slot = team.number() / norm.groups;
  const std::int64_t slots = team.teams() / norm.groups, row_width = std::int64_t{norm.groups} * norm.width;
  if (slot >= slots) return;
  Four w[kVectors], sums[kVectors] = {};
  load_group<kThreads>(gain + group * norm.width, norm.width, w);
  for (std::int64_t row = slot; row < rows; row += slots) {
    const std::int64_t at = row * row_width + group * norm.width;
    Four a[kVectors], d[kVectors], out[kVectors] = {};
    load_group<kThreads>(x + at, norm.width, a);
    load_group<kThreads>(dy + at, norm.width, d);
    if (add) load_group<kThreads>(dx + at, norm.width, out);  // now, so that one wait serves all three
    Two sum{0.0f, 0.0f};                                      // of x^2, and of gain dy x
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      for (int j = 0; j < 4; ++j) {
        sum.a += a[i].v[j] * a[i].v[j];
        sum.b += d[i].v[j] * w[i].v[j] * a[i].v[j];
      }
    sum = team.sum(sum);
    const float r = 1.0f / sqrtf(sum.a / static_cast<float>(norm.width) + norm.epsilon);
    const float share = sum.b * r * r * r / static_cast<float>(norm.width);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = column<kThreads>(i);
      if (c >= norm.width) continue;
      for (int j = 0; j < 4; ++j) {
        sums[i].v[j] += d[i].v[j] * a[i].v[j] * r;
        out[i].v[j] += d[i].v[j] * w[i].v[j] * r - a[i].v[j] * share;
      }
      store(dx + at + c, out[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = column<kThreads>(i);
    if (c < norm.width) store(shares + slot * row_width + group * norm.width + c, sums[i]);
  }
}

// total[c] += the sum of column c of values [rows, columns].
constexpr int kAcross = 32, kDown = 16;
__global__ void add_columns(const float *values, std::int64_t rows, int columns, float *total) {
  __shared__ float shared[kDown][kAcross];
  const int c = static_cast<int>(blockIdx.x) * kAcross + static_cast<int>(threadIdx.x);
  float sum = 0.0f;
  for (std::int64_t row = threadIdx.y; c < columns && row < rows; row += kDown) sum += values[row * columns + c];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= columns) return;
  for (int i = 1; i < kDown; ++i) sum += shared[i][threadIdx.x];
  total[c] += sum;
}

// Calls f with threads and vectors of a team that holds `width` columns: at most 16384 (options.cpp). The backward
// pass holds four arrays, and takes more threads sooner.
enum class Direction { forward, backward };
template <Direction kDirection, typename F>
void with_team(int width, const F &f) {
  const auto call = [&](auto threads, auto vectors) { f(threads, vectors); };
  using std::integral_constant;
  constexpr integral_constant<int, 32> warp{};
  constexpr integral_constant<int, kBlock> block{};
  if (width <= 128) return call(warp, integral_constant<int, 1>{});
  if (width <= 256) return call(warp, integral_constant<int, 2>{});
  if (width <= 512) return call(warp, integral_constant<int, 4>{});
  if constexpr (kDirection == Direction::forward) {
    if (width <= 1024) return call(warp, integral_constant<int, 8>{});
  } else {
    if (width <= 1024) return call(block, integral_constant<int, 1>{});
  }
  if (width <= 2048) return call(block, integral_constant<int, 2>{});
  if (width <= 4096) return call(block, integral_constant<int, 4>{});
  if (width <= 8192) return call(block, integral_constant<int, 8>{});
  return call(block, integral_constant<int, 16>{});
}

}  // namespace

void CudaDevice::rms_norm(Real x, const float *gain, std::int64_t rows, const Norm &norm, Real y) {
  with_team<Direction::forward>(norm.width, [&](auto threads, auto vectors) {
    constexpr int kPerBlock = kBlock / threads();
    const unsigned grid = blocks((rows * norm.groups + kPerBlock - 1) / kPerBlock);
    with_type(x, [&]<typename T>(const T *first) {
      norm_forward<T, threads(), vectors()><<<grid, kBlock, 0, stream()>>>(first, gain, rows, norm, as<T>(y));
    });
  });
  launched("norm_forward");
}

void CudaDevice::rms_norm_backward(Real x, const float *gain, Real dy, std::int64_t rows, const Norm &norm,
                                   Store store, Real dx, float *d_gain) {
  with_team<Direction::backward>(norm.width, [&](auto threads, auto vectors) {
    constexpr int kPerBlock = kBlock / threads();
    with_type(x, [&]<typename T>(const T *first) {
      const auto kernel = norm_backward<T, threads(), vectors()>;
      int at_once = 1;  // on a multiprocessor; as many share the rows, and one for each group at least
      cuda::check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, kernel, kBlock, 0), "the norm's blocks");
      const unsigned wanted = blocks((rows * norm.groups + kPerBlock - 1) / kPerBlock, std::max(at_once, 1));
      const unsigned grid = std::max(wanted, static_cast<unsigned>((norm.groups + kPerBlock - 1) / kPerBlock));
      const std::int64_t slots = std::int64_t{grid} * kPerBlock / norm.groups;
      const int columns = norm.groups * norm.width;
      float *shares = scratch<float>(static_cast<std::size_t>(slots * columns));
      kernel<<<grid, kBlock, 0, stream()>>>(first, gain, as<T>(dy), rows, norm, store == Store::add, as<T>(dx),
                                            shares);
      add_columns<<<static_cast<unsigned>((columns + kAcross - 1) / kAcross), dim3(kAcross, kDown), 0, stream()>>>(
          shares, slots, columns, d_gain);
    });
  });
  launched("norm_backward");
}

}  // namespace train_lm
