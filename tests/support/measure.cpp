// Bounds. u = 2^-24 is float32's unit roundoff.
//
// float32. Summing n terms of random sign one after another rounds every partial sum s_i by at most u |s_i|, in the
// mean square u |s_i| / sqrt(3); |s_i| grows as sqrt(i), so the sum's error is u sqrt(n / 6) of its size. A result
// here nests at most three such sums: over the tokens of a sequence (1500 at most), over head_dim_k and over
// head_dim_v (256 each): u sqrt((1500 + 256 + 256) / 6) = 18 u. A decay factor exp(G) carries the rounding of G, at
// most |G| u with |G| < 10 where the factor still counts, and the 2 u of exp: 12 u more. 18 u + 12 u, and a tenth
// on top for the spread about the mean square, is 34 u = 2e-6. A per-head decay gradient is measured against the
// sum of its terms' sizes (see Expected).
//
// bfloat16 and float16 round a float32 result once. In a binade [1, 2) with p significant bits the error is uniform
// with mean square (2^(1-p))^2 / 12, the value's mean square is 7/3: relative to the norm 2^(1-p) / sqrt(28),
// 2^-9.4 for bfloat16 (p = 8) and 2^-12.4 for float16 (p = 11). 2^-9 and 2^-12 leave a third for the data's spread.
// A GPU's tensor cores take 16-bit operands: intermediate results (scores, states, weighted values) are rounded
// before they are multiplied again, about three such roundings in a chain, and partial sums of them add up. 4e-3 is
// the target that the project sets for bfloat16, and holds for every result of a pass that ran there.
//
// The delta rule's tensor-core kernels round an operand once for a product, 2^-9.4 in the mean square (bfloat16,
// above), and keep what is on the chain from token to token in two parts, which are 2^-17 together. An output sums
// two products of one such operand each and is rounded itself: sqrt(3) 2^-9.4 = 2.6e-3. A gradient sums products of
// two, the state or what a token writes and the gradient of either, and is rounded: sqrt(6) 2^-9.4 = 3.6e-3. Both
// hold to 4e-3 where beta is at most 1. Up to 2 a token may turn what it reads around, I - 2 k k^T, and results are
// differences of parts twice as large: 8e-3. The gradient of beta is a sum of products of two
// results of which part cancels: sqrt(2) times as much. That of the decay sums q dq + k dk over the tokens from one
// to its chunk's end, with dk in two shares of like size that cancel: sqrt(3) 3.6e-3 = 6.2e-3 for each token, and
// what cancels along the sum on top: twice as much, 8e-3.
//
// float16 results below 2^-14 are rounded to a multiple of 2^-24: an absolute 2^-25 per element. On tensor cores
// the same holds for what a result is a product of, so that a float32 gradient of a state or a decay has it, too.
// That of a decay per token sums, over pairs of tokens, decayed scores so rounded times q k: 2^-25 / sqrt(3) in the
// mean square times sqrt(K), and a tenth on top. Where that counts, one pair that loses as much reaches over a
// token.
//
// Where decays leave nothing of other tokens, the gradient of a decay per channel is what cancels in a sum, over at
// most T tokens, of q dq - k dk. On tensor cores both are formed by themselves, each with a float32 sum of V + 64
// terms, an error of u sqrt((V + 64) / 6) of unit data; in the sum u sqrt(2 T (V + 64) / 6), absolute, and a tenth
// on top.
#include "support/measure.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <iomanip>
#include <map>
#include <tuple>

#include "support/dtype.h"

namespace lasp_test {
namespace {

constexpr double kFloat32Bound = 2e-6, kTensorCoreBound = 4e-3;
// Data are of unit scale: a tensor whose root mean square is below this vanishes, and its error is taken absolute.
constexpr double kVanishing = 1e-30;

double norm(const std::vector<double> &x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

int32_t dtype_of(const Case &c, TensorId id) {
  if (id == kFinalState || id == kDInitialState) return LASP_FLOAT32;
  if (id == kDBeta) return c.beta_dtype;
  if (id == kDDecay) return c.decay == LASP_DECAY_HEAD ? int32_t{LASP_FLOAT32} : c.decay_dtype;
  return c.dtype;
}

// An absolute error per element that has nothing to do with the result's own size.
double floor_of(const Case &c, TensorId id, bool tensor_cores) {
  const bool of_decay = id == kDDecay && tensor_cores && !c.delta;
  const bool small_operands =
      tensor_cores && !c.delta && c.dtype == LASP_FLOAT16 && (id == kDInitialState || id == kDDecay);
  double floor = dtype_of(c, id) == LASP_FLOAT16 || small_operands ? 0x1p-25 : 0.0;
  if (of_decay && c.decay == LASP_DECAY_CHANNEL)
    floor += 1.1 * 0x1p-24 * std::sqrt(2.0 * static_cast<double>(c.tokens * (c.head_dim_v + 64)) / 6.0);
  if (of_decay && small_operands && c.decay == LASP_DECAY_SCALAR)
    floor *= std::max(1.0, 1.1 * std::sqrt(c.head_dim_k / 3.0));
  return floor;
}

struct Worst {
  double error = -1.0, bound = 0.0;
  std::string where;
};
using Kind = std::tuple<bool, int32_t, int>;  // tensor cores, dtype, tensor
std::map<Kind, Worst> &worst_errors() {
  static auto *const worst = new std::map<Kind, Worst>;
  return *worst;
}

// -0 and 0 are equal here: which of them an exact sum of zeros gives depends on the order of summation.
std::string first_difference(const Case &c, TensorId id, const std::vector<double> &expected,
                             const std::vector<double> &actual) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double wanted = round_to_dtype(expected[i], dtype_of(c, id));
    if (actual[i] == wanted) continue;
    return std::string(kTensorNames[id]) + "[" + std::to_string(i) + "] = " + std::to_string(actual[i]) +
           ", exactly it is " + std::to_string(wanted) + "\n";
  }
  return "";
}

std::string compare_one(const Case &c, TensorId id, const std::vector<double> &expected,
                        const std::vector<double> &actual, double size, bool tensor_cores, double spread) {
  if (expected.size() != actual.size()) {
    return std::string(kTensorNames[id]) + " has " + std::to_string(actual.size()) + " elements, expected " +
           std::to_string(expected.size()) + "\n";
  }
  if (expected.empty()) return "";
  // The gradient of a per-head decay of ln(1/2) sums products of more bits than float32 has, so it is never exact.
  if (c.exact && !tensor_cores && !(id == kDDecay && c.decay == LASP_DECAY_HEAD))
    return first_difference(c, id, expected, actual);

  const double error = relative_error(expected, actual, size);
  double bound = spread * error_bound(c, id, tensor_cores);
  if (norm(expected) > 0.0) {
    const double elements = static_cast<double>(expected.size());
    bound += floor_of(c, id, tensor_cores) * std::sqrt(elements) / norm(expected);
  }
  Worst &worst = worst_errors()[{tensor_cores, dtype_of(c, id), id}];
  if (!(error / bound <= worst.error / std::max(worst.bound, 1e-300))) worst = {error, bound, c.name};
  if (error <= bound) return "";
  char text[160];
  std::snprintf(text, sizeof text, "%s: relative error %.3g, bound %.3g\n", kTensorNames[id], error, bound);
  return text;
}

}  // namespace

double error_bound(const Case &c, TensorId id, bool tensor_cores) {
  if (tensor_cores && c.delta) {
    const double most_beta = c.constant_beta >= 0 ? c.constant_beta : c.most_beta;
    const double cancels = id == kDBeta ? std::sqrt(2.0) : id == kDDecay ? 2.0 : 1.0;
    return kTensorCoreBound * (most_beta > 1 ? 2 : 1) * cancels;
  }
  if (tensor_cores) return kTensorCoreBound;
  const int32_t dtype = dtype_of(c, id);
  const double rounding = dtype == LASP_BFLOAT16 ? 0x1p-9 : dtype == LASP_FLOAT16 ? 0x1p-12 : 0.0;
  return kFloat32Bound + rounding;
}

double relative_error(const std::vector<double> &expected, const std::vector<double> &actual, double size) {
  double sum = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) sum += (actual[i] - expected[i]) * (actual[i] - expected[i]);
  if (size == 0.0) size = norm(expected);
  const bool vanishes = size <= kVanishing * std::sqrt(static_cast<double>(expected.size()));
  return vanishes ? std::sqrt(sum) : std::sqrt(sum) / size;
}

std::string compare(const Case &c, const Expected &expected, const Outputs &actual, double spread) {
  std::string wrong;
  for (int id = 0; id < kTensors; ++id) {
    wrong += compare_one(c, static_cast<TensorId>(id), expected.tensors[id], actual.tensors[id],
                         id == kDDecay ? expected.d_decay_size : 0.0, actual.tensor_cores, spread);
  }
  return wrong;
}

bool same_bits(const TensorSet &a, const TensorSet &b) {
  for (int i = 0; i < kTensors; ++i) {
    if (a[i].size() != b[i].size()) return false;
    if (!a[i].empty() && std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(double)) != 0) return false;
  }
  return true;
}

void print_worst_errors(std::ostream &out) {
  if (worst_errors().empty()) return;
  constexpr const char *kDtypes[] = {"default", "float32", "bfloat16", "float16"};
  out << "\nWorst relative error (Frobenius) by dtype and tensor\n"
      << "  dtype     tensor            error     bound     products      case\n";
  for (const auto &[kind, worst] : worst_errors()) {
    const auto &[tensor_cores, dtype, id] = kind;
    out << "  " << std::left << std::setw(10) << kDtypes[dtype] << std::setw(18) << kTensorNames[id]
        << std::scientific << std::setprecision(1) << std::setw(10) << worst.error << std::setw(10) << worst.bound
        << std::setw(14) << (tensor_cores ? "tensor cores" : "float32") << worst.where << "\n";
  }
  out << std::flush;
}

}  // namespace lasp_test
