// The forward pass and the loss.
#include <algorithm>

#include "model.hpp"

namespace train_lm {

Model::Model(const Layout &layout, Weights weights, std::int64_t tokens, Use use, Attention &attention,
             Device &device)
    : layout_(layout),
      shape_(layout.shape()),
      weights_(weights),
      tokens_(tokens),
      training_(use == Use::training),
      attention_(attention),
      device_(device),
      losses_(device, static_cast<std::size_t>(device.members())) {
  const std::size_t t = static_cast<std::size_t>(tokens), d = static_cast<std::size_t>(shape_.d_model);
  const std::size_t f = static_cast<std::size_t>(shape_.d_ff), layers = static_cast<std::size_t>(shape_.layers);
  const std::size_t tile = static_cast<std::size_t>(std::min(tokens, device.tile())), classes = Shape::vocabulary;
  for (std::size_t i = 0; i < (training_ ? layers + 1 : 2); ++i) hidden_.emplace_back(device, t * d);
  for (std::size_t i = 0; i < (training_ ? layers : 1); ++i)
    kept_.push_back({{device, t * 3 * d}, {device, t * d}, {device, t * d}, {device, t * 2 * f}});
  for (int member = 0; member < device.members(); ++member) {
    scratch_.push_back({{device, tile * d},
                        {device, tile * d},
                        {device, tile * 2 * f},
                        {device, tile * f},
                        {device, tile * classes},
                        {device, tile * classes}});
    if (training_) gradients_.emplace_back(device, layout.size());
  }
  if (!training_) return;
  d_hidden_ = RealArray(device, t * d);
  d_attended_ = RealArray(device, t * d);
  d_qkv_ = RealArray(device, t * 3 * d);
}

void Model::forward(const std::uint8_t *tokens) {
  device_.gather(tokens, tokens_, shape_.d_model, weight(layout_.embedding()), input(0));
  for (int layer = 0; layer < shape_.layers; ++layer) {
    project_qkv(layer);
    attention_.forward(layer, kept(layer).qkv.first(), kept(layer).attended.first());
    finish_block(layer);
  }
}

void Model::project_qkv(int layer) {
  const int d = shape_.d_model;
  const BlockLayout &block = layout_.block(layer);
  const Real x = input(layer), qkv = kept(layer).qkv.first();
  device_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    const Real normed = scratch(member).narrow.first();
    device_.rms_norm(x + begin * d, gain(block.norm_attention), end - begin, stream_norm(d), normed);
    device_.multiply(end - begin, 3 * d, d, normed, weight(block.qkv), 0.0f, qkv + begin * 3 * d);
  });
}

// From the attention's output to the next block's input.
void Model::finish_block(int layer) {
  const int d = shape_.d_model, f = shape_.d_ff;
  const BlockLayout &block = layout_.block(layer);
  Activations &a = kept(layer);
  const Real x = input(layer), next = input(layer + 1), attended = a.attended.first();
  device_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin, at = begin * d;
    const std::size_t bytes = static_cast<std::size_t>(rows * d * x.size);
    const Real normed = scratch(member).narrow.first(), gated = scratch(member).wide.first();
    const Real middle = a.middle.first() + at, gate_up = a.gate_up.first() + begin * 2 * f;
    device_.rms_norm(attended + at, gain(block.norm_heads), rows, head_norm(shape_.heads, shape_.head_dim()),
                     normed);
    device_.copy(middle.data, (x + at).data, bytes);
    device_.multiply(rows, d, d, normed, weight(block.out), 1.0f, middle);
    device_.rms_norm(middle, gain(block.norm_mlp), rows, stream_norm(d), normed);
    device_.multiply(rows, 2 * f, d, normed, weight(block.gate_up), 0.0f, gate_up);
    device_.gate(gate_up, rows, f, gated);
    device_.copy((next + at).data, middle.data, bytes);
    device_.multiply(rows, d, f, gated, weight(block.down), 1.0f, next + at);
  });
}

void Model::loss(const std::uint8_t *targets, float gradient_scale, double *sum) {
  for (DeviceArray<float> &gradient : gradients_) device_.zero(gradient.data(), gradient.bytes());
  device_.zero(losses_.data(), losses_.bytes());
  device_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    tile_loss(member, begin, end, targets, gradient_scale);
  });
  device_.total(losses_.data(), device_.members(), sum);
}

// Logits exist for one tile at a time only: what the backward pass needs of them is used up at once.
void Model::tile_loss(int member, std::int64_t begin, std::int64_t end, const std::uint8_t *targets, float scale) {
  const int d = shape_.d_model, classes = Shape::vocabulary;
  const std::int64_t rows = end - begin;
  Scratch &s = scratch(member);
  const Real x = input(shape_.layers) + begin * d, normed = s.narrow.first(), d_logits = s.d_logits.first();
  device_.rms_norm(x, gain(layout_.norm_final()), rows, stream_norm(d), normed);
  device_.multiply(rows, classes, d, normed, weight(layout_.head()), s.logits.data());
  device_.cross_entropy(s.logits.data(), targets + begin, rows, classes, scale, d_logits, losses_.data() + member);
  if (!training_) return;
  const Real d_normed = s.narrow2.first();
  device_.add_outer(rows, d, classes, normed, d_logits, gradient(member, layout_.head()));
  device_.multiply_transposed(rows, d, classes, d_logits, weight(layout_.head()), d_normed);
  device_.rms_norm_backward(x, gain(layout_.norm_final()), d_normed, rows, stream_norm(d), Store::write,
                            d_hidden_.first() + begin * d, gradient(member, layout_.norm_final()));
}

void Model::logits(std::int64_t row, float *out) {
  const int d = shape_.d_model;
  Scratch &s = scratch(0);
  const Real normed = s.narrow.first();
  device_.rms_norm(input(shape_.layers) + row * d, gain(layout_.norm_final()), 1, stream_norm(d), normed);
  device_.multiply(1, Shape::vocabulary, d, normed, weight(layout_.head()), s.logits.data());
  device_.copy(out, s.logits.data(), Shape::vocabulary * sizeof(float));
}

}  // namespace train_lm
