// The gradients of q, k and g where decay is per channel and narrow (kWidest), from what the walk of a stretch
// leaves of each chunk (channel_gradients.cuh). Chunks do not meet here, and channels meet in the scores alone.
//
// With the scores Aq and Ak, which have no decay, factors leave the products as in channel_prepare.cu:
//   dq = 2^G (X + Aq (2^-G k))
//   dk = 2^G (Y + Ak (2^-G k)) + 2^(G_C - G) W + 2^-G (Aq^T (2^G q) + Ak^T (2^G k))
//
// d_g_t counts the pairs of tokens and the states that its decay stands between: of a token i >= t, what q_i and
// k_i have of states and pairs before it, less what k_i gives to pairs after it. A pair after t counts there on
// both sides, as the same product of the same rounded numbers, so that it leaves nothing. Of W all tokens before t
// count: all of the chunk, less those from t on. Decays so narrow leave what is small in those differences.
#include "channel_warp.cuh"
#include "gradients_results.cuh"

namespace lasp::gpu::delta_hopper::channel {
namespace {

constexpr int kNarrowBytes = kOfTotals + 4 * 4 * kChannels;

template <typename T>
struct Narrow : Channels<T> {
  using Base = Channels<T>;
  using Base::lane, Base::r, Base::q, Base::warp, Base::shared;
  using Base::sums_of, Base::scale, Base::last_of, Base::rows, Base::columns, Base::load, Base::count_from,
      Base::place, Base::store_float, Base::load_tokens;
  const DeltaGradients &p;
  const Chunk &chunk;
  const int count;                     // of tokens, where there are this warp's channels
  Pairs back[4], keys[4], queries[4];  // 2^-G k, 2^G k, 2^G q

  // By factors 2^G, or 2^-G.
  __device__ __forceinline__ void round(Pairs &to, const Pairs &x, const Tokens &t, float sign) const {
    Numbers f;
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i / 4][i % 4] = exp2_fast(sign * t.g[i / 4][i % 4]);
    scale(to, x, f);
  }
  // A gradient of block b: rounded into the place of its input, or number by number.
  __device__ __forceinline__ void put(const Tensor &t, int which, const Numbers &x, uint32_t tile, int b) const {
    if (p.staged[which] || p.adds[which]) {
      const int64_t at = chunk.at(t, p.heads) + 16 * warp + r;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = 16 * b + 8 * h + 2 * q + i % 2;
          if (token < chunk.count && chunk.has(t, 16 * warp))
            put_element(t.data, p.staged[which] ? DType::kFloat32 : p.dtype,
                        at + token * t.strides.token + i / 2 * 8, x[h][i], p.adds[which]);
        }
      return;
    }
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = pack<T>(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
    gradients::store_transposed(tile + this->tokens_at(b), pairs);
  }

  // Block b: dq and dk, and d_g without what counts for all tokens. later: of the blocks after it, d_g's sums;
  // written: this lane's sums of k W.
  __device__ __forceinline__ void block(const char *left, int b, const float (&last)[2], float (&later)[2],
                                        float (&written)[2]) {
    {
      Tokens t;
      load_tokens(t, b);
      round(keys[b], t.k, t, 1), round(queries[b], t.q, t, 1);
    }
    Numbers d_q = {}, row = {}, column = {};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (c <= b) rows(d_q, back[c], 0, b, c), rows(row, back[c], 2, b, c);
      if (c >= b) columns(column, queries[c], 0, c, b), columns(column, keys[c], 2, c, b);
    }
    const int tile = 2 * (4 * int(blockIdx.y) + warp);
    Pairs x, y, w;
    load(x, left + Left::kX, tile, b), load(y, left + Left::kY, tile, b), load(w, left + Left::kW, tile, b);
    Tokens t;
    load_tokens(t, b);
    Numbers d_g, of_token;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int at = 2 * h + c;
        const float2 key = unpack<T>(t.k[at]), query = unpack<T>(t.q[at]), xs = unpack<T>(x[at]),
                     ys = unpack<T>(y[at]), ws = unpack<T>(w[at]), from = unpack<T>(back[b][at]),
                     to = unpack<T>(keys[b][at]), of_query = unpack<T>(queries[b][at]);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * c + e;
          const float k = e ? key.y : key.x, g = t.g[h][i], now = exp2_fast(g), end = exp2_fast(last[c] - g);
          const float of_x = now * (e ? xs.y : xs.x), of_y = now * (e ? ys.y : ys.x),
                      of_w = end * (e ? ws.y : ws.x);
          const float pairs = (e ? of_query.y : of_query.x) * d_q[h][i] + (e ? to.y : to.x) * row[h][i] -
                              (e ? from.y : from.x) * column[h][i];
          of_token[h][i] = fmaf(e ? query.y : query.x, of_x, k * (of_y - of_w)) + pairs;
          written[c] = fmaf(k, of_w, written[c]);
          d_q[h][i] = fmaf(now, d_q[h][i], of_x);
          row[h][i] = fmaf(now, row[h][i], of_y) + fmaf(exp2_fast(-g), column[h][i], of_w);
          d_g[h][i] = later[c];
        }
      }
    count_from(d_g, of_token);
#pragma unroll
    for (int c = 0; c < 2; ++c)
      later[c] = __shfl_sync(~0u, d_g[0][2 * c], lane & 28);  // at the block's first token
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) store_float(place(kOfSums, b, h, i), d_g[h][i]);
    put(p.d_q, 0, d_q, shared + kOfQ, b), put(p.d_k, 1, row, shared, b);
  }
  __device__ __forceinline__ void run(const char *left) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      Tokens t;
      load_tokens(t, b);
      round(back[b], t.k, t, -1);
    }
    const float *const shares =
        reinterpret_cast<const float *>(left + Left::kShare) + kChannels * blockIdx.y + 16 * warp + r;
    const float last[2] = {last_of(3, 0), last_of(3, 1)};
    float later[2] = {0, 0}, written[2] = {shares[0] / 4, shares[8] / 4};  // of four lanes
#pragma unroll
    for (int b = 3; b >= 0; --b) block(left, b, last, later, written);
#pragma unroll
    for (int c = 0; c < 2; ++c) written[c] = sums_of(written[c]).all;
#pragma unroll
    for (int b = 0; b < 4; ++b)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t at = place(kOfSums, b, h, i);
          store_float(at, load_float(at) + written[i / 2]);
        }
  }
  // By all threads, what put() has left.
  __device__ __forceinline__ void store(const Tensor &t, int which, uint32_t tile) const {
    if (p.staged[which] || p.adds[which]) return;
    const int piece = threadIdx.x % 8;
    const int there = chunk.has(t, 8 * piece) ? chunk.count : 0;
    T *const to = static_cast<T *>(t.data) + chunk.at(t, p.heads) + 8 * piece;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = threadIdx.x / 8 + 16 * i;
      if (row < there) store_piece(to + row * t.strides.token, load_shared_16(tile + row * kRow + 16 * piece));
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kFinishThreads, 4) narrow_channel(const DeltaGradients p, const Left left) {
  extern __shared__ __align__(16) char memory[];
  const Chunk chunk(p, left, blockIdx.x);
  int32_t &wide = left.wide(chunk.item, chunk.chunk, int(blockIdx.y));
  if (chunk.count <= 0) {
    if (threadIdx.x == 0) wide = 0;
    return;
  }
  const char *const from = left.of(chunk.item, chunk.chunk);
  const uint32_t shared = shared_address(memory);
  chunk.copy(p, from, shared);
  {
    Sums<kChannels / 2> sums;
    sums.find(p, chunk.run, chunk.token, chunk.count, chunk.head, kChannels * blockIdx.y,
              reinterpret_cast<float *>(memory + kOfTotals));
    sums.template store<kSumRow>(reinterpret_cast<float *>(memory + kOfSums));
    copies_wait<0>();
    const bool narrow = __syncthreads_and(sums.template narrow<T>());
    if (threadIdx.x == 0) wide = !narrow;
    if (!narrow) return;
  }
  Narrow<T> narrow{{shared}, p, chunk};
  narrow.run(from);
  __syncthreads();
  narrow.store(p.d_q, 0, shared + kOfQ), narrow.store(p.d_k, 1, shared);
  chunk.store_decay(p, reinterpret_cast<const float *>(memory + kOfSums));
}

template <typename T>
int launch(const DeltaGradients &p, const Left &left, Stream stream) {
  narrow_channel<T>
      <<<dim3(unsigned(p.num_runs * p.heads * left.of_stretch), unsigned((p.k.dim + kChannels - 1) / kChannels)),
         kFinishThreads, kNarrowBytes, stream>>>(p, left);
  return cudaGetLastError();
}

}  // namespace

int launch_narrow(const DeltaGradients &p, const Left &left, Stream stream) {
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, left, stream) : launch<__half>(p, left, stream);
}

int load_narrow() {
  const int error = load_kernel(narrow_channel<__nv_bfloat16>, kNarrowBytes);
  return error ? error : load_kernel(narrow_channel<__half>, kNarrowBytes);
}

}  // namespace lasp::gpu::delta_hopper::channel
