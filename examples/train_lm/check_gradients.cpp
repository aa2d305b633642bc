// Every parameter tensor's gradient against differences of the loss, on a tiny model whose sequences are split
// unevenly over two ranks, in two data-parallel groups.
//
// Along a unit direction p, D(e) = (L(x + e p) - L(x - e p)) / 2e = L' + a e^2 + b e^4 + ... . Two of them give
// R(e) = (4 D(e) - D(2e)) / 3 = L' - 4 b e^4, and R(2e) - R(e) = -60 b e^4 shows how far R(e) is off: a fifteenth
// of it. If L is rounded by r, R(e) is rounded by at most (4/3 + 1/6) r / e. So the tolerance is
//     1.5 r / e + 2 |R(2e) - R(e)| / 15
// with r = b_0 / ln 256 of bound.cpp, as logits here are of size one. A tolerance above 2% of the tensor's gradient
// norm would show little and counts as a failure of its own. The step e is small because a head whose output is
// near zero is turned round by its norm: the loss is smooth on a short way only.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>

#include "bound.hpp"
#include "checks.hpp"
#include "model.hpp"
#include "random.hpp"
#include "ranks.hpp"
#include "weights.hpp"

namespace train_lm {
namespace {

constexpr std::int64_t kTokens = 301;  // 151 and 150

// One rank's model; evaluate() is collective and gives every rank the same loss.
class Probe {
 public:
  Probe(const Layout &layout, const AttentionSettings &settings, const Endpoint &end)
      : layout_(layout),
        end_(end),
        range_(token_range(kTokens, end.groups.sequence_rank, end.groups.sequence_ranks)),
        context_(end.comm, 2, end.place),  // two threads, so that the sum over a rank's threads is checked too
        device_(context_.device()),
        values_(layout.size()),
        gradient_(layout.size()),
        parameters_(device_, layout.size()),
        tokens_(device_, static_cast<std::size_t>(range_.count) + 1),
        loss_(device_, 1),
        attention_(context_, layout.shape(), range_.count, settings),
        model_(layout, parameters_.weights(), range_.count, Model::Use::training, attention_, device_) {
    layout.initialise(7, values_.data(), 0.2f);
    Random random(100 + static_cast<std::uint64_t>(end.groups.sequence_group));
    std::vector<std::uint8_t> all;
    while (all.size() <= static_cast<std::size_t>(kTokens))
      all.push_back(static_cast<std::uint8_t>(random.bits() % 29));
    device_.copy(tokens_.data(), all.data() + range_.begin, tokens_.size());
  }

  double evaluate() {
    parameters_.set(values_.data());
    model_.forward(tokens_.data());
    const double tokens = static_cast<double>(kTokens) * end_.groups.data_ranks;
    model_.loss(tokens_.data() + 1, static_cast<float>(1.0 / tokens), loss_.data());
    sum_over_ranks(end_, context_, loss_.data(), 1);
    double loss = 0.0;
    context_.finish();
    device_.copy(&loss, loss_.data(), sizeof loss);
    return loss / tokens;
  }

  void differentiate() {
    evaluate();
    float *own = model_.backward(tokens_.data(), attention_);
    sum_over_ranks(end_, context_, own, layout_.size());
    context_.finish();
    device_.copy(gradient_.data(), own, layout_.size() * sizeof(float));
  }

  const float *gradient() const { return gradient_.data(); }
  int chunk() const { return attention_.info().chunk; }

  // (L(x + e p) - L(x - e p)) / 2e in the entries of one tensor. The moved parameters are float32, so p is what
  // they moved by in truth.
  double difference(const Tensor &tensor, const std::vector<double> &direction, double e, double *predicted) {
    float *x = values_.data() + tensor.offset;
    const std::vector<float> saved(x, x + tensor.size());
    double loss[2], slope = 0.0;
    for (const int side : {0, 1}) {
      for (std::size_t i = 0; i < saved.size(); ++i) {
        x[i] = static_cast<float>(saved[i] + (side == 0 ? e : -e) * direction[i]);
        const double moved = static_cast<double>(x[i]) - saved[i];
        slope += (side == 0 ? 1.0 : -1.0) * moved * gradient_[tensor.offset + i];
      }
      loss[side] = evaluate();
    }
    std::copy(saved.begin(), saved.end(), x);
    *predicted = slope / (2.0 * e);
    return (loss[0] - loss[1]) / (2.0 * e);
  }

 private:
  const Layout &layout_;
  const Endpoint &end_;
  const TokenRange range_;
  Context context_;
  Device &device_;
  std::vector<float> values_, gradient_;  // on the host: the parameters, and the gradient over all ranks
  Parameters parameters_;
  DeviceArray<std::uint8_t> tokens_;
  DeviceArray<double> loss_;
  SequenceAttention attention_;
  Model model_;
};

struct Finding {
  double analytic = 0.0, numeric = 0.0, tolerance = 0.0;
  double error() const { return std::fabs(analytic - numeric); }
  bool holds() const { return error() <= tolerance; }
};

Finding measure(Probe &probe, const Tensor &tensor, const std::vector<double> &direction, double e,
                double rounding) {
  double d[3], predicted[3];
  for (int i = 0; i < 3; ++i) d[i] = probe.difference(tensor, direction, e * (1 << i), &predicted[i]);
  // The direction taken differs from the one asked for by rounding of x: compare with the slope along the former.
  const double fine = (4.0 * d[0] - d[1]) / 3.0, coarse = (4.0 * d[1] - d[2]) / 3.0;
  return {(4.0 * predicted[0] - predicted[1]) / 3.0, fine,
          1.5 * rounding / e + 2.0 * std::fabs(coarse - fine) / 15.0};
}

double norm(const float *values, std::size_t count) {
  double squares = 0.0;
  for (std::size_t i = 0; i < count; ++i) squares += static_cast<double>(values[i]) * values[i];
  return std::sqrt(squares);
}

// The gradient's own direction, a random one, and single entries: the three largest and two at random.
std::vector<std::vector<double>> directions(const float *gradient, std::size_t count, Random &random) {
  std::vector<std::vector<double>> all(2, std::vector<double>(count));
  const double length = norm(gradient, count);
  for (std::size_t i = 0; i < count; ++i) {
    all[0][i] = gradient[i] / std::max(length, 1e-30);
    all[1][i] = (random.uniform() < 0.5 ? -1.0 : 1.0) / std::sqrt(static_cast<double>(count));
  }
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + 3, order.end(),
                    [&](std::size_t a, std::size_t b) { return std::fabs(gradient[a]) > std::fabs(gradient[b]); });
  for (const std::size_t entry : {order[0], order[1], order[2], random.bits() % count, random.bits() % count}) {
    all.emplace_back(count, 0.0);
    all.back()[entry] = 1.0;
  }
  return all;
}

bool check_tensor(Probe &probe, const Tensor &tensor, double rounding, Random &random, bool speaks) {
  const float *gradient = probe.gradient() + tensor.offset;
  const double length = norm(gradient, tensor.size());
  const double e = 0.004;  // of parameters of size 0.2 to 1
  bool holds = true;
  Finding along, worst;
  double worst_ratio = -1.0;
  const std::vector<std::vector<double>> all = directions(gradient, tensor.size(), random);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Finding finding = measure(probe, tensor, all[i], e, rounding);
    holds = holds && finding.holds();
    if (i == 0) along = finding;
    const double ratio = finding.error() / finding.tolerance;
    if (!(ratio <= worst_ratio)) worst_ratio = ratio, worst = finding;
  }
  const bool sharp = along.tolerance <= 0.02 * length;
  if (speaks)
    std::printf("  %-24s %12.6f %12.6f %10.1e %10.1e %8.2f  %s\n", tensor.name.c_str(), along.analytic,
                along.numeric, along.error(), along.tolerance, worst_ratio,
                !sharp  ? "TOLERANCE TOO WIDE"
                : holds ? "ok"
                        : "WRONG");
  return holds && sharp;
}

}  // namespace

bool check_gradients(const Options &options) {
  Shape shape;
  shape.layers = 2, shape.d_model = 32, shape.heads = 2, shape.d_ff = 24;
  const Layout layout(shape);
  bool all_hold = true;
  const Place kind = kind_of(options);
  run_thread_ranks({2, 2, options.group_stride}, kind, [&](const Endpoint &end) {
    AttentionSettings settings;
    settings.schedule = options.schedule;
    settings.cache = options.cache;
    Probe probe(layout, settings, end);
    probe.differentiate();
    RunResult reference;
    reference.steps.resize(1);
    const int chunk = std::min(probe.chunk(), static_cast<int>(kTokens));
    const double rounding =
        curve_bound(shape, kTokens * end.groups.data_ranks, 1.0, chunk, reference)[0] / std::log(256.0);
    const bool speaks = end.rank == 0;
    if (speaks)
      std::printf(
          "Gradients, 2 sequences of %d tokens on 2 ranks each; the loss is rounded by %.1e.\n"
          "  %-24s %12s %12s %10s %10s %8s\n",
          static_cast<int>(kTokens), rounding, "tensor", "gradient", "differences", "error", "tolerance", "worst");
    Random random(3);
    bool holds = true;
    for (const Tensor &tensor : layout.tensors())
      holds = check_tensor(probe, tensor, rounding, random, speaks) && holds;
    if (speaks) all_hold = holds;
  });
  std::printf(
      "  (gradient: along its own direction; worst: error over tolerance, there, along a random direction and\n"
      "   at five entries)\n%s\n",
      all_hold ? "All gradients agree." : "SOME GRADIENTS ARE WRONG.");
  return all_hold;
}

}  // namespace train_lm
