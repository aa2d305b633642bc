// The walks of the delta rule by mma.sync: how chunks come to shared memory.
#pragma once

#include "delta_walk.cuh"

namespace lasp::gpu::mma_delta {

// ---- mbarriers of a block, by their shared addresses. Each thread arrives for itself, as the race checker
// understands it.

__device__ __forceinline__ void begin_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
// Until all have arrived for the time `use`, from 0 on.
__device__ __forceinline__ void wait(uint32_t barrier, int use) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900  // other warps have the time meanwhile
#define LASP_WAIT "try_wait"
#else
#define LASP_WAIT "test_wait"
#endif
  for (int done = 0; done == 0;)
    asm volatile("{\n.reg .pred p;\nmbarrier." LASP_WAIT ".parity.shared.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(use & 1)
                 : "memory");
#undef LASP_WAIT
}

// From 9.0 on the copy engine copies most of the whole chunks of split blocks: where threads do, walking warps wait
// for shared memory behind them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kHasCopyEngine = true;
#else
constexpr bool kHasCopyEngine = false;
#endif
// What this thread has written is there before the copy engine writes to the same place.
__device__ __forceinline__ void before_engine() {
  if constexpr (kHasCopyEngine) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The same number in all lanes of a warp, which the compiler then knows.
__device__ __forceinline__ uint64_t of_warp(uint64_t x) { return __shfl_sync(0xffffffff, x, 0); }

// One lane of a warp, which the compiler then knows to be one.
__device__ __forceinline__ bool is_elected() {
  int elected = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(elected));
#endif
  return elected != 0;
}

// The chunks of a walk on their way to shared memory, by kRole threads: all of a block, or those that only copy.
template <int kRows, int kSplit>
struct Copies {
  using S = Stage<kRows, kSplit>;
  static constexpr int kColumns = columns_of_block(kSplit);
  const DeltaInputs &p;
  const Place &place;
  const Slots &slots;
  const Tensor &columns;  // v or do

  __device__ __forceinline__ bool is_whole(int chunk) const {
    return !place.slow && (chunk + 1) * kChunk <= place.run.length;
  }
  template <int kPieces>
  __device__ __forceinline__ void rows(uint32_t to, const Tensor &t, int first, int chunk) const {
    constexpr int kAtOnce = kRole / kPieces, kStep = kPieces == kColumns / 8 ? kSliceRow<kSplit> : S::kRow;
    static_assert(kRole % kPieces == 0);
    const int thread = this_thread() % kRole, piece = thread % kPieces, row = thread / kPieces,
              column = first + 8 * piece;
    const int count = column < t.dim ? place.run.length - chunk * kChunk : 0;
    const char *const from =
        static_cast<const char *>(t.data) +
        2 * (offset_of(t, place.run.row, place.run.begin + chunk * kChunk + row, place.head, p.heads) + column);
    const int64_t step = 2 * kAtOnce * t.strides.token;
    to += row * kStep + 16 * piece;
    if (is_whole(chunk)) {  // three instructions a copy; columns that are not there are zeros
#pragma unroll
      for (int i = 0; i < kChunk / kAtOnce; ++i) mma::copy_16(to + i * kAtOnce * kStep, from + i * step, count > 0);
      return;
    }
    copy_pieces<kChunk / kAtOnce>(place.slow, [&](int i, auto copy) {
      const bool there = row + i * kAtOnce < count;
      copy(to + i * kAtOnce * kStep, there ? from + i * step : t.data, there);
    });
  }
  __device__ __forceinline__ static void bytes(uint32_t to, const char *from, int count) {
    for (int at = 16 * (this_thread() % kRole); at < count; at += 16 * kRole)
      mma::copy_16(to + at, from + at, true);
  }
  // Always one group of copies, so that they can be counted.
  __device__ __forceinline__ void load(uint32_t stage, int chunk, bool there) const {
    if (there) {
      const char *const from = slots.at(place.slot + chunk, p.heads, place.head);
      rows<kRows / 8>(stage + S::kK, p.k, 0, chunk);
      bytes(stage + S::kN, from + kPairN, S::kOfSlot);
      if (!place.transition) rows<kColumns / 8>(stage + S::kV, columns, place.slice * kColumns, chunk);
      if (place.outputs) {
        rows<kRows / 8>(stage + S::kQ, p.q, 0, chunk);
        bytes(stage + S::kP, from + kPairP, kPair);
      }
    }
    mma::copies_commit();
  }

  // The same of a whole chunk by the copy engine; its bytes are counted at `full`. A warp begins the copies of 16
  // tokens of k and of q, of as many columns as there are, and the first two what the slot has. Threads copy v or
  // do: o is stored by way of that tile (put_outputs), and the engine would have to be told of what threads wrote
  // there.
  __device__ __forceinline__ void load_by_engine(uint32_t stage, int chunk, uint32_t full) const {
    const int warp = int(of_warp(this_warp())), row = 16 * warp;
    const auto row_of = [&](const Tensor &t) {
      return of_warp(reinterpret_cast<uint64_t>(t.data) +
                     2 * offset_of(t, place.run.row, place.run.begin + chunk * kChunk + row, place.head, p.heads));
    };
    const uint64_t k = row_of(p.k), q = place.outputs ? row_of(p.q) : 0,
                   slot = of_warp(reinterpret_cast<uint64_t>(slots.at(place.slot + chunk, p.heads, place.head)));
    const uint32_t to = uint32_t(of_warp(stage)), barrier = uint32_t(of_warp(full));
    const int bytes = 2 * p.k.dim, of_slot = warp == 0 ? S::kOfSlot : warp == 1 && place.outputs ? kPair : 0;
    if (is_elected()) {
      asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
                   "r"((place.outputs ? 32 : 16) * bytes + of_slot)
                   : "memory");
      copy_rows(to + S::kK + row * S::kRow, k, p.k, bytes, barrier);
      if (place.outputs) copy_rows(to + S::kQ + row * S::kRow, q, p.q, bytes, barrier);
      if (of_slot > 0)
        copy_by_engine(to + (warp == 0 ? S::kN : S::kP), slot + (warp == 0 ? kPairN : kPairP), of_slot, barrier);
    }
    if (!place.transition) rows<kColumns / 8>(stage + S::kV, columns, place.slice * kColumns, chunk);
    mma::copies_commit();
  }
  static __device__ __forceinline__ void copy_by_engine(uint32_t to, uint64_t from, int bytes, uint32_t full) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(full)
        : "memory");
  }
  static __device__ __forceinline__ void copy_rows(uint32_t to, uint64_t from, const Tensor &t, int bytes,
                                                   uint32_t full) {
#pragma unroll 4
    for (int row = 0; row < 16; ++row)
      copy_by_engine(to + row * S::kRow, from + 2 * row * t.strides.token, bytes, full);
  }
};

// The chunks of a walk by way of `stages` places in shared memory; `back`: the last one first. In a split block
// threads of their own copy, so that warps that walk have no copies to begin: alone on a quarter of a
// multiprocessor, a warp hides nothing.
template <int kRows, int kSplit>
struct Chunks {
  static constexpr int kBarriers = 2 * kMostStages, kBarrierOfCopies = 15;
  const Copies<kRows, kSplit> &copies;
  const uint32_t memory, barriers;
  const int stages;
  const bool back;

  // By one thread, before all others begin. `readers`: threads that walk, and those that help them.
  static __device__ __forceinline__ void begin_barriers(uint32_t barriers, int readers) {
    if constexpr (kSplit > 1)
      for (int i = 0; i < kBarriers; ++i) begin_barrier(barriers + 8 * i, i < kMostStages ? kRole : readers);
  }
  static_assert(kMostStages == 2);
  __device__ __forceinline__ int place_of(int n) const { return stages > 1 ? n % 2 : 0; }
  __device__ __forceinline__ int use_of(int n) const { return stages > 1 ? n / 2 : n; }  // of that place
  __device__ __forceinline__ uint32_t stage_of(int n) const {
    return memory + place_of(n) * Stage<kRows, kSplit>::kBytes;
  }
  __device__ __forceinline__ int chunk_of(int n) const { return back ? copies.place.chunks - 1 - n : n; }
  // Chunk n is there; has been read, if a later one needs its place.
  __device__ __forceinline__ uint32_t full(int n) const { return barriers + 8 * place_of(n); }
  __device__ __forceinline__ uint32_t empty(int n) const { return full(n) + 8 * kMostStages; }

  // By the threads that only copy.
  __device__ __forceinline__ void copy() const {
    if constexpr (kHasCopyEngine) {  // zeros for columns beyond K, which it does not write
      for (int at = 16 * (this_thread() % kRole); at < stages * Stage<kRows, kSplit>::kBytes; at += 16 * kRole)
        store_shared_16(memory + at, uint4{0, 0, 0, 0});
      before_engine();
      asm volatile("bar.sync %0, %1;" ::"n"(kBarrierOfCopies), "n"(kRole) : "memory");
    }
    const Place place = copies.place;  // in registers, so that addresses are found once
    const Copies<kRows, kSplit> own{copies.p, place, copies.slots, copies.columns};
    for (int n = 0; n < place.chunks; ++n) {
      const int chunk = back ? place.chunks - 1 - n : n;
      if (n >= stages) wait(empty(n), use_of(n - stages));
      if (kHasCopyEngine && own.is_whole(chunk)) {
        own.load_by_engine(stage_of(n), chunk, full(n));
      } else {
        own.load(stage_of(n), chunk, true);
        mma::copies_wait<0>();
        before_engine();
      }
      mma::copies_wait<0>();  // v or do, which threads copy
      arrive(full(n));
    }
  }
  // By those that walk: before the walk begins; then walk.take_chunk(place in shared memory, chunk, turn) of each.
  __device__ __forceinline__ void begin() const {
    if constexpr (kSplit == 1)
      for (int n = 0; n < stages; ++n) copies.load(stage_of(n), chunk_of(n), n < copies.place.chunks);
  }
  template <class Walk>
  __device__ __forceinline__ void take_all(Walk &walk) const {
    for (int n = 0; n < copies.place.chunks; ++n) {
      const uint32_t stage = stage_of(n);
      if constexpr (kSplit > 1) {
        wait(full(n), use_of(n));
        walk.take_chunk(stage, chunk_of(n), n);
        if (n + stages < copies.place.chunks) arrive(empty(n));
      } else {
        if (stages == 1) {
          mma::copies_wait<0>();
        } else {
          mma::copies_wait<1>();
        }
        __syncthreads();
        walk.take_chunk(stage, chunk_of(n), n);
        __syncthreads();
        copies.load(stage, chunk_of(n + stages), n + stages < copies.place.chunks);
      }
    }
  }
};

}  // namespace lasp::gpu::mma_delta
