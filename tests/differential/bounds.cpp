// u = 2^-24 is float32's unit roundoff: an operation rounds its result by a factor 1 + d, |d| <= u. A result is a
// sum of products of inputs and decays.
//
// Certain. A term that goes through at most n roundings arrives with a factor within 1 +- n u / (1 - n u), so the
// sum errs by at most that times the sum of the sizes of its terms, whatever the order of summation and however the
// terms cancel. The sum of sizes is the oracle's own result for |q|, |k|, |v|, |do| and |states|: nothing else in
// it is ever negative. Roundings n, with T the tokens of the longest sequence, C those of a chunk (or T if that is
// less) and E the edges on its way where its state is rounded and joined: ranks and, with a segment, segments.
//   state     C products are added in some order: C. The product itself and its decay to the chunk's end: 4. From
//             chunk to chunk the state is float64, which adds less than one for a billion chunks; it is rounded
//             when it leaves and before the last chunk: 3. At each edge it is rounded, decayed (two operations and
//             a sum): 4 E. The decays' own errors:
//   decay     two within a chunk, each within e u: 1 u per head (rounded once from float64), else 3 u by the
//             exponentials of src/cpu/vec.h (tests/unit holds them to it). Per channel the two are products of up
//             to 16 exponentials, 170 in all. And one code for each chunk and edge, which errs by e u of the part
//             that it takes away, or of itself if it takes half or more: of a term that is decayed by exp(-G) in
//             all, 2 e G u. G is at most 88, for what is decayed by more has vanished.
//   o, dv     a state, or its gradient, times a vector: K more; scores q.k the same. Scale, decay, sum of both: 6.
//   dq, dk    the same with V. For an input that several heads read: one more each.
//   d_decay   products of a state and a state's gradient: the roundings of both, sums over K and V, and 8.
//             Per channel it is a running sum within a chunk of q dq - k dk, which holds terms that do not cross
//             the token and cancel; so their sizes over a chunk are added to the sum of sizes, and 2 chunks to n.
//   lasp_step T products are added, and a token has the code of its decay within 3.2 u and two roundings: 6 T.
// Rounding to a 16-bit type errs by half a unit of the last place. Decays below 2^-126 are zero, far below 1e-30.
//
// Likely. Roundings go either way, by u / sqrt(3) in the mean square at most. Summing m terms of random sign one
// after another rounds each partial sum, whose size grows as the root of its length: u sqrt(m / 6) of the sum. A
// result nests such sums, over C, E, K and V; the chunks' own errors are independent of each other, so that a sum
// of many chunks has, relative to its size, no more than one of them. (lasp_step sums over T.) The decays of a
// term's path add, in u^2, 2 per head (three factors and three products, of u^2 / 3 each), 4 per token (a mean
// square of 1 for each exponential), 16 per channel (products of 16, 8 where a term lies on average, each half a u
// wrong in the same direction where decays are equal), and the rest of the arithmetic 1: u sqrt((C + E + K + V) / 6
// + D) of the tensor's norm. d_decay multiplies two such results: twice that; per channel it is a difference of two
// in which as much again cancels: four times. Half as much again is for norms that rest on as few as 64 elements. A
// 16-bit type's rounding is uniform within half a unit of the last place: the sum of N squares is ulp^2 / 12 each,
// 0.9 / sqrt(N) of it the standard deviation, of which six are allowed.
//
// Delta rule. What a token writes is a difference of what it brings and what is there, so that no sum of sizes
// bounds an element: elements are to be finite, and a tensor is held to what is likely. A result nests the sums
// over K of the scores, of what the state holds for a key and of the output, over C of T', of the scores times what
// is written and of the state, over V of two gradients: u sqrt((3 C + E + 3 K + 2 V) / 6 + D). T' multiplies it by
// at most 2 where keys are alike, its rows being (1, -r, ...) there, and by twice that for beta between 1 and 2,
// where signs alternate. The gradient of beta is a product of two such results, as the decay's is.
#include "differential/bounds.h"

#include <algorithm>
#include <cmath>

#include "differential/decode.h"

namespace lasp_test {
namespace {

constexpr double kUnit = 0x1p-24, kVanishing = 1e-30;
constexpr double kDecayVariances[] = {1.0, 2.0, 4.0, 16.0};

int64_t longest_sequence(const Case &c) {
  if (c.cu_seqlens.empty()) return c.tokens;
  int64_t longest = 0;
  for (size_t i = 1; i < c.cu_seqlens.size(); ++i)
    longest = std::max(longest, c.cu_seqlens[i] - c.cu_seqlens[i - 1]);
  return longest;
}

int64_t largest_chunk(const Case &c) { return c.chunk == 0 ? 256 : c.chunk; }

int64_t tokens_of_chunk(const Case &c) { return std::min(longest_sequence(c), largest_chunk(c)); }

// Where a state is rounded on its way, besides in its chunk.
int64_t edges(const Drawn &d) {
  return d.nranks + (d.problem.segment > 0 ? longest_sequence(d.problem) / d.problem.segment + 1 : 0);
}

int64_t roundings_of_state(const Drawn &d) {
  const int64_t sums = tokens_of_chunk(d.problem) + 7 + 4 * edges(d), codes = 2 * 88;
  switch (d.problem.decay) {
    case LASP_DECAY_NONE: return sums;
    case LASP_DECAY_HEAD: return sums + 2 + codes;
    case LASP_DECAY_SCALAR: return sums + 3 * (2 + codes);
    default: return sums + 3 * (2 + codes) + 170;
  }
}

// The tokens that a float32 sum is made of one by one, and its edges.
int64_t added_up(const Drawn &d, int column) {
  if (column == kStepO || column == kStepState) return longest_sequence(d.problem);
  return tokens_of_chunk(d.problem) + edges(d);
}

CaseData sizes_of(CaseData data) {
  for (auto tensor : {&CaseData::q, &CaseData::k, &CaseData::v, &CaseData::d_o, &CaseData::initial_state,
                      &CaseData::d_final_state})
    for (float &x : data.*tensor) x = std::fabs(x);
  return data;
}

}  // namespace

TensorId tensor_of(int column) {
  return column < kTensors ? static_cast<TensorId>(column) : column == kStepO ? kO : kFinalState;
}

int32_t dtype_of(const Case &c, int column) {
  const TensorId id = tensor_of(column);
  if (id == kFinalState || id == kDInitialState) return LASP_FLOAT32;
  if (id == kDBeta) return c.beta_dtype;
  if (id == kDDecay) return c.decay == LASP_DECAY_HEAD ? int32_t{LASP_FLOAT32} : c.decay_dtype;
  return c.dtype;
}

int64_t roundings(const Drawn &d, int column) {
  const Case &c = d.problem;
  const int64_t state = roundings_of_state(d), keys = c.head_dim_k, values = c.head_dim_v;
  switch (column) {
    case kO: return state + keys + 6;
    case kDq: return state + values + 6 + c.heads() / c.heads_q;
    case kDk: return state + values + 6 + c.heads() / c.heads_k;
    case kDv: return state + keys + 6 + c.heads() / c.heads_v;
    case kDDecay: return 2 * state + keys + values + 8 + (c.decay == LASP_DECAY_CHANNEL ? 2 * largest_chunk(c) : 0);
    case kStepO: return state + 6 * longest_sequence(c) + keys + 6;
    case kStepState: return state + 6 * longest_sequence(c);
    default: return state;
  }
}

Bounds::Bounds(const Drawn &drawn, const CaseData &data) : drawn_(drawn) {
  if (drawn.problem.delta) return;
  const CaseData sizes = sizes_of(data);
  sizes_ = expected_of(drawn.problem, sizes).tensors;
  if (drawn.problem.decay == LASP_DECAY_CHANNEL) sizes_[kDDecay] = channel_decay_sizes(sizes);
}

// What crosses the token, and |q dq| + 2 |k dk| of the tokens from it on that may be of its chunk. (Terms that
// cross the chunk's end cross the token as well, or begin in between.)
std::vector<double> Bounds::channel_decay_sizes(const CaseData &data) const {
  const Case &c = drawn_.problem;
  const int64_t keys = c.head_dim_k, heads = c.heads(), rows = c.batch * c.tokens, chunk = largest_chunk(c);
  std::vector<double> sizes = sizes_[kDDecay];
  const auto local = [&](int64_t row, int64_t head, int64_t i) {
    const int64_t of_q = (row * c.heads_q + head * c.heads_q / heads) * keys + i;
    const int64_t of_k = (row * c.heads_k + head * c.heads_k / heads) * keys + i;
    return data.q[static_cast<size_t>(of_q)] * sizes_[kDq][static_cast<size_t>(of_q)] +
           2.0 * data.k[static_cast<size_t>(of_k)] * sizes_[kDk][static_cast<size_t>(of_k)];
  };
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < keys; ++i) {
      std::vector<double> before(static_cast<size_t>(rows) + 1, 0.0);  // sums over the rows before each
      for (int64_t row = 0; row < rows; ++row)
        before[static_cast<size_t>(row) + 1] = before[static_cast<size_t>(row)] + local(row, head, i);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t end = std::min({row + chunk, (row / c.tokens + 1) * c.tokens, rows});
        sizes[static_cast<size_t>((row * heads + head) * keys + i)] +=
            before[static_cast<size_t>(end)] - before[static_cast<size_t>(row)];
      }
    }
  }
  return sizes;
}

std::vector<double> Bounds::certain(int column, const std::vector<double> &expected) const {
  const Case &c = drawn_.problem;
  const double n = static_cast<double>(roundings(drawn_, column)) * kUnit, arithmetic = n / (1.0 - n);
  const int32_t dtype = dtype_of(c, column);
  const double half_unit = dtype == LASP_BFLOAT16 ? 0x1p-8 : dtype == LASP_FLOAT16 ? 0x1p-11 : 0.0;
  const double smallest = dtype == LASP_FLOAT16 ? 0x1p-25 : kVanishing;
  std::vector<double> bounds = sizes_[tensor_of(column)];
  if (column == kStepO) bounds = part_of_rows(bounds, c, drawn_.prefill, c.tokens);
  for (size_t i = 0; i < bounds.size(); ++i) {
    const double error = arithmetic * bounds[i];
    bounds[i] = error + half_unit * (std::fabs(expected[i]) + error) + smallest;
  }
  return bounds;
}

double Bounds::likely(int column, const std::vector<double> &expected, double size) const {
  const Case &c = drawn_.problem;
  const double terms = static_cast<double>(added_up(drawn_, column) + c.head_dim_k + c.head_dim_v);
  double arithmetic = 1.5 * kUnit * std::sqrt(terms / 6.0 + kDecayVariances[c.decay]) * size;
  if (c.delta) {
    const double nested = static_cast<double>(3 * added_up(drawn_, column) + 3 * c.head_dim_k + 2 * c.head_dim_v);
    arithmetic = 2.0 * 1.5 * kUnit * std::sqrt(nested / 6.0 + kDecayVariances[c.decay]) * size;
    if (c.most_beta > 1.0) arithmetic *= 2.0;
    if (column == kDBeta) arithmetic *= 2.0;
  }
  if (column == kDDecay) arithmetic *= c.decay == LASP_DECAY_CHANNEL ? 4.0 : 2.0;
  const int32_t dtype = dtype_of(c, column);
  if (dtype == LASP_FLOAT32) return arithmetic;
  const int digits = dtype == LASP_BFLOAT16 ? 8 : 11, lowest = dtype == LASP_BFLOAT16 ? -126 : -14;
  double squares = 0.0, fourths = 0.0;
  for (const double x : expected) {
    const double unit = std::ldexp(1.0, (x == 0.0 ? lowest : std::max(std::ilogb(x), lowest)) - digits + 1);
    squares += unit * unit / 12.0, fourths += unit * unit / 12.0 * (unit * unit / 12.0);
  }
  const double rounding = squares + 6.0 * 0.9 * std::sqrt(fourths);  // sqrt(fourths) is squares / sqrt(N)
  return std::sqrt(arithmetic * arithmetic + rounding);
}

}  // namespace lasp_test
