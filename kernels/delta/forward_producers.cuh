// The producers of a forward walk, a warpgroup: they copy chunks, and where there are outputs they find scores P a
// chunk ahead of the walkers. Both together have to take less than the walkers do.
#pragma once

#include "forward_layout.cuh"

namespace lasp::gpu::delta_hopper::forward_walk {

constexpr int kBoxRows = kChunk / kWarps, kBoxBytes = 2 * kBoxRows * 128;  // of k and q, by a warp

// True in one lane of a warp, by which the compiler knows that it is one: it issues copies without a loop over
// lanes.
__device__ __forceinline__ bool one_lane() {
  uint32_t one;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(one));
  return one != 0;
}

template <typename T, bool kDecay>
struct Producers {
  const DeltaForward &p;
  const Work &work;
  const Block &block;
  const TensorMaps &maps;
  const bool outputs = work.any_outputs();
  const Copier copier{
      p, work.place,
      !begins_on_piece(p.k.data) || !begins_on_piece(p.v.data) || (outputs && !begins_on_piece(p.q.data))};
  const int32_t warp = __shfl_sync(~0u, this_thread() / 32, 0);

  // Of a chunk whose rows are all there, by one lane of each warp: 16 rows of k; by the first also what its slot
  // has, by the last two v of a walker.
  __device__ __forceinline__ void copy_chain(const char *slot, int n) const {
    const uint32_t to = block.chain(n), full = block.chain_full(n);
    const Run &run = work.place.run;
    const int32_t token = int32_t(run.begin) + n * kChunk, row = int32_t(run.row), walker = warp - 2;
    const bool has_v = walker >= 0 && work.walks[walker];
    hopper::barrier_expect(full, kBoxBytes + (warp == 0 ? kSlotWithoutP : has_v ? kPanel : 0));
    if (warp == 0) copy_bulk(to + kN, slot, kSlotWithoutP, full);
    copy_rows<kFlip>(to + kK, maps.k, full, token, work.head_k, row, kBoxRows * warp);
    if (!has_v) return;
    hopper::fence_async_proxy();  // the walker has written where v was
    hopper::tma_load_box(
        to + kV + walker * kPanel, &maps.columns, full,
        work.transition(walker) ? int32_t(p.tokens) : token,  // of M zeros, from after the last one
        0, work.head_v, row, hopper::Keep::kNormal, work.slice(walker) * kSlice);
  }
  __device__ __forceinline__ void copy_q(int n) const {
    const Run &run = work.place.run;
    hopper::barrier_expect(block.output_full(n), kBoxBytes);
    copy_rows<kFlip>(block.output(n) + kQ, maps.q, block.output_full(n), int32_t(run.begin) + n * kChunk,
                     work.head_q, int32_t(run.row), kBoxRows * warp);
  }
  // The same of other chunks, by all threads, which wait for it.
  __device__ __forceinline__ void copy_chain_by_threads(const char *slot, int n) const {
    const int count = work.place.run.length - n * kChunk;
    const uint32_t to = block.chain(n), full = block.chain_full(n);
    copier.rows<kDim, kFlip>(to + kK, p.k, copier.begin<kDim>(p.k, work.head_k, n), 0, count);
#pragma unroll
    for (int w = 0; w < kWalkers; ++w)
      if (work.walks[w]) {
        const int first = work.slice(w) * kSlice;
        copier.rows<kSlice, 0>(to + kV + w * kPanel, p.v, copier.begin<kSlice>(p.v, work.head_v, n) + 2 * first,
                               first, work.transition(w) ? 0 : count);
      }
    wait_for_copies();
    if (!one_lane()) return;
    if (warp > 0) return hopper::barrier_arrive(full);
    hopper::barrier_expect(full, kSlotWithoutP);
    copy_bulk(to + kN, slot, kSlotWithoutP, full);
  }
  __device__ __forceinline__ void copy_q_by_threads(int n) const {
    const int count = work.place.run.length - n * kChunk;
    copier.rows<kDim, kFlip>(block.output(n) + kQ, p.q, copier.begin<kDim>(p.q, work.head_q, n), 0, count);
    wait_for_copies();
    if (one_lane()) hopper::barrier_arrive(block.output_full(n));
  }
  // Until this warp's are there.
  static __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
  }

  // P of chunk n: q k^T by tensor cores, with decays unless they are narrow, as a pair of tiles. 32 columns at a
  // time, for there are few registers; without branches and with what waits for nothing first, for this has to take
  // less than the walkers do.
  __device__ __forceinline__ void find_scores(int n) const {
    const uint32_t chain = block.chain(n), output = block.output(n), sums = chain + kChainFactors + kSums;
    hopper::barrier_wait(block.chain_full(n), n / kChainStages & 1);
    hopper::barrier_wait(block.output_full(n), n / kOutputStages & 1);
    if (n >= work.place.boxed) hopper::fence_async_proxy();  // threads have copied
    // Descriptors differ in their lower halves alone.
    const uint64_t tile = hopper::tile_descriptor<128>(output + kQ), top = tile >> 32 << 32;
    auto q = uint32_t(tile);
    auto k = uint32_t(hopper::tile_descriptor<128>(chain + kK));
    const int lane = this_thread() % 32, row = 6 - 2 * warp, i = 8 * row + lane / 4;
    const bool wide = kDecay && !is_narrow<T>(chain + kChainFactors);
#pragma unroll 1
    for (int first = 0; first < kChunk / 8; first += 4, k += 4 * 1024 / 16) {  // 8 x 8 matrices, in flipped order
      float x[16], factors[16];
      asm volatile("" : "+r"(q));  // or eight descriptors wait in registers
      hopper::wgmma_begin();
#pragma unroll
      for (uint32_t step = 0; step < kDim / 16; ++step) {
        const uint32_t at = (step / 4 * kPanel + step % 4 * 32) / 16;
        hopper::wgmma<T, false, false>(x, top | (q + at), top | (k + at), step > 0);
      }
      hopper::wgmma_commit();
      const int j0 = 8 * (first ^ kFlip / 8) + 2 * (lane % 4);  // of matrices 0 and 1; 2 and 3 are 16 before
      if (wide) {
        float2 at_column[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) at_column[m] = load_pair(sums + 4 * (j0 + 8 * m - m / 2 * 32));
        const float at_row[2] = {load_float(sums + 4 * i), load_float(sums + 4 * i + 32)};
#pragma unroll
        for (int e = 0; e < 16; ++e) {
          const float before = e % 2 ? at_column[e / 4].y : at_column[e / 4].x;
          factors[e] = exp2_fast(fminf(at_row[e / 2 % 2] - before, 0));
        }
      } else {
#pragma unroll
        for (float &factor : factors) factor = 1;
      }
      hopper::wgmma_wait<0>(x);
#pragma unroll
      for (int e = 0; e < 16; e += 2) {
        const int h = e / 2 % 2, m = e / 4, j = j0 + 8 * m - m / 2 * 32, column = (first + m) ^ kFlip / 8;
        const float left = j <= i + 8 * h ? kDecay ? factors[e] * x[e] : x[e] : 0;
        const float right = j < i + 8 * h ? kDecay ? factors[e + 1] * x[e + 1] : x[e + 1] : 0;
        const uint32_t high = pack<T>(left, right), to = output + kP + 4 * lane;
        const bool there = column / 2 <= row / 2;
        store_word(to + PairTile<false>::at(row + h, column), high, there);
        store_word(to + PairTile<true>::at(row + h, column), pack_rest<T>(left, right, high), there);
      }
    }
    hopper::fence_async_proxy();
    hopper::barrier_arrive(block.scores_full(n));
  }

  __device__ __forceinline__ void run(const Slots &slots) const {
    const Place &place = work.place;
    const char *slot =
        slots.at(slots.first_of_part(place.index, place.part, place.run) + place.skipped, p.heads, place.head);
    for (int n = 0; n <= place.chunks; ++n) {
      if (n < place.chunks) {
        wait_before(block.chain_empty(n), n / kChainStages);
        if (n >= work.place.boxed) {
          copy_chain_by_threads(slot, n);
        } else if (one_lane()) {
          copy_chain(slot, n);
        }
        slot += int64_t{p.heads} * slots.bytes;
        if (outputs) {
          wait_before(block.output_empty(n), n / kOutputStages);
          if (n >= work.place.boxed) {
            copy_q_by_threads(n);
          } else if (one_lane()) {
            copy_q(n);
          }
        }
      }
      if (outputs && n > 0) find_scores(n - 1);
    }
  }
};

}  // namespace lasp::gpu::delta_hopper::forward_walk
