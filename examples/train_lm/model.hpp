// The language model on one rank's tokens: embedding; blocks of {norm, linear attention, norm per head, projection,
// residual; norm, gated MLP, residual}; norm, softmax head. Only the attention looks beyond a token, so everything
// else runs tile by tile of rows, and between two tiles only what the backward pass needs is kept. On a GPU a call
// only enqueues, and all pointers are to its memory.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "device.hpp"
#include "parameters.hpp"
#include "weights.hpp"

namespace train_lm {

class Model {
 public:
  enum class Use { inference, training };

  // Borrows all its arguments. `weights` is laid out by `layout`. For inference the activations of one block are
  // kept at a time, and no gradients.
  Model(const Layout &layout, Weights weights, std::int64_t tokens, Use use, Attention &attention, Device &device);

  // Runs the blocks. Collective where the attention is.
  void forward(const std::uint8_t *tokens);

  // After forward: *sum is the sum over this rank's tokens of -log p(target). For training also begins the backward
  // pass: `gradient_scale` is what the loss summed over tokens is multiplied by, 1 / all tokens for a mean.
  void loss(const std::uint8_t *targets, float gradient_scale, double *sum);

  // After loss: the rest of the backward pass, through `attention`. Returns this rank's share of the gradient, laid
  // out as the parameters, to be summed over ranks.
  float *backward(const std::uint8_t *tokens, SequenceAttention &attention);

  // After forward: the logits that follow token `row`, to the host's memory. Waits for them.
  void logits(std::int64_t row, float *out);

 private:
  struct Activations {
    RealArray qkv, attended, middle, gate_up;  // [T,3d] [T,d] [T,d] [T,2f]
  };
  struct Scratch {  // one team member's, for one tile
    RealArray narrow, narrow2, wide, wide2, d_logits;
    DeviceArray<float> logits;
  };

  Real weight(std::size_t offset) const { return weights_.matrices + static_cast<std::int64_t>(offset); }
  const float *gain(std::size_t offset) const { return weights_.parameters + offset; }
  float *gradient(int member, std::size_t offset) {
    return gradients_[static_cast<std::size_t>(member)].data() + offset;
  }
  Scratch &scratch(int member) { return scratch_[static_cast<std::size_t>(member)]; }
  // In training every block has its own; for inference all blocks share one.
  Activations &kept(int layer) { return kept_[static_cast<std::size_t>(layer) % kept_.size()]; }
  Real input(int layer) { return hidden_[static_cast<std::size_t>(layer) % hidden_.size()].first(); }

  void project_qkv(int layer);
  void finish_block(int layer);
  void tile_loss(int member, std::int64_t begin, std::int64_t end, const std::uint8_t *targets, float scale);
  void backward_mlp_and_out(int layer);
  void backward_qkv(int layer);

  const Layout &layout_;
  const Shape shape_;
  const Weights weights_;
  const std::int64_t tokens_;
  const bool training_;
  Attention &attention_;
  Device &device_;
  std::vector<RealArray> hidden_;  // inputs of the blocks, and the last one's output: [T, d] each
  std::vector<Activations> kept_;
  std::vector<Scratch> scratch_;               // by team member
  std::vector<DeviceArray<float>> gradients_;  // by team member, each as long as the parameters
  DeviceArray<double> losses_;                 // by team member
  RealArray d_hidden_, d_attended_, d_qkv_;
};

}  // namespace train_lm
