// Embedding and gates on a GPU: each thread takes four elements at a time.
#include "kernels.cuh"

namespace train_lm {
namespace {

// The number of the first of this thread's four-element vectors, and how far it is to the next.
__device__ std::uint32_t first_vector() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ std::uint32_t next_vector() { return gridDim.x * blockDim.x; }

template <typename T>
__global__ void gather_rows(const std::uint8_t *tokens, std::uint32_t vectors, std::uint32_t width, const T *table,
                            T *x) {
  for (std::uint32_t i = first_vector(); i < vectors; i += next_vector()) {
    const std::uint32_t row = i / (width / 4), column = 4 * (i - row * (width / 4));
    store(x + 4 * std::size_t{i}, load(table + std::size_t{tokens[row]} * width + column));
  }
}

// Row t is 1 in column tokens[t], else 0.
template <typename T>
__global__ void one_hot(const std::uint8_t *tokens, std::uint32_t vectors, std::uint32_t classes, T *x) {
  for (std::uint32_t i = first_vector(); i < vectors; i += next_vector()) {
    const std::uint32_t row = i / (classes / 4), column = 4 * (i - row * (classes / 4)), token = tokens[row];
    Four out;
    for (std::uint32_t j = 0; j < 4; ++j) out.v[j] = token == column + j ? 1.0f : 0.0f;
    store(x + 4 * std::size_t{i}, out);
  }
}

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <typename T>
__global__ void gate_forward(const T *gate_up, std::uint32_t vectors, std::uint32_t width, T *a) {
  for (std::uint32_t i = first_vector(); i < vectors; i += next_vector()) {
    const std::uint32_t row = i / (width / 4), column = 4 * (i - row * (width / 4));
    const T *from = gate_up + std::size_t{row} * 2 * width + column;
    const Four g = load(from), u = load(from + width);
    Four out;
    for (int j = 0; j < 4; ++j) out.v[j] = g.v[j] * sigmoid(g.v[j]) * u.v[j];
    store(a + 4 * std::size_t{i}, out);
  }
}

template <typename T>
__global__ void gate_gradient(const T *gate_up, const T *da, std::uint32_t vectors, std::uint32_t width,
                              T *d_gate_up) {
  for (std::uint32_t i = first_vector(); i < vectors; i += next_vector()) {
    const std::uint32_t row = i / (width / 4), column = 4 * (i - row * (width / 4));
    const std::size_t at = std::size_t{row} * 2 * width + column;
    const Four g = load(gate_up + at), u = load(gate_up + at + width), d = load(da + 4 * std::size_t{i});
    Four dg, du;
    for (int j = 0; j < 4; ++j) {
      const float s = sigmoid(g.v[j]);
      du.v[j] = d.v[j] * g.v[j] * s;
      dg.v[j] = d.v[j] * u.v[j] * s * (1.0f + g.v[j] * (1.0f - s));
    }
    store(d_gate_up + at, dg);
    store(d_gate_up + at + width, du);
  }
}

__global__ void add_floats(const float *y, std::size_t count, float *x) {
  for (std::size_t i = first_vector(); i < count; i += next_vector()) x[i] += y[i];
}

// Of a tile: fewer than 2^32 with the widths that options.cpp takes.
std::uint32_t vectors_of(std::int64_t rows, int width) { return static_cast<std::uint32_t>(rows * (width / 4)); }
std::int64_t blocks_of(std::uint32_t vectors) { return (std::int64_t{vectors} + kBlock - 1) / kBlock; }

}  // namespace

void CudaDevice::gather(const std::uint8_t *tokens, std::int64_t rows, int width, Real table, Real x) {
  for_tiles(rows, [&](int, std::int64_t begin, std::int64_t end) {
    const std::uint32_t vectors = vectors_of(end - begin, width);
    with_type(x + begin * width, [&]<typename T>(T *to) {
      gather_rows<<<blocks(blocks_of(vectors)), kBlock, 0, stream()>>>(
          tokens + begin, vectors, static_cast<std::uint32_t>(width), as<const T>(table), to);
    });
  });
  launched("gather_rows");
}

// A product with a matrix of zeros and ones: its sums have one order, unlike those of atomic additions.
void CudaDevice::add_by_token(const std::uint8_t *tokens, std::int64_t rows, int width, Real dx, float *table) {
  constexpr int kClasses = 256;  // that a byte can name
  for_tiles(rows, [&](int, std::int64_t begin, std::int64_t end) {
    const std::int64_t count = (end - begin) * kClasses;
    const Real ones{scratch<std::byte>(static_cast<std::size_t>(count * dx.size)), dx.size};
    const std::uint32_t vectors = vectors_of(end - begin, kClasses);
    with_type(ones, [&]<typename T>(T *to) {
      one_hot<<<blocks(blocks_of(vectors)), kBlock, 0, stream()>>>(tokens + begin, vectors, std::uint32_t{kClasses},
                                                                   to);
    });
    add_outer(end - begin, kClasses, width, ones, dx + begin * width, table);
  });
  launched("one_hot");
}

void CudaDevice::gate(Real gate_up, std::int64_t rows, int width, Real a) {
  const std::uint32_t vectors = vectors_of(rows, width);
  with_type(gate_up, [&]<typename T>(const T *from) {
    gate_forward<<<blocks(blocks_of(vectors)), kBlock, 0, stream()>>>(from, vectors,
                                                                      static_cast<std::uint32_t>(width), as<T>(a));
  });
  launched("gate_forward");
}

void CudaDevice::gate_backward(Real gate_up, Real da, std::int64_t rows, int width, Real d_gate_up) {
  const std::uint32_t vectors = vectors_of(rows, width);
  with_type(gate_up, [&]<typename T>(const T *from) {
    gate_gradient<<<blocks(blocks_of(vectors)), kBlock, 0, stream()>>>(
        from, as<const T>(da), vectors, static_cast<std::uint32_t>(width), as<T>(d_gate_up));
  });
  launched("gate_gradient");
}

void CudaDevice::add(const float *y, std::size_t count, float *x) {
  add_floats<<<blocks(static_cast<std::int64_t>(count / kBlock + 1)), kBlock, 0, stream()>>>(y, count, x);
  launched("add_floats");
}

}  // namespace train_lm
