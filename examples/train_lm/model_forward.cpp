// The forward pass and the loss.
#include <algorithm>
#include <numeric>

#include "linalg.hpp"
#include "model.hpp"
#include "pointwise.hpp"

namespace train_lm {

Model::Model(const Layout &layout, const float *parameters, std::int64_t tokens, Use use, Attention &attention,
             Team &team, MemoryMeter &meter)
    : layout_(layout),
      shape_(layout.shape()),
      parameters_(parameters),
      tokens_(tokens),
      training_(use == Use::training),
      attention_(attention),
      team_(team) {
  const std::size_t t = static_cast<std::size_t>(tokens), d = static_cast<std::size_t>(shape_.d_model);
  const std::size_t f = static_cast<std::size_t>(shape_.d_ff), layers = static_cast<std::size_t>(shape_.layers);
  const std::size_t tile = std::min(t, static_cast<std::size_t>(Team::kTile));
  for (std::size_t i = 0; i < (training_ ? layers + 1 : 2); ++i) hidden_.emplace_back(meter, t * d);
  for (std::size_t i = 0; i < (training_ ? layers : 1); ++i)
    kept_.push_back({{meter, t * 3 * d}, {meter, t * d}, {meter, t * d}, {meter, t * 2 * f}});
  for (int member = 0; member < team.members(); ++member) {
    scratch_.push_back({{meter, tile * d},
                        {meter, tile * d},
                        {meter, tile * 2 * f},
                        {meter, tile * f},
                        {meter, tile * static_cast<std::size_t>(Shape::vocabulary)}});
    if (training_) gradients_.emplace_back(meter, layout.size());
  }
  if (!training_) return;
  d_hidden_ = Array<float>(meter, t * d);
  d_attended_ = Array<float>(meter, t * d);
  d_qkv_ = Array<float>(meter, t * 3 * d);
}

void Model::forward(const std::uint8_t *tokens) {
  embed(tokens);
  for (int layer = 0; layer < shape_.layers; ++layer) {
    project_qkv(layer);
    attention_.forward(layer, kept(layer).qkv.data(), kept(layer).attended.data());
    finish_block(layer);
  }
}

void Model::embed(const std::uint8_t *tokens) {
  const int d = shape_.d_model;
  const float *table = weight(layout_.embedding());
  float *x = input(0).data();
  for (std::int64_t t = 0; t < tokens_; ++t)
    std::copy_n(table + static_cast<std::int64_t>(tokens[t]) * d, d, x + t * d);
}

void Model::project_qkv(int layer) {
  const int d = shape_.d_model;
  const BlockLayout &block = layout_.block(layer);
  const float *x = input(layer).data();
  float *qkv = kept(layer).qkv.data();
  team_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    float *normed = scratch(member).narrow.data();
    rms_norm(x + begin * d, weight(block.norm_attention), end - begin, stream_norm(d), normed);
    multiply(end - begin, 3 * d, d, normed, weight(block.qkv), 0.0f, qkv + begin * 3 * d);
  });
}

// From the attention's output to the next block's input.
void Model::finish_block(int layer) {
  const int d = shape_.d_model, f = shape_.d_ff;
  const BlockLayout &block = layout_.block(layer);
  Activations &a = kept(layer);
  const float *x = input(layer).data();
  float *next = input(layer + 1).data();
  team_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin, at = begin * d;
    float *normed = scratch(member).narrow.data(), *gated = scratch(member).wide.data();
    float *middle = a.middle.data() + at, *gate_up = a.gate_up.data() + begin * 2 * f;
    rms_norm(a.attended.data() + at, weight(block.norm_heads), rows, head_norm(shape_.heads, shape_.head_dim()),
             normed);
    std::copy_n(x + at, rows * d, middle);
    multiply(rows, d, d, normed, weight(block.out), 1.0f, middle);
    rms_norm(middle, weight(block.norm_mlp), rows, stream_norm(d), normed);
    multiply(rows, 2 * f, d, normed, weight(block.gate_up), 0.0f, gate_up);
    gate(gate_up, rows, f, gated);
    std::copy_n(middle, rows * d, next + at);
    multiply(rows, d, f, gated, weight(block.down), 1.0f, next + at);
  });
}

double Model::loss(const std::uint8_t *targets, float gradient_scale) {
  for (Array<float> &gradient : gradients_) std::fill_n(gradient.data(), gradient.size(), 0.0f);
  std::vector<double> sums(static_cast<std::size_t>(team_.members()), 0.0);
  team_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    sums[static_cast<std::size_t>(member)] += tile_loss(member, begin, end, targets, gradient_scale);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Logits exist for one tile at a time only: what the backward pass needs of them is used up at once.
double Model::tile_loss(int member, std::int64_t begin, std::int64_t end, const std::uint8_t *targets,
                        float scale) {
  const int d = shape_.d_model, classes = Shape::vocabulary;
  const std::int64_t rows = end - begin;
  const float *x = input(shape_.layers).data() + begin * d;
  float *normed = scratch(member).narrow.data(), *logits = scratch(member).logits.data();
  rms_norm(x, weight(layout_.norm_final()), rows, stream_norm(d), normed);
  multiply(rows, classes, d, normed, weight(layout_.head()), 0.0f, logits);
  const double sum = cross_entropy(logits, targets + begin, rows, classes, scale);
  if (training_) {
    float *d_normed = scratch(member).narrow2.data();
    add_outer(rows, d, classes, normed, logits, gradient(member, layout_.head()));
    multiply_transposed(rows, d, classes, logits, weight(layout_.head()), d_normed);
    rms_norm_backward(x, weight(layout_.norm_final()), d_normed, rows, stream_norm(d), Store::write,
                      d_hidden_.data() + begin * d, gradient(member, layout_.norm_final()));
  }
  return sum;
}

void Model::logits(std::int64_t row, float *out) const {
  const int d = shape_.d_model;
  std::vector<float> normed(static_cast<std::size_t>(d));
  rms_norm(input(shape_.layers).data() + row * d, weight(layout_.norm_final()), 1, stream_norm(d), normed.data());
  multiply(1, Shape::vocabulary, d, normed.data(), weight(layout_.head()), 0.0f, out);
}

}  // namespace train_lm
