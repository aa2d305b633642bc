// The model's shape and the layout of its parameters in one flat array, so that gradients are summed over ranks,
// clipped and applied as one vector. Weight decay is for the matrices, which come first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace train_lm {

struct Shape {
  int layers = 0, d_model = 0, heads = 0, d_ff = 0;
  static constexpr int vocabulary = 256;  // bytes
  int head_dim() const { return d_model / heads; }
};

struct Tensor {
  std::string name;
  std::size_t offset;
  int rows, cols;  // a gain is 1 x n
  float init;      // standard deviation at the start; 0: a gain, which starts at 1
  std::size_t size() const { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols); }
  bool is_matrix() const { return init != 0.0f; }
};

// Offsets of one block's tensors. Weights are [in, out]: y = x W.
struct BlockLayout {
  std::size_t norm_attention, qkv, norm_heads, out, norm_mlp, gate_up, down;
};

class Layout {
 public:
  explicit Layout(const Shape &shape);

  const Shape &shape() const { return shape_; }
  std::size_t size() const { return size_; }
  std::size_t matrices_end() const { return gains_; }  // matrices come first, gains after them
  const std::vector<Tensor> &tensors() const { return tensors_; }
  const BlockLayout &block(int layer) const { return blocks_[static_cast<std::size_t>(layer)]; }
  std::size_t embedding() const { return embedding_; }
  std::size_t norm_final() const { return norm_final_; }
  std::size_t head() const { return head_; }

  // Fills `parameters` from the seed: the same on every rank. `gain_spread` moves gains off 1 (for checks).
  void initialise(std::uint64_t seed, float *parameters, float gain_spread = 0.0f) const;

 private:
  std::size_t append_matrix(std::string name, int rows, int cols, float init);
  std::size_t append_gain(std::string name, int cols);

  Shape shape_;
  std::size_t size_ = 0, gains_ = 0, next_matrix_ = 0, embedding_ = 0, norm_final_ = 0, head_ = 0;
  std::vector<BlockLayout> blocks_;
  std::vector<Tensor> tensors_;
};

// Log decay of each head of a block, <= 0: the slopes of ALiBi, as in RetNet and TransNormerLLM, made milder layer
// by layer by (1 - layer / layers) as in TransNormerLLM, so that deeper blocks see further.
std::vector<float> log_decay(const Shape &shape, int layer);

}  // namespace train_lm
