// Lays out and initialises the parameters.
#include "parameters.hpp"

#include <bit>
#include <cmath>

#include "random.hpp"

namespace train_lm {
namespace {

std::vector<double> slopes_of_power_of_two(int heads) {
  std::vector<double> slopes;
  for (int head = 1; head <= heads; ++head) slopes.push_back(std::exp2(-8.0 * head / heads));
  return slopes;
}

// For other counts: those of the power of two below, and every second one of the next.
std::vector<double> slopes(int heads) {
  const int below = static_cast<int>(std::bit_floor(static_cast<unsigned>(heads)));
  std::vector<double> result = slopes_of_power_of_two(below);
  const std::vector<double> finer = slopes_of_power_of_two(2 * below);
  for (std::size_t i = 0; result.size() < static_cast<std::size_t>(heads); i += 2) result.push_back(finer[i]);
  return result;
}

}  // namespace

std::vector<float> log_decay(const Shape &shape, int layer) {
  const double milder = 1.0 - static_cast<double>(layer) / shape.layers;
  std::vector<float> decay;
  for (const double slope : slopes(shape.heads)) decay.push_back(static_cast<float>(-slope * milder));
  return decay;
}

Layout::Layout(const Shape &shape) : shape_(shape) {
  const int d = shape.d_model, f = shape.d_ff;
  const std::size_t width = static_cast<std::size_t>(d), mlp = static_cast<std::size_t>(f);
  gains_ = 2 * Shape::vocabulary * width + static_cast<std::size_t>(shape.layers) * width * (4 * width + 3 * mlp);
  size_ = gains_;
  const float in = 1.0f / std::sqrt(static_cast<float>(d));
  // Each block adds two branches to the residual stream: their scale keeps its size as blocks are added.
  const float branch = 1.0f / std::sqrt(2.0f * static_cast<float>(shape.layers));
  embedding_ = append_matrix("embedding", Shape::vocabulary, d, 0.5f);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "block" + std::to_string(layer) + ".";
    BlockLayout block;
    block.norm_attention = append_gain(prefix + "norm_attention", d);
    block.qkv = append_matrix(prefix + "qkv", d, 3 * d, 0.5f * in);
    block.norm_heads = append_gain(prefix + "norm_heads", d);
    block.out = append_matrix(prefix + "out", d, d, in * branch);
    block.norm_mlp = append_gain(prefix + "norm_mlp", d);
    block.gate_up = append_matrix(prefix + "gate_up", d, 2 * f, in);
    block.down = append_matrix(prefix + "down", f, d, branch / std::sqrt(static_cast<float>(f)));
    blocks_.push_back(block);
  }
  norm_final_ = append_gain("norm_final", d);
  head_ = append_matrix("head", d, Shape::vocabulary, in);
}

std::size_t Layout::append_matrix(std::string name, int rows, int cols, float init) {
  tensors_.push_back({std::move(name), next_matrix_, rows, cols, init});
  next_matrix_ += tensors_.back().size();
  return tensors_.back().offset;
}

std::size_t Layout::append_gain(std::string name, int cols) {
  tensors_.push_back({std::move(name), size_, 1, cols, 0.0f});
  size_ += tensors_.back().size();
  return tensors_.back().offset;
}

void Layout::initialise(std::uint64_t seed, float *parameters, float gain_spread) const {
  Random random(seed);
  for (const Tensor &tensor : tensors_) {
    const float centre = tensor.is_matrix() ? 0.0f : 1.0f;
    const float spread = tensor.is_matrix() ? tensor.init : gain_spread;
    for (std::size_t i = 0; i < tensor.size(); ++i)
      parameters[tensor.offset + i] = centre + spread * static_cast<float>(random.normal());
  }
}

}  // namespace train_lm
