// The backward pass, written by hand. d_hidden_ holds the gradient of a block's output, then of its middle, then of
// its input. Norms and gates are computed again from what was kept: cheaper than reading them back.
#include "model.hpp"

namespace train_lm {

float *Model::backward(const std::uint8_t *tokens, SequenceAttention &attention) {
  for (int layer = shape_.layers - 1; layer >= 0; --layer) {
    backward_mlp_and_out(layer);
    attention.backward(layer, kept(layer).qkv.first(), d_attended_.first(), d_qkv_.first());
    backward_qkv(layer);
  }
  for (std::size_t member = 1; member < gradients_.size(); ++member)
    device_.add(gradients_[member].data(), layout_.size(), gradients_[0].data());
  device_.add_by_token(tokens, tokens_, shape_.d_model, d_hidden_.first(), gradient(0, layout_.embedding()));
  return gradients_[0].data();
}

// From the gradient of the block's output to those of its middle (in d_hidden_) and of the attention's output.
void Model::backward_mlp_and_out(int layer) {
  const int d = shape_.d_model, f = shape_.d_ff;
  const Norm heads = head_norm(shape_.heads, shape_.head_dim());
  const BlockLayout &block = layout_.block(layer);
  Activations &a = kept(layer);
  device_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin, at = begin * d;
    Scratch &s = scratch(member);
    const Real normed = s.narrow.first(), d_normed = s.narrow2.first();
    const Real d_gate_up = s.wide.first(), gated = s.wide2.first();
    const Real middle = a.middle.first() + at, attended = a.attended.first() + at;
    const Real gate_up = a.gate_up.first() + begin * 2 * f, dx = d_hidden_.first() + at;

    device_.gate(gate_up, rows, f, gated);
    device_.add_outer(rows, f, d, gated, dx, gradient(member, block.down));
    device_.multiply_transposed(rows, f, d, dx, weight(block.down), gated);
    device_.gate_backward(gate_up, gated, rows, f, d_gate_up);
    device_.rms_norm(middle, gain(block.norm_mlp), rows, stream_norm(d), normed);
    device_.add_outer(rows, d, 2 * f, normed, d_gate_up, gradient(member, block.gate_up));
    device_.multiply_transposed(rows, d, 2 * f, d_gate_up, weight(block.gate_up), d_normed);
    device_.rms_norm_backward(middle, gain(block.norm_mlp), d_normed, rows, stream_norm(d), Store::add, dx,
                              gradient(member, block.norm_mlp));

    device_.rms_norm(attended, gain(block.norm_heads), rows, heads, normed);
    device_.add_outer(rows, d, d, normed, dx, gradient(member, block.out));
    device_.multiply_transposed(rows, d, d, dx, weight(block.out), d_normed);
    device_.rms_norm_backward(attended, gain(block.norm_heads), d_normed, rows, heads, Store::write,
                              d_attended_.first() + at, gradient(member, block.norm_heads));
  });
}

void Model::backward_qkv(int layer) {
  const int d = shape_.d_model;
  const BlockLayout &block = layout_.block(layer);
  const Real x = input(layer);
  device_.for_tiles(tokens_, [&](int member, std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin, at = begin * d;
    const Real normed = scratch(member).narrow.first(), d_normed = scratch(member).narrow2.first();
    const Real d_qkv = d_qkv_.first() + begin * 3 * d;
    device_.rms_norm(x + at, gain(block.norm_attention), rows, stream_norm(d), normed);
    device_.add_outer(rows, d, 3 * d, normed, d_qkv, gradient(member, block.qkv));
    device_.multiply_transposed(rows, d, 3 * d, d_qkv, weight(block.qkv), d_normed);
    device_.rms_norm_backward(x + at, gain(block.norm_attention), d_normed, rows, stream_norm(d), Store::add,
                              d_hidden_.first() + at, gradient(member, block.norm_attention));
  });
}

}  // namespace train_lm
