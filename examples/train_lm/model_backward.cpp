// The backward pass, written by hand. d_hidden_ holds the gradient of a block's output, then of its middle, then of
// its input. Norms and gates are computed again from what was kept: cheaper than reading them back.
#include <algorithm>

#include "linalg.hpp"
#include "model.hpp"
#include "pointwise.hpp"

namespace train_lm {

float *Model::backward(const std::uint8_t *tokens, SequenceAttention &attention) {
  for (int layer = shape_.layers - 1; layer >= 0; --layer) {
    backward_mlp_and_out(layer);
    attention.backward(layer, kept(layer).qkv.data(), d_attended_.data(), d_qkv_.data());
    backward_qkv(layer);
  }
  backward_embedding(tokens);
  for (std::size_t member = 1; member < gradients_.size(); ++member)
    add(gradients_[member].data(), static_cast<std::int64_t>(layout_.size()), gradients_[0].data());
  return gradients_[0].data();
}

// From the gradient of the block's output to those of its middle (in d_hidden_) and of the attention's output.
void Model::backward_mlp_and_out(int layer) {
  const int d = shape_.d_model, f = shape_.d_ff, heads = shape_.heads, head_dim = shape_.head_dim();
  const BlockLayout &block = layout_.block(layer);
  Activations &a = kept(layer);
  team_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin, at = begin * d;
    Scratch &s = scratch(member);
    float *normed = s.narrow.data(), *d_normed = s.narrow2.data();
    float *d_gate_up = s.wide.data(), *gated = s.wide2.data();
    const float *middle = a.middle.data() + at, *attended = a.attended.data() + at;
    float *gate_up = a.gate_up.data() + begin * 2 * f, *dx = d_hidden_.data() + at;

    gate(gate_up, rows, f, gated);
    add_outer(rows, f, d, gated, dx, gradient(member, block.down));
    multiply_transposed(rows, f, d, dx, weight(block.down), gated);
    gate_backward(gate_up, gated, rows, f, d_gate_up);
    rms_norm(middle, weight(block.norm_mlp), rows, stream_norm(d), normed);
    add_outer(rows, d, 2 * f, normed, d_gate_up, gradient(member, block.gate_up));
    multiply_transposed(rows, d, 2 * f, d_gate_up, weight(block.gate_up), d_normed);
    rms_norm_backward(middle, weight(block.norm_mlp), d_normed, rows, stream_norm(d), Store::add, dx,
                      gradient(member, block.norm_mlp));

    rms_norm(attended, weight(block.norm_heads), rows, head_norm(heads, head_dim), normed);
    add_outer(rows, d, d, normed, dx, gradient(member, block.out));
    multiply_transposed(rows, d, d, dx, weight(block.out), d_normed);
    rms_norm_backward(attended, weight(block.norm_heads), d_normed, rows, head_norm(heads, head_dim), Store::write,
                      d_attended_.data() + at, gradient(member, block.norm_heads));
  });
}

void Model::backward_qkv(int layer) {
  const int d = shape_.d_model;
  const BlockLayout &block = layout_.block(layer);
  const float *x = input(layer).data();
  team_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin, at = begin * d;
    float *normed = scratch(member).narrow.data(), *d_normed = scratch(member).narrow2.data();
    const float *d_qkv = d_qkv_.data() + begin * 3 * d;
    rms_norm(x + at, weight(block.norm_attention), rows, stream_norm(d), normed);
    add_outer(rows, d, 3 * d, normed, d_qkv, gradient(member, block.qkv));
    multiply_transposed(rows, d, 3 * d, d_qkv, weight(block.qkv), d_normed);
    rms_norm_backward(x + at, weight(block.norm_attention), d_normed, rows, stream_norm(d), Store::add,
                      d_hidden_.data() + at, gradient(member, block.norm_attention));
  });
}

void Model::backward_embedding(const std::uint8_t *tokens) {
  const int d = shape_.d_model;
  float *table = gradient(0, layout_.embedding());
  for (std::int64_t t = 0; t < tokens_; ++t)
    add(d_hidden_.data() + t * d, d, table + static_cast<std::int64_t>(tokens[t]) * d);
}

}  // namespace train_lm
