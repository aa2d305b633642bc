// The gradients of q, k and g where decay is per channel, from what the walk of a stretch leaves of each chunk
// (channel_gradients.cuh). Chunks do not meet here, and channels meet in the scores alone. A block has a chunk, a
// head and 64 channels; a warp of it 16 channels of all 64 tokens, in registers, as rows of the tensor cores'
// operands.
#include "channel_finish.cuh"

namespace lasp::gpu::delta_hopper::channel {
namespace {

// G of 64 channels, by all threads: half of the tokens each.
__device__ __forceinline__ void find_sums(const DeltaInputs &p, const Run &run, int64_t token, int count,
                                          int32_t head, float *sums) {
  const int channel = threadIdx.x % kChannels, first = threadIdx.x / kChannels * (kChunk / 2);
  const int64_t base = offset_of(p.g_strides, run.row, token + first, head) + kChannels * blockIdx.y + channel,
                stride = p.g_strides.token;
  with_elements(p.g, p.decay_dtype, [&](const auto *data) {
    float sum = 0;
#pragma unroll 8
    for (int t = 0; t < kChunk / 2; ++t) {
      sum += first + t < count ? clamped_log2(as_float(data[base + t * stride])) : 0.0f;
      sums[(first + t) * kSumRow + channel] = sum;
    }
  });
  __syncthreads();
  if (first == 0) return;
  const float before = sums[(first - 1) * kSumRow + channel];
#pragma unroll 8
  for (int t = 0; t < kChunk / 2; ++t) sums[(first + t) * kSumRow + channel] += before;
}

struct Store {
  const DeltaGradients &p;
  const Run &run;
  int64_t token;
  int32_t head;
  int count;

  // Number by number.
  __device__ __forceinline__ void numbers(const float *from, void *to, DType type, bool adds, int64_t at,
                                          int64_t stride) const {
    const int channel = threadIdx.x % kChannels;
    for (int t = threadIdx.x / kChannels; t < count; t += kFinishThreads / kChannels)
      put_element(to, type, at + t * stride + channel, from[t * kSumRow + channel], adds);
  }
  template <typename T>
  __device__ __forceinline__ void tensor(const float *from, const Tensor &t, int which) const {
    const int64_t at = offset_of(t, run.row, token, head, p.heads) + kChannels * blockIdx.y;
    if (p.staged[which] || p.adds[which])
      return numbers(from, t.data, p.staged[which] ? DType::kFloat32 : p.dtype, p.adds[which], at, t.strides.token);
    const int piece = threadIdx.x % 8;
    T *const to = static_cast<T *>(t.data) + at + 8 * piece;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = threadIdx.x / 8 + 16 * i;
      const float4 x = *reinterpret_cast<const float4 *>(from + row * kSumRow + 8 * piece),
                   y = *reinterpret_cast<const float4 *>(from + row * kSumRow + 8 * piece + 4);
      if (row < count)
        store_piece(to + row * t.strides.token,
                    uint4{pack<T>(x.x, x.y), pack<T>(x.z, x.w), pack<T>(y.x, y.y), pack<T>(y.z, y.w)});
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kFinishThreads, 2) finish_channel(const DeltaGradients p, const Left left) {
  extern __shared__ __align__(16) char memory[];
  const int chunk = blockIdx.x % kStretchChunks, thread = threadIdx.x;
  const int64_t item = blockIdx.x / kStretchChunks, index = item / p.heads;
  const int32_t head = int32_t(item % p.heads);
  const Run run = p.runs[index];
  const int count = min(kChunk, run.length - chunk * kChunk);
  if (count <= 0 || !takes(p.filter, run)) return;
  const int64_t token = run.begin + chunk * kChunk;
  const char *const from = left.of(item, chunk);
  const uint32_t shared = shared_address(memory);
  {
    const int piece = thread % 8, row = thread / 8;
    const bool slow = !begins_on_piece(p.k.data) || !begins_on_piece(p.q.data);
    const auto load = [&](const Tensor &t, uint32_t to) {
      const char *const rows =
          static_cast<const char *>(t.data) +
          2 * (offset_of(t, run.row, token + row, head, p.heads) + kChannels * blockIdx.y + 8 * piece);
      to += row * kRow + 16 * piece;
      copy_pieces<4>(slow, [&](int i, auto copy) {
        const bool there = row + 16 * i < count;
        copy(to + 16 * i * kRow, there ? rows + 32 * i * t.strides.token : t.data, there);
      });
    };
    load(p.k, shared), load(p.q, shared + kOfQ);
#pragma unroll
    for (int i = 0; i < 4 * kTile / 16 / kFinishThreads; ++i) {
      const int at = 16 * (thread + i * kFinishThreads);
      copy_16(shared + kOfScores + at, from + Left::kScoresQ + at, true);
    }
    copies_commit();
  }
  find_sums(p, run, token, count, head, reinterpret_cast<float *>(memory + kOfSums));
  copies_wait<0>();
  __syncthreads();
  Finish<T> finish{shared};
  finish.run(from);
  __syncthreads();
  const Store store{p, run, token, head, count};
  const auto result = [&](int at) { return reinterpret_cast<const float *>(memory + at); };
  store.template tensor<T>(result(kOfDQ), p.d_q, 0);
  store.template tensor<T>(result(kOfDK), p.d_k, 1);
  if (p.d_g)
    store.numbers(result(kOfDG), p.d_g, p.d_g_float32 ? DType::kFloat32 : p.decay_dtype, p.d_g_adds,
                  offset_of(p.d_g_strides, run.row, token, head) + kChannels * blockIdx.y, p.d_g_strides.token);
}

template <typename T>
int launch(const DeltaGradients &p, const Left &left, Stream stream) {
  finish_channel<T><<<dim3(unsigned(p.num_runs * p.heads * kStretchChunks), unsigned(p.k.dim / kChannels)),
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
