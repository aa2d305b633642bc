// Small operations on states: the scan over runs, and what joins and leaves at the ranks' edges. All are one thread
// per element of a state, and bound by memory.
#include <type_traits>

#include "counted_tokens.cuh"
#include "from_zero.h"
#include "marks.cuh"
#include "states.cuh"

namespace lasp::gpu {
namespace {

// The same in float64, where the roundings of many runs would add up.
template <int kWidth>
struct RunningState {
  double x[kWidth];
  template <class Element>
  __device__ void set(const Element &from) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = reinterpret_cast<const float *>(&from)[i];
  }
  template <class Element>
  __device__ Element rounded() const {
    Element to;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) reinterpret_cast<float *>(&to)[i] = static_cast<float>(x[i]);
    return to;
  }
  template <class Element>
  __device__ void follow(double decay, const Element &own) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = fma(x[i], decay, double(reinterpret_cast<const float *>(&own)[i]));
  }
};

// Of a segment's parts, in scan order, those behind the first one of its last run: no state in it enters a run.
__device__ __forceinline__ int64_t parts_behind(const StateScan &p, const Segment &segment) {
  if (segment.num_runs < 2) return 0;
  const Run *const runs = p.runs + segment.first_run;
  const int32_t whole = runs[0].length;  // the first part is as long as any
  return p.reversed ? (runs[0].after + whole - 1) / whole : runs[segment.num_runs - 1].before / whole;
}

// A call, since lengths seldom change from run to run.
__device__ __noinline__ float head_code(float g, int32_t tokens) { return decay_code(log_decay_power(g, tokens)); }

// A thread's chain of runs is serial but for its loads: kAhead of them are in flight at once. More would leave a
// multiprocessor fewer blocks, and 32 heads of 128 x 128 would no longer be there at once.
// With kFromZero what enters a sequence is not written (from_zero.h).
template <class Element, bool kByHead, bool kFromZero>
__device__ __forceinline__ void scan_element(const StateScan &p, int64_t at) {
  constexpr int kWidth = sizeof(Element) / sizeof(float), kAhead = 4;
  const int64_t size = state_floats(p.shape), factors = factor_floats(p.shape);
  const int64_t index = quotient(at, size);
  const Segment &segment = p.segments[index];
  const StateOffsets at_element(p.shape, at - index * size);
  const auto element = [&](auto *states, int64_t offset) -> auto & {
    using To = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(states)>>, const Element, Element>;
    return *reinterpret_cast<To *>(states + offset + at_element.state);
  };
  RunningState<kWidth> running = {};
  if (p.starts != nullptr) {
    running.set(element(p.starts, p.start_of[index] * p.start_stride));
  } else if (segment.begins[p.reversed] && p.first_state != nullptr) {
    running.set(element(p.first_state, segment.sequence * size));
  }
  const int64_t first_run = segment.first_run, num_runs = segment.num_runs;
  const auto run_at = [&](int64_t n) { return first_run + (p.reversed ? num_runs - 1 - n : n); };
  const bool leaves_rank = p.map_state != nullptr && segment.produces[p.reversed];
  const int64_t end = leaves_rank || p.runs == nullptr ? num_runs : num_runs - parts_behind(p, segment);
  const bool skips = kFromZero && segment.begins[p.reversed];
  if (end == 1 && !leaves_rank) {  // of packings, most: what enters the one run
    const int64_t run = run_at(0);
    if (!skips) element(p.slots, run * size) = running.template rounded<Element>();
    if (at_element.first_of_factor && p.entry_decay != nullptr)
      p.entry_decay[run * factors + at_element.factor] = value_code(1);
    return;
  }
  const float g = kByHead ? p.head_decay[at_element.factor] : 0.0f;
  int32_t length = -1;
  float code_of_length = 0;
  double decay_so_far = 1;
  for (int64_t begin = 0; begin < end; begin += kAhead) {
    // What the tables say of these runs is asked for at once, then what of the states is wanted. (Past the last
    // run: of it again.)
    int64_t run[kAhead];
    float code[kAhead];
    bool counts[kAhead], leaves[kAhead];  // whether it has a part of the state; whether what enters it is used
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      run[i] = run_at(min(begin + i, end - 1));
      if (!kByHead) {
        counts[i] = p.counts == nullptr || p.counts[run[i] * factors + at_element.factor] > 0;
        code[i] = p.factors != nullptr ? p.factors[run[i] * factors + at_element.factor] : -0.0f;
      }
      leaves[i] = p.runs == nullptr || (p.reversed ? p.runs[run[i]].after : p.runs[run[i]].before) == 0;
      if (!kByHead) continue;
      const Run &there = p.runs[run[i]];
      counts[i] = counted_tokens(there, g, p.reversed) > 0;
      if (there.length != length) length = there.length, code_of_length = head_code(g, length);
      code[i] = code_of_length;
    }
    Element own[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (counts[i]) own[i] = element(p.slots, run[i] * size);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= end) continue;
      const double decay = decay_value(code[i]);
      if (leaves[i] && !(skips && begin + i == 0))
        element(p.slots, run[i] * size) = running.template rounded<Element>();
      running.follow(decay, own[i]);
      if (!at_element.first_of_factor) continue;
      if (p.entry_decay != nullptr) p.entry_decay[run[i] * factors + at_element.factor] = value_code(decay_so_far);
      decay_so_far *= decay;
    }
  }
  if (!leaves_rank) return;
  element(p.map_state, segment.path * size) = running.template rounded<Element>();
  if (at_element.first_of_factor && p.map_factor != nullptr)
    p.map_factor[segment.path * factors + at_element.factor] =
        segment.resets[p.reversed] ? 0.0f : value_code(decay_so_far);
}

template <class Element, bool kByHead>
__global__ void __launch_bounds__(kThreads, 4) scan_kernel(int64_t first, StateScan p, Mark mark) {
  leave_mark(mark, first);
  const int64_t at = thread_index(first) * (sizeof(Element) / sizeof(float));
  if (at < p.num_segments * state_floats(p.shape)) scan_element<Element, kByHead, false>(p, at);
}

// As many segments as are there, by blocks enough for the device.
template <class Element, bool kByHead, bool kFromZero>
__device__ __forceinline__ void scan_live(const StateScan &p, int64_t first) {
  constexpr int64_t kWidth = sizeof(Element) / sizeof(float);
  const int64_t end = min(*p.live, p.num_segments) * state_floats(p.shape);
  for (int64_t at = thread_index(first) * kWidth; at < end; at += gridDim.x * kThreads * kWidth)
    scan_element<Element, kByHead, kFromZero>(p, at);
}
template <class Element, bool kByHead>
__global__ void __launch_bounds__(kThreads, 4) scan_live_kernel(int64_t first, StateScan p, Mark mark) {
  leave_mark(mark, first);
  scan_live<Element, kByHead, false>(p, first);
}
template <class Element, bool kByHead>
__global__ void __launch_bounds__(kThreads, 4) scan_from_zero_kernel(int64_t first, ScanFromZero p) {
  if (p.map_state == nullptr && *p.followed == 0) return;
  scan_live<Element, kByHead, true>(p, first);
}

template <class Element>
__global__ void join_kernel(int64_t first, StateJoin p, Mark mark) {
  leave_mark(mark, first);
  constexpr int kWidth = sizeof(Element) / sizeof(float);
  const int64_t size = state_floats(p.shape), factors = factor_floats(p.shape), at = thread_index(first) * kWidth;
  if (at >= p.num_runs * size) return;
  const int64_t index = quotient(at, size);
  if (p.runs[index].length == 0) return;
  const int64_t path = p.runs[index].path, state = p.runs[index].state;
  const StateOffsets at_element(p.shape, at - index * size);
  const float decay = p.entry_decay != nullptr ? p.entry_decay[state * factors + at_element.factor] : -0.0f;
  if (is_below_cutoff(decay)) return;  // a pass may already have taken this run for it
  Element *const slot = reinterpret_cast<Element *>(p.slots + state * size + at_element.state);
  *slot = follow(*reinterpret_cast<const Element *>(p.incoming + path * size + at_element.state), decay, *slot);
}

__global__ void segment_sums_kernel(int64_t first, SegmentSums p, Mark mark) {
  leave_mark(mark, first);
  const int64_t size = state_floats(p.shape), at = thread_index(first);
  if (at >= p.num_segments * size) return;
  const Segment segment = p.segments[at / size];
  const int64_t i = at % size;
  double all = segment.begins[p.reversed] && p.own != nullptr ? p.own[segment.sequence * size + i] : 0.0f;
  for (int64_t n = 0; n < segment.num_runs; ++n) all += p.slots[(segment.first_run + n) * size + i];
  const auto sum = static_cast<float>(all);
  p.sums[at] = sum;
  if (p.left != nullptr && segment.produces[0]) p.left[segment.path * size + i] = sum;
  if (p.right != nullptr && segment.produces[1]) p.right[segment.path * size + i] = sum;
}

__global__ void segment_totals_kernel(int64_t first, SegmentTotals p, Mark mark) {
  leave_mark(mark, first);
  const int64_t size = state_floats(p.shape), at = thread_index(first);
  if (at >= p.num_segments * size) return;
  const Segment segment = p.segments[at / size];
  const int64_t i = at % size;
  float total = p.sums[at];
  if (p.from_left != nullptr && !segment.begins[0]) total += p.from_left[segment.path * size + i];
  if (p.from_right != nullptr && !segment.begins[1]) total += p.from_right[segment.path * size + i];
  p.totals[at] = total;
  // The sequence's end in scan order is where it begins in the other one.
  if (p.edge_state != nullptr && segment.begins[!p.reversed])
    put_element(p.edge_state, DType::kFloat32, segment.sequence * size + i, total, p.edge_adds);
}

__global__ void fill_factors_kernel(int64_t first, float *factor, int64_t count, int64_t per_row,
                                    const float *by_row) {
  const int64_t at = thread_index(first);
  if (at < count) factor[at] = by_row[at / per_row];
}

__global__ void copy_states_kernel(int64_t first, float *to, const float *from, const int64_t *index, int64_t count,
                                   int64_t size, bool adds) {
  const int64_t at = thread_index(first);
  if (at >= count * size) return;
  const int64_t at_element = index[at / size] * size + at % size;
  put_element(to, DType::kFloat32, at_element, from != nullptr ? from[at_element] : 0.0f, adds);
}

__global__ void copy_live_states_kernel(int64_t first, float *to, const float *from, const int64_t *index,
                                        const int64_t *live, int64_t count, int64_t size, bool adds) {
  const int64_t end = min(*live, count) * size;
  for (int64_t at = thread_index(first); at < end; at += int64_t{gridDim.x} * kThreads) {
    const int64_t at_element = index[at / size] * size + at % size;
    put_element(to, DType::kFloat32, at_element, from != nullptr ? from[at_element] : 0.0f, adds);
  }
}

__global__ void sum_groups_kernel(int64_t first, Tensor to, DType type, bool adds, const void *from,
                                  DType from_type, int64_t tokens, int64_t count, int32_t heads) {
  const int64_t at = thread_index(first);
  if (at >= count) return;
  const int64_t d = at % to.dim, group = at / to.dim % to.heads,
                token = at / to.dim / to.heads;  // token: of all rows
  const int64_t members = heads / to.heads;
  float sum = 0;
  for (int64_t m = 0; m < members; ++m)
    sum += load_element(from, from_type, (token * heads + group * members + m) * to.dim + d);
  put_element(to.data, type, offset_of(to.strides, token / tokens, token % tokens, group) + d, sum, adds);
}

// The same for eight neighbours, to 16 bits each.
template <class T, class From>
__global__ void sum_groups_by_eight(int64_t first, Tensor to, bool adds, const From *from, int64_t tokens,
                                    int64_t count, int32_t members) {
  constexpr int kOfPiece = sizeof(uint4) / sizeof(From);
  const int64_t at = thread_index(first);
  if (at >= count) return;
  const int64_t row = quotient(at, to.dim / 8);  // of heads that share
  const int64_t d = (at - row * (to.dim / 8)) * 8, token = quotient(row, to.heads), group = row - token * to.heads,
                batch = quotient(token, tokens);
  float sum[8] = {};
#pragma unroll 8
  for (int32_t m = 0; m < members; ++m) {
#pragma unroll
    for (int j = 0; j < 8; j += kOfPiece) {
      const uint4 piece = *reinterpret_cast<const uint4 *>(from + (row * members + m) * to.dim + d + j);
#pragma unroll
      for (int i = 0; i < kOfPiece; ++i) sum[j + i] += float(reinterpret_cast<const From *>(&piece)[i]);
    }
  }
  uint4 &there = *reinterpret_cast<uint4 *>(static_cast<T *>(to.data) +
                                            offset_of(to.strides, batch, token - batch * tokens, group) + d);
  uint4 result = adds ? there : uint4{};
  T *const elements = reinterpret_cast<T *>(&result);
#pragma unroll
  for (int i = 0; i < 8; ++i) elements[i] = T(adds ? float(elements[i]) + sum[i] : sum[i]);
  there = result;
}
bool by_eight(const Tensor &to, DType to_dtype, const void *from, DType from_dtype) {
  const auto fits = [](int64_t stride) { return stride % 8 == 0; };
  return (to_dtype == from_dtype || from_dtype == DType::kFloat32) && to_dtype != DType::kFloat32 &&
         to.dim % 8 == 0 &&
         (reinterpret_cast<uintptr_t>(to.data) | reinterpret_cast<uintptr_t>(from)) % sizeof(uint4) == 0 &&
         fits(to.strides.batch) && fits(to.strides.token) && fits(to.strides.head);
}

// Blocks of kernels that walk through as much as there is: enough for any device.
constexpr int64_t kLiveBlocks = 2048;
// Of those that mostly find nothing to do: as many as there are at once on 132 multiprocessors.
constexpr int64_t kFromZeroBlocks = 4 * 132;

// Every array is a whole number of rows after one that is aligned for float4.
bool scans_by_four(const StateScan &p) {
  return p.shape.dim_v % 4 == 0 && aligned_for_four(p.slots) && aligned_for_four(p.first_state) &&
         aligned_for_four(p.starts) && aligned_for_four(p.map_state);
}
int64_t live_blocks(const StateScan &p) {
  return std::min(kLiveBlocks,
                  ceil_div(p.num_segments * state_floats(p.shape) / (scans_by_four(p) ? 4 : 1), kThreads));
}

}  // namespace

namespace {

template <class Element, bool kByHead>
int launch_scan_of(const StateScan &p, const Mark &mark, Stream stream) {
  constexpr int64_t kWidth = sizeof(Element) / sizeof(float);
  return p.live != nullptr
             ? launch_blocks(scan_live_kernel<Element, kByHead>, live_blocks(p), kThreads, 0, stream, p, mark)
             : launch_elements(scan_kernel<Element, kByHead>, p.num_segments * state_floats(p.shape) / kWidth,
                               stream, p, mark);
}
template <class Element, bool kByHead>
int load_scan_of() {
  return load_kernels(scan_kernel<Element, kByHead>, scan_live_kernel<Element, kByHead>,
                      scan_from_zero_kernel<Element, kByHead>);
}

}  // namespace

int launch_state_scan(const StateScan &p, const Mark &mark, Stream stream) {
  if (p.num_segments * state_floats(p.shape) == 0) return launch_mark(mark, stream);
  const bool by_head = p.head_decay != nullptr;
  return scans_by_four(p)
             ? (by_head ? launch_scan_of<float4, true> : launch_scan_of<float4, false>)(p, mark, stream)
             : (by_head ? launch_scan_of<float, true> : launch_scan_of<float, false>)(p, mark, stream);
}
int launch_state_scan(const StateScan &p, Stream stream) { return launch_state_scan(p, {}, stream); }

int launch_scan_from_zero(const ScanFromZero &p, Stream stream) {
  if (p.live == nullptr || p.followed == nullptr || p.first_state != nullptr) return cudaErrorInvalidValue;
  const bool by_head = p.head_decay != nullptr;
  const auto kernel = scans_by_four(p)
                          ? (by_head ? scan_from_zero_kernel<float4, true> : scan_from_zero_kernel<float4, false>)
                          : (by_head ? scan_from_zero_kernel<float, true> : scan_from_zero_kernel<float, false>);
  return launch_blocks(kernel, std::min(kFromZeroBlocks, live_blocks(p)), kThreads, 0, stream, p);
}

int launch_state_join(const StateJoin &p, const Mark &mark, Stream stream) {
  const int64_t count = p.num_runs * state_floats(p.shape);
  if (count == 0) return launch_mark(mark, stream);
  return p.shape.dim_v % 4 == 0 && aligned_for_four(p.slots) && aligned_for_four(p.incoming)
             ? launch_elements(join_kernel<float4>, count / 4, stream, p, mark)
             : launch_elements(join_kernel<float>, count, stream, p, mark);
}
int launch_state_join(const StateJoin &p, Stream stream) { return launch_state_join(p, {}, stream); }

int launch_segment_sums(const SegmentSums &p, const Mark &mark, Stream stream) {
  if (p.num_segments == 0) return launch_mark(mark, stream);
  return launch_elements(segment_sums_kernel, p.num_segments * state_floats(p.shape), stream, p, mark);
}
int launch_segment_sums(const SegmentSums &p, Stream stream) { return launch_segment_sums(p, {}, stream); }

int launch_segment_totals(const SegmentTotals &p, const Mark &mark, Stream stream) {
  if (p.num_segments == 0) return launch_mark(mark, stream);
  return launch_elements(segment_totals_kernel, p.num_segments * state_floats(p.shape), stream, p, mark);
}
int launch_segment_totals(const SegmentTotals &p, Stream stream) { return launch_segment_totals(p, {}, stream); }

int launch_fill_factors(float *factor, int64_t rows, int64_t per_row, const float *by_row, Stream stream) {
  return launch_elements(fill_factors_kernel, rows * per_row, stream, factor, rows * per_row, per_row, by_row);
}

int launch_copy_states(float *to, const float *from, const int64_t *index, int64_t count, int64_t size, bool adds,
                       Stream stream) {
  return launch_elements(copy_states_kernel, count * size, stream, to, from, index, count, size, adds);
}

int launch_copy_live_states(float *to, const float *from, const int64_t *index, const int64_t *live, int64_t count,
                            int64_t size, bool adds, Stream stream) {
  return launch_blocks(copy_live_states_kernel, std::min(kLiveBlocks, ceil_div(count * size, kThreads)), kThreads,
                       0, stream, to, from, index, live, count, size, adds);
}

int launch_sum_groups(const Tensor &to, DType to_dtype, bool adds, const void *from, DType from_dtype,
                      int64_t batch, int64_t tokens, int32_t heads, Stream stream) {
  const int64_t count = batch * tokens * to.heads * to.dim;
  if (by_eight(to, to_dtype, from, from_dtype)) {
    const auto launch = [&](auto kernel, auto *data) {
      return launch_elements(kernel, count / 8, stream, to, adds, data, tokens, count / 8, heads / to.heads);
    };
    const auto *const floats = static_cast<const float *>(from);
    const bool wide = from_dtype == DType::kFloat32;
    if (to_dtype == DType::kBFloat16)
      return wide ? launch(sum_groups_by_eight<__nv_bfloat16, float>, floats)
                  : launch(sum_groups_by_eight<__nv_bfloat16, __nv_bfloat16>,
                           static_cast<const __nv_bfloat16 *>(from));
    return wide ? launch(sum_groups_by_eight<__half, float>, floats)
                : launch(sum_groups_by_eight<__half, __half>, static_cast<const __half *>(from));
  }
  return launch_elements(sum_groups_kernel, count, stream, to, to_dtype, adds, from, from_dtype, tokens, count,
                         heads);
}

int load_state_kernels() {
  if (const int error = load_run_factors()) return error;
  for (const auto load : {load_compositions, load_scan_of<float, false>, load_scan_of<float, true>,
                          load_scan_of<float4, false>, load_scan_of<float4, true>})
    if (const int error = load()) return error;
  return load_kernels(join_kernel<float>, join_kernel<float4>, segment_sums_kernel, segment_totals_kernel,
                      fill_factors_kernel, copy_states_kernel, copy_live_states_kernel, sum_groups_kernel,
                      sum_groups_by_eight<__nv_bfloat16, __nv_bfloat16>, sum_groups_by_eight<__half, __half>,
                      sum_groups_by_eight<__nv_bfloat16, float>, sum_groups_by_eight<__half, float>);
}

}  // namespace lasp::gpu
