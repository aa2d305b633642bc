// A halo's rows: from a tensor to messages, back, and added to what is there.
#include "device.cuh"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 256;

// Rows are counted through all parts, and in a part as its message has them: by batch row, then token.
struct Row {
  int64_t batch, token;
  std::byte *message;
};
__device__ Row row_at(const HaloRows &p, int64_t index, int64_t row_bytes) {
  int32_t i = 0;
  while (index >= p.batch * p.parts[i].count) index -= p.batch * p.parts[i++].count;
  const HaloRows::Part &part = p.parts[i];
  const int64_t b = quotient(index, part.count);
  return {b, part.begin + index - b * part.count, p.workspace + part.place + index * row_bytes};
}

// Strides and channels are counted in units, which are elements or 16 bytes of them.
template <class Unit, bool kToMessage>
__global__ void copy_kernel(int64_t first, __grid_constant__ const HaloRows p, int64_t count) {
  const int64_t i = (first + blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t index = quotient(i, p.channels), c = i - index * p.channels;
  const Row row = row_at(p, index, p.channels * static_cast<int64_t>(sizeof(Unit)));
  Unit *const message = reinterpret_cast<Unit *>(row.message) + c;
  Unit *const element = static_cast<Unit *>(p.rows) + offset_of(p.strides, row.batch, row.token, 0) + c;
  if (kToMessage) {
    *message = *element;
  } else {
    *element = *message;
  }
}

// Of tokens [first_token, first_token + tokens): an element and the parts that hold its row, in their order.
__global__ void add_kernel(int64_t first, __grid_constant__ const HaloRows p, int64_t first_token, int64_t tokens,
                           int64_t count) {
  const int64_t i = (first + blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = quotient(i, p.channels), c = i - row * p.channels;
  const int64_t b = quotient(row, tokens), t = first_token + row - b * tokens;
  const int64_t at = offset_of(p.strides, b, t, 0) + c;
  float sum = load_element(p.rows, p.dtype, at);
  bool touched = false;
  for (int32_t k = 0; k < p.num_parts; ++k) {
    const HaloRows::Part &part = p.parts[k];
    const int64_t in_part = t - part.begin;
    if (in_part < 0 || in_part >= part.count) continue;
    sum += load_element(p.workspace + part.place, p.dtype, (b * part.count + in_part) * p.channels + c);
    touched = true;
  }
  if (touched) store_element(p.rows, p.dtype, at, sum);
}

int64_t rows_of(const HaloRows &p) {
  int64_t rows = 0;
  for (int32_t i = 0; i < p.num_parts; ++i) rows += p.batch * p.parts[i].count;
  return rows;
}

template <bool kToMessage>
int launch_copy(HaloRows p, Stream stream) {
  const int64_t element = p.dtype == DType::kFloat32 ? 4 : 2, wide = sizeof(uint4) / element;
  // Messages begin on 64 bytes and are as long as their rows.
  const bool by_wide = p.channels % wide == 0 && p.strides.batch % wide == 0 && p.strides.token % wide == 0 &&
                       reinterpret_cast<uintptr_t>(p.rows) % sizeof(uint4) == 0 &&
                       reinterpret_cast<uintptr_t>(p.workspace) % sizeof(uint4) == 0;
  if (by_wide) {
    p.channels /= wide;
    p.strides.batch /= wide;
    p.strides.token /= wide;
  }
  const int64_t count = rows_of(p) * p.channels;
  const auto kernel = by_wide        ? copy_kernel<uint4, kToMessage>
                      : element == 4 ? copy_kernel<uint32_t, kToMessage>
                                     : copy_kernel<uint16_t, kToMessage>;
  return launch_blocks(kernel, ceil_div(count, kThreads), kThreads, 0, stream, p, count);
}

}  // namespace

int launch_halo_gather(const HaloRows &p, Stream stream) { return launch_copy<true>(p, stream); }
int launch_halo_scatter(const HaloRows &p, Stream stream) { return launch_copy<false>(p, stream); }

int launch_halo_add(const HaloRows &p, Stream stream) {
  if (p.num_parts == 0) return cudaSuccess;
  int64_t begin = p.parts[0].begin, end = begin;
  for (int32_t i = 0; i < p.num_parts; ++i) {
    begin = std::min(begin, p.parts[i].begin);
    end = std::max(end, p.parts[i].begin + p.parts[i].count);
  }
  const int64_t count = p.batch * (end - begin) * p.channels;
  return launch_blocks(add_kernel, ceil_div(count, kThreads), kThreads, 0, stream, p, begin, end - begin, count);
}

int load_halo_kernels() {
  return load_kernels(copy_kernel<uint4, true>, copy_kernel<uint4, false>, copy_kernel<uint32_t, true>,
                      copy_kernel<uint32_t, false>, copy_kernel<uint16_t, true>, copy_kernel<uint16_t, false>,
                      add_kernel);
}

}  // namespace lasp::gpu
