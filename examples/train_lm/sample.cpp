// Prefill, decoding and drawing by temperature.
#include "sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "random.hpp"
#include "trainer.hpp"

namespace train_lm {
namespace {

// Hands every layer's state after the prompt to `states`.
void prefill(const SampleRequest &request, const Layout &layout, const Weights &weights, const Endpoint &end,
             StepAttention &states) {
  const std::int64_t tokens = static_cast<std::int64_t>(request.prompt.size()) - 1;
  const TokenRange range = token_range(tokens, end.groups.sequence_rank, end.groups.sequence_ranks);
  Context context(end.comm, request.threads, end.place);
  Device &device = context.device();
  AttentionSettings settings;
  settings.backward = false;
  settings.final_state = true;
  DeviceArray<std::uint8_t> prompt(device, static_cast<std::size_t>(range.count));
  device.copy(prompt.data(), request.prompt.data() + range.begin, prompt.bytes());
  SequenceAttention attention(context, layout.shape(), range.count, settings);
  Model model(layout, weights, range.count, Model::Use::inference, attention, device);
  model.forward(prompt.data());
  context.finish();
  for (int layer = 0; layer < layout.shape().layers; ++layer) states.set_state(layer, attention.final_state(layer));
  states.finish();
}

std::uint8_t draw(const std::vector<float> &logits, double temperature, Random &random) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  for (const float logit : logits)
    weights.push_back(std::exp((static_cast<double>(logit) - largest) / temperature));
  double rest = random.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t byte = 0;
  while (byte + 1 < weights.size() && (rest -= weights[byte]) >= 0.0) ++byte;
  return static_cast<std::uint8_t>(byte);
}

}  // namespace

Decoder::Decoder(const SampleRequest &request, const Layout &layout, const Weights &weights, const Endpoint &end)
    : alone_(group_of_one()),
      context_(alone_.get(), 1, end.place),
      byte_(context_.device(), 1),
      attention_(context_, layout.shape()),
      model_(layout, weights, 1, Model::Use::inference, attention_, context_.device()),
      logits_(static_cast<std::size_t>(Shape::vocabulary)) {
  prefill(request, layout, weights, end, attention_);
}

const std::vector<float> &Decoder::feed(std::uint8_t byte) {
  context_.device().upload(byte_.data(), &byte, 1);
  model_.forward(byte_.data());
  model_.logits(0, logits_.data());
  return logits_;
}

std::string generate(const SampleRequest &request, const Layout &layout, const Weights &weights,
                     const Endpoint &end) {
  std::string text;
  if (end.groups.sequence_group != 0) return text;
  Decoder decoder(request, layout, weights, end);
  if (end.rank != 0) return text;
  Random random(request.seed + 2);
  std::uint8_t byte = request.prompt.back();
  while (static_cast<int>(text.size()) < request.bytes) {
    byte = draw(decoder.feed(byte), request.temperature, random);
    text += static_cast<char>(byte);
  }
  return text;
}

}  // namespace train_lm
