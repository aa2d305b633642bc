// The bound on the difference of two loss curves, and its derivation.
//
// Two runs with the same seed and data and a different split, or on different devices, differ in float32 rounding
// alone: in the order of sums, and on another device in the last place of an exponential. Let
// u = 2^-24. Rounding errors of a sum of m terms in any order are, with high probability, at most sqrt(m) u
// relative to the terms (Higham and Mary, 2019); errors of different operations add in quadrature.
//
// Forward. A token passes 10 operations per block and 4 outside, each a sum of at most
// m = max(d_model, d_ff, chunk + head_dim) terms, so its logits carry the relative error
//     e_f = u sqrt((10 L + 4) m).
// Its loss is a difference of two numbers of the size of a few logits; ln 256 stands for that size. The errors
// of T tokens are independent, so the mean over them errs by at most
//     b_0 = 4 ln(256) e_f / sqrt(T).
//
// Step. The backward pass repeats the same chain, and the weight gradients sum T terms in tiles of R rows (on a
// GPU perhaps of all rows), per rank or member, then over tiles: e_g = sqrt(2) e_f + u sqrt(R + T / R). AdamW
// divides by the gradient's own size, so a step moves parameter i by about rate_s, with the relative error e_g. In
// the worst case, with all entries' errors aligned with the gradient g_s, the loss differs after that step by
// rate_s |g_s|_1 e_g. Hence
//     b_n = b_0 + sum over steps s < n of rate_s |g_s|_1 e_g.
//
// Alignment does not happen: errors of P entries have random signs, and would give 1 / sqrt(P) of that. The room
// between the two is what training itself needs, as it amplifies old differences. `--check-exchange` measures how
// much of the room is used, with a change of the first parameters by one unit in the last place as a control,
// and that a run without the exchange of states leaves the bound.
#include "bound.hpp"

#include <algorithm>
#include <cmath>

#include "team.hpp"

namespace train_lm {

double terms_at_once(const Place &place, std::int64_t tokens) {
  return static_cast<double>(place.is_cuda() ? tokens : Team::kTile);
}

std::vector<double> curve_bound(const Shape &shape, std::int64_t tokens, double at_once, int chunk,
                                const RunResult &reference) {
  const double u = 0x1p-24, t = static_cast<double>(tokens);
  const double terms = std::max({shape.d_model, shape.d_ff, chunk + shape.head_dim()});
  const double forward = u * std::sqrt((10.0 * shape.layers + 4.0) * terms);
  const double step = std::sqrt(2.0) * forward + u * std::sqrt(at_once + t / at_once);
  std::vector<double> bound;
  double sum = 4.0 * std::log(256.0) * forward / std::sqrt(t);
  for (const StepRecord &record : reference.steps) {
    bound.push_back(sum);
    sum += record.rate * record.norm_one * step;
  }
  return bound;
}

CurveDifference compare_curves(const RunResult &a, const RunResult &b, const std::vector<double> &bound) {
  CurveDifference result;
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const double difference = std::fabs(a.steps[i].loss - b.steps[i].loss);
    result.worst_ratio = std::max(result.worst_ratio, difference / bound[i]);
    // Written so that a difference that is not a number counts as the largest.
    if (!(difference <= result.largest)) {
      result.largest = difference;
      result.step = static_cast<int>(i);
      result.bound = bound[i];
    }
    if (std::isnan(difference)) result.worst_ratio = HUGE_VAL;
  }
  return result;
}

}  // namespace train_lm
