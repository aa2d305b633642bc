// The launches of the backward walks with per-channel decay, for one element type.
#pragma once

#include "channel_internal.h"
#include "channel_kernel.cuh"

namespace lasp::gpu::mma::channel {

// Calls `use` with the kernel for K, V and the direction, plain or not (WalkerMemory), and with its layout.
template <typename T, typename Use>
int with_kernel(int rows, int columns, bool reversed, bool plain, Use use) {
  const auto choose = [&]<int kRows, int kColumns, bool kReversed>() {
    return plain
               ? use(channel_walk_kernel<T, kRows, kColumns, kReversed, true>, Layout<kRows, kColumns, kReversed>())
               : use(channel_walk_kernel<T, kRows, kColumns, kReversed, false>,
                     Layout<kRows, kColumns, kReversed>());
  };
  const auto of_dims = [&]<int kRows, int kColumns>() {
    return reversed ? choose.template operator()<kRows, kColumns, true>()
                    : choose.template operator()<kRows, kColumns, false>();
  };
  if ((rows != 64 && rows != 128) || (columns != 64 && columns != 128)) return cudaErrorInvalidValue;
  if (rows == 128)
    return columns == 128 ? of_dims.template operator()<128, 128>() : of_dims.template operator()<128, 64>();
  return columns == 128 ? of_dims.template operator()<64, 128>() : of_dims.template operator()<64, 64>();
}

template <typename T>
int enqueue(const Walk &walk, int64_t num_runs, bool reversed, Stream stream) {
  return with_kernel<T>(walk.c.dim, walk.a.dim, reversed, walk.x_is_float && !walk.adds,
                        [&](auto kernel, auto layout) {
                          return launch_blocks(kernel, num_runs * walk.heads * walk.row_tiles, layout.kThreads,
                                               layout.kBytes, stream, walk);
                        });
}

template <typename T>
int load() {
  for (const int rows : {64, 128})
    for (const int columns : {64, 128})
      for (const bool reversed : {false, true})
        for (const bool plain : {false, true}) {
          const auto load_one = [](auto kernel, auto layout) { return load_kernel(kernel, layout.kBytes); };
          if (const int error = with_kernel<T>(rows, columns, reversed, plain, load_one)) return error;
        }
  return cudaSuccess;
}

}  // namespace lasp::gpu::mma::channel
