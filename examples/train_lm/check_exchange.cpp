// Whether the loss curves of one rank and of several coincide, and whether the bound they are held against would
// notice if they did not: the same run with every rank's incoming state zero has to leave it by far.
#include <cstdio>

#include "bound.hpp"
#include "checks.hpp"
#include "text.hpp"

namespace train_lm {
namespace {

Options small_run(const Options &asked) {
  Options options = asked;
  options.layers = 2, options.d_model = 64, options.heads = 4, options.d_ff = 96;
  options.seq_len = 4099;  // over four ranks: 1025, 1025, 1025, 1024
  options.steps = 40, options.warmup = 10, options.learning_rate = 3e-3;
  return options;
}

CurveDifference show(const char *name, const RunResult &reference, const RunResult &run,
                     const std::vector<double> &bound) {
  const CurveDifference d = compare_curves(reference, run, bound);
  std::printf("  %-52s %10.2e at step %2d %12.2e %12.3g\n", name, d.largest, d.step + 1, d.bound, d.worst_ratio);
  std::fflush(stdout);
  return d;
}

}  // namespace

bool check_exchange(const Options &asked) {
  const Options options = small_run(asked);
  const Text text(options.text);
  RunRequest plain;
  plain.place = kind_of(options);
  RunRequest request = plain;
  const RunResult reference = train(options, text, request, nullptr);
  const std::vector<double> bound = curve_bound(
      shape_of(options), options.seq_len, terms_at_once(plain.place, options.seq_len), reference.chunk, reference);
  std::printf(
      "Loss curves beside those of one rank, %d steps of %d tokens; loss %.3f to %.3f.\n"
      "  %-52s %10s %18s %12s\n",
      options.steps, static_cast<int>(options.seq_len), reference.steps.front().loss, reference.steps.back().loss,
      "", "largest", "bound there", "worst ratio");

  request.perturbation = 0x1p-23;
  const CurveDifference control = show("control: first parameters off by one last place", reference,
                                       train(options, text, request, nullptr), bound);
  request = plain;
  request.split = {4, 1, 1};
  const CurveDifference split = show("four ranks", reference, train(options, text, request, nullptr), bound);
  request.split = {3, 1, 1};
  const CurveDifference uneven = show("three ranks", reference, train(options, text, request, nullptr), bound);
  request.split = {4, 1, 1};
  request.drop_exchange = true;
  const CurveDifference dropped =
      show("four ranks without the exchange of states", reference, train(options, text, request, nullptr), bound);

  const bool agree = control.worst_ratio <= 1.0 && split.worst_ratio <= 1.0 && uneven.worst_ratio <= 1.0;
  const bool noticed = dropped.worst_ratio >= 10.0 && dropped.largest >= 100.0 * split.largest;
  if (!agree) std::puts("THE CURVES DIFFER by more than float32 rounding explains.");
  if (!noticed) std::puts("A MISSING EXCHANGE WOULD NOT BE NOTICED: the bound is too wide.");
  if (agree && noticed) std::puts("The curves coincide, and would not without the exchange.");
  return agree && noticed;
}

}  // namespace train_lm
