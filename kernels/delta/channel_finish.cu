// The gradients of q, k and g where decay is per channel, from what the walk of a stretch leaves of each chunk
// (channel_gradients.cuh), for any decays: of the chunks and channels that channel_narrow.cu has left. Chunks do
// not meet here, and channels meet in the scores alone.
#include <algorithm>

#include "channel_beside.cuh"
#include "channel_finish.cuh"

namespace lasp::gpu::delta_hopper::channel {
namespace {

// A gradient of q or k.
template <typename T>
__device__ __forceinline__ void store_tensor(const DeltaGradients &p, const Chunk &chunk, const float *from,
                                             const Tensor &t, int which) {
  const int64_t at = chunk.at(t, p.heads);
  if (p.staged[which] || p.adds[which])
    return chunk.store(from, t.data, p.staged[which] ? DType::kFloat32 : p.dtype, p.adds[which], at,
                       t.strides.token, t);
  const int piece = threadIdx.x % 8;
  if (!chunk.has(t, 8 * piece)) return;
  T *const to = static_cast<T *>(t.data) + at + 8 * piece;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = threadIdx.x / 8 + 16 * i;
    const float4 x = *reinterpret_cast<const float4 *>(from + row * kSumRow + 8 * piece),
                 y = *reinterpret_cast<const float4 *>(from + row * kSumRow + 8 * piece + 4);
    if (row < chunk.count)
      store_piece(to + row * t.strides.token,
                  uint4{pack<T>(x.x, x.y), pack<T>(x.z, x.w), pack<T>(y.x, y.y), pack<T>(y.z, y.w)});
  }
}

template <typename T>
__device__ __forceinline__ void finish_chunk(const DeltaGradients &p, const Left &left, int64_t b, char *memory) {
  const Chunk chunk(p, left, b);
  const char *const from = left.of(chunk.item, chunk.chunk);
  const uint32_t shared = shared_address(memory);
  chunk.copy(p, from, shared);
  Sums<kChannels / 2> sums;
  sums.find(p, chunk.run, chunk.token, chunk.count, chunk.head, kChannels * blockIdx.y,
            reinterpret_cast<float *>(memory + kOfTotals));
  sums.template store<kSumRow>(reinterpret_cast<float *>(memory + kOfSums));
  copies_wait<0>();
  __syncthreads();
  Finish<T> finish{{shared}};
  finish.run(from);
  __syncthreads();
  const auto result = [&](int at) { return reinterpret_cast<const float *>(memory + at); };
  store_tensor<T>(p, chunk, result(kOfDQ), p.d_q, 0);
  store_tensor<T>(p, chunk, result(kOfDK), p.d_k, 1);
  chunk.store_decay(p, result(kOfDG));
  __syncthreads();
}

// Few blocks look through all chunks, since it is seldom that one waits for them.
template <typename T>
__global__ void __launch_bounds__(kFinishThreads, 2) finish_channel(const DeltaGradients p, const Left left) {
  extern __shared__ __align__(16) char memory[];
  begin_dependents();  // the walk of the next stretches, which has nothing to do with this
  const int64_t all = p.num_runs * p.heads * left.of_stretch, step = gridDim.x;
  for (int64_t first = blockIdx.x; first < all; first += 32 * step) {
    const int64_t mine = first + threadIdx.x % 32 * step;
    uint32_t wide = __ballot_sync(
        ~0u, mine < all && left.wide(mine / left.of_stretch, int(mine % left.of_stretch), int(blockIdx.y)));
    for (; wide; wide &= wide - 1) finish_chunk<T>(p, left, first + (__ffs(int(wide)) - 1) * step, memory);
  }
}

template <typename T>
int launch(const DeltaGradients &p, const Left &left, Stream stream) {
  constexpr int64_t kBlocks = 132;  // two halves of the channels each
  const int64_t all = p.num_runs * p.heads * left.of_stretch;
  finish_channel<T><<<dim3(unsigned(std::min(all, kBlocks)), unsigned((p.k.dim + kChannels - 1) / kChannels)),
                      kFinishThreads, kFinishBytes, stream>>>(p, left);
  return cudaGetLastError();
}

}  // namespace

int launch_finish(const DeltaGradients &p, const Left &left, Stream stream) {
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, left, stream) : launch<__half>(p, left, stream);
}

int load_finish() {
  const int error = load_kernel(finish_channel<__nv_bfloat16>, kFinishBytes);
  return error ? error : load_kernel(finish_channel<__half>, kFinishBytes);
}

}  // namespace lasp::gpu::delta_hopper::channel
