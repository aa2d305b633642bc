#include "cuda/backend/halo_rows.h"

#include <algorithm>

#include "cuda/backend/device_plan.h"
#include "kernels/launch.h"

namespace lasp::cuda {
namespace {

static_assert(gpu::HaloRows::kMost == kMostHaloRows);  // each part of a run has a token of its own

gpu::HaloRows rows_of(const HaloShape &shape, const HaloTensor &tensor, std::span<const HaloPart> parts) {
  gpu::HaloRows rows;
  rows.rows = tensor.data;
  rows.strides = {tensor.layout.batch, tensor.layout.token, 0};
  rows.workspace = static_cast<std::byte *>(tensor.workspace);
  rows.dtype = static_cast<gpu::DType>(tensor.dtype);
  rows.batch = shape.batch;
  rows.channels = shape.channels;
  for (const HaloPart &part : parts)
    if (part.place >= 0) rows.parts[rows.num_parts++] = {part.begin, part.count, part.place};
  return rows;
}

// As many parts at a time as a launch takes. There is no launch of none.
template <class Launch>
void each_launch(std::span<const HaloPart> parts, Launch launch) {
  for (; !parts.empty(); parts = parts.subspan(std::min<size_t>(parts.size(), gpu::HaloRows::kMost)))
    launch(parts.first(std::min<size_t>(parts.size(), gpu::HaloRows::kMost)));
}

}  // namespace

void load_halo_kernels() {
  check_allocation(static_cast<cudaError_t>(gpu::load_halo_kernels()), "loading kernels");
}

void clear_rows(const HaloShape &shape, const HaloTensor &to, int64_t count) {
  if (count == 0) return;
  const int64_t element = size_of(to.dtype);
  check(cudaMemset2DAsync(to.data, static_cast<size_t>(to.layout.batch * element), 0,
                          static_cast<size_t>(count * shape.channels * element), static_cast<size_t>(shape.batch),
                          to.stream),
        "clearing a halo");
}

void gather_rows(const HaloShape &shape, const HaloTensor &from, std::span<const HaloPart> parts) {
  each_launch(parts, [&](std::span<const HaloPart> some) {
    check_launch(gpu::launch_halo_gather(rows_of(shape, from, some), from.stream), "gathering a halo");
  });
}

void scatter_rows(const HaloShape &shape, const HaloTensor &to, std::span<const HaloPart> parts) {
  each_launch(parts, [&](std::span<const HaloPart> some) {
    check_launch(gpu::launch_halo_scatter(rows_of(shape, to, some), to.stream), "scattering a halo");
  });
}

void add_rows(const HaloShape &shape, const HaloTensor &to, std::span<const HaloPart> parts) {
  check_launch(gpu::launch_halo_add(rows_of(shape, to, parts), to.stream), "adding gradients of a halo");
}

}  // namespace lasp::cuda
