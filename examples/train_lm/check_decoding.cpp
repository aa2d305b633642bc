// Whether decoding agrees with the parallel form: logits after a prompt that three ranks read together, and after
// each further byte by lasp_step, beside those of one rank that sees the whole text at once.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "checks.hpp"
#include "model.hpp"
#include "random.hpp"
#include "sample.hpp"
#include "trainer.hpp"
#include "weights.hpp"

namespace train_lm {
namespace {

constexpr std::size_t kPrompt = 101, kFurther = 40;  // the prompt's last byte is fed to the decoder

// logits[i]: after token i of `tokens`.
std::vector<std::vector<float>> parallel_logits(const Layout &layout, const std::vector<float> &values,
                                                const std::vector<std::uint8_t> &tokens, const Place &place) {
  const Comm comm = group_of_one();
  Context context(comm.get(), 1, place);
  Device &device = context.device();
  Parameters parameters(device, layout.size());
  parameters.set(values.data());
  DeviceArray<std::uint8_t> there(device, tokens.size());
  device.copy(there.data(), tokens.data(), tokens.size());
  AttentionSettings settings;
  settings.backward = false;
  const std::int64_t count = static_cast<std::int64_t>(tokens.size());
  SequenceAttention attention(context, layout.shape(), count, settings);
  Model model(layout, parameters.weights(), count, Model::Use::inference, attention, device);
  model.forward(there.data());
  std::vector<std::vector<float>> logits;
  for (std::int64_t t = 0; t < count; ++t) {
    logits.emplace_back(static_cast<std::size_t>(Shape::vocabulary));
    model.logits(t, logits.back().data());
  }
  return logits;
}

}  // namespace

bool check_decoding(const Options &options) {
  Shape shape;
  shape.layers = 3, shape.d_model = 48, shape.heads = 3, shape.d_ff = 80;
  const Layout layout(shape);
  std::vector<float> values(layout.size());
  layout.initialise(options.seed, values.data(), 0.2f);
  Random random(options.seed);
  std::vector<std::uint8_t> tokens;
  while (tokens.size() < kPrompt + kFurther) tokens.push_back(static_cast<std::uint8_t>(random.bits()));
  const Place kind = kind_of(options);
  const std::vector<std::vector<float>> expected = parallel_logits(layout, values, tokens, place_of(kind, 0));

  double difference = 0.0, size = 0.0;
  run_thread_ranks({3, 1, 1}, kind, [&](const Endpoint &end) {
    SampleRequest request;
    request.prompt.assign(tokens.begin(), tokens.begin() + kPrompt);
    const std::unique_ptr<Device> device = make_device(end.place, 1);
    Parameters parameters(*device, layout.size());
    parameters.set(values.data());
    Decoder decoder(request, layout, parameters.weights(), end);
    for (std::size_t t = kPrompt - 1; t < tokens.size(); ++t) {
      const std::vector<float> &logits = decoder.feed(tokens[t]);
      for (std::size_t i = 0; end.rank == 0 && i < logits.size(); ++i) {
        const double d = std::fabs(static_cast<double>(logits[i]) - expected[t][i]);
        if (!(d <= difference)) difference = d;
        size = std::max(size, std::fabs(static_cast<double>(expected[t][i])));
      }
    }
  });
  // Both sides are off by e_f as in bound.cpp, with sums of at most 2^8 terms; a maximum over thousands of logits
  // lies within four standard deviations.
  const double forward = 0x1p-24 * std::sqrt((10.0 * shape.layers + 4.0) * 256.0);
  const double bound = 4.0 * std::sqrt(2.0) * forward * size;
  const bool holds = difference <= bound;
  std::printf(
      "Logits of %zu bytes by lasp_step after a prompt of %zu on 3 ranks: largest difference from the parallel\n"
      "form %.2e, of logits up to %.2f; bound %.2e.\n%s\n",
      kFurther + 1, kPrompt, difference, size, bound, holds ? "Decoding agrees." : "DECODING DIFFERS.");
  return holds;
}

}  // namespace train_lm
