// Copies of the mma linear pass: chunks of a, b, c and g into shared memory. Every row of a tile is a token of the
// walk; rows without a token become zero.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::mma {

// A tensor's rows in the order of the walk, 16 bytes to a lane. kBytes: of a row in shared memory, kStride apart.
template <int kBytes, int kStride>
struct RowCopy {
  static constexpr int kPieces = kBytes / 16, kAcross = kPieces < 32 ? kPieces : 32;  // lanes of a row
  static constexpr int kRowsAtOnce = 32 / kAcross, kEach = kPieces / kAcross;
  const char *next = nullptr;  // this lane's first piece of the next chunk
  int64_t step = 0;            // bytes from row to row
  int32_t bytes = 0;           // of a row in memory

  __device__ void begin(const void *data, int64_t at, int64_t row_step, int32_t columns, int element_bytes) {
    const int lane = threadIdx.x % 32;
    step = row_step * element_bytes;
    bytes = columns * element_bytes;
    next = static_cast<const char *>(data) + at * element_bytes + lane / kAcross * step + lane % kAcross * 16;
  }
  // Rows [first, end) of the chunk are there.
  __device__ __forceinline__ void load(char *tile, int32_t first, int32_t end) {
    const int lane = threadIdx.x % 32, row = lane / kAcross, piece = lane % kAcross * 16;
    const uint32_t to = shared_address(tile) + row * kStride + piece;
    const char *from = next;
#pragma unroll
    for (int i = 0; i < kChunk; i += kRowsAtOnce) {
      const bool valid = row + i >= first && row + i < end;
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        if (piece + e * 512 < bytes) copy_16(to + i * kStride + e * 512, from + e * 512, valid);
      from += kRowsAtOnce * step;
    }
    next = from;
  }
};

// Two warps copy, one a and b, the other c and g, while the two others score.
template <int kDim, Kind kKind>
struct Copy {
  using L = Layout<kDim, kKind>;
  const PassParams &p;
  const Part &part;
  char *const memory;
  const bool mine, second;  // whether this warp copies, and which
  int32_t chunk = 0;
  Ring ring;
  RowCopy<2 * kDim, L::kWide> a, b;
  RowCopy<2 * L::kRows, L::kNarrow> c;
  RowCopy<4 * L::kChannels, 4 * L::kChannels> g;
  RowCopy<2 * L::kChannels, 2 * L::kChannels> narrow_g;

  __device__ __forceinline__ Copy(const PassParams &params, const Part &its, char *shared, int producer_thread)
      : p(params),
        part(its),
        memory(shared),
        mine(producer_thread >= kProducerThreads / 2),
        second(producer_thread >= kProducerThreads - 32) {
    const int sign = part.reversed ? -1 : 1;
    const auto begin = [&](auto &stream, const Tensor &t, int32_t first, int32_t columns) {
      stream.begin(t.data, offset_of(t, part.run.row, part.token(0), part.head, p.heads) + first,
                   sign * t.strides.token, columns, 2);
    };
    if (p.y.data) begin(a, p.a, 0, p.a.dim);
    begin(b, p.b, 0, p.a.dim);
    begin(c, p.c, part.first_row, part.rows);
    if (kKind == Kind::kToken) return;
    const int32_t first = kKind == Kind::kRows ? part.first_row : 0;
    const int32_t columns = kKind == Kind::kRows ? part.rows : p.a.dim;
    const int64_t at = offset_of(p.g_strides, part.run.row, part.decay_token(0), part.head) + first;
    if (p.decay_dtype == DType::kFloat32) {
      g.begin(p.g, at, sign * p.g_strides.token, columns, 4);
    } else {
      narrow_g.begin(p.g, at, sign * p.g_strides.token, columns, 2);
    }
  }

  // The next chunk. Always one group of copies, so that they can be counted.
  __device__ __forceinline__ void load() {
    if (chunk < part.chunks) {
      char *const to = memory + L::kFirstStage + ring.stage * L::kStageBytes;
      const int32_t end = part.run.length - chunk * kChunk;
      if (!second) {
        if (p.y.data) a.load(to + L::kA, 0, end);
        b.load(to + L::kB, 0, end);
      } else {
        c.load(to + L::kC, 0, end);
      }
      if (kKind != Kind::kToken && second) {
        const int32_t first = part.reversed && chunk == 0, decay_end = end + part.reversed;
        if (p.decay_dtype == DType::kFloat32) {
          g.load(to + L::kG, first, decay_end);
        } else {
          narrow_g.load(to + L::kG, first, decay_end);
        }
      }
    }
    ++chunk;
    ring.next(p.stages);
    copies_commit();
  }
  // While the state warps are at chunk n and the producer warps at n + 1, chunk n + 2 must come.
  __device__ __forceinline__ void wait() const {
    if (p.stages == 3) {
      copies_wait<0>();
    } else if (p.stages == 4) {
      copies_wait<1>();
    } else {
      copies_wait<2>();
    }
  }
  __device__ __forceinline__ void begin() {
    if (!mine) return;
    for (int i = 0; i < p.stages - 2; ++i) load();
    wait();
  }
};

}  // namespace lasp::gpu::mma
