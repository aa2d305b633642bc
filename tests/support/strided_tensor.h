// One rank's part of a [B, T, heads, dim] tensor in a layout of the case's choice, between canaries.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <lasp/lasp.h>

#include "support/case.h"
#include "support/guarded_buffer.h"
#include "support/strided_layout.h"

namespace lasp_test {

struct Extent {
  int64_t batch = 0, tokens = 0, heads = 0, dim = 0;
};

// Strides of a tensor in one of the layouts; zero where the problem may leave them at zero is the constructor's.
lasp_layout strides_of(const Extent &extent, Layout layout, Operand operand);

// Memory that one tensor has for itself, or that packed q, k and v share.
class TensorBlock {
 public:
  // Aligned to its element and no better, or to 64 bytes.
  TensorBlock(int64_t elements, int32_t dtype, bool aligned = false);
  int32_t dtype() const { return dtype_; }
  size_t element_bytes() const { return element_bytes_; }
  GuardedBuffer &buffer() { return buffer_; }
  void cover(int64_t element, int64_t count) { std::fill_n(covered_.begin() + element, count, kCovered); }
  // Bytes between the elements of all tensors in the block, and the canaries around, are as they were.
  bool gaps_intact() const;
  void remember();             // the present content ...
  bool as_remembered() const;  // ... is still there
  void poison() { buffer_.poison(); }

 private:
  static constexpr uint8_t kCovered = 1;
  int32_t dtype_;
  size_t element_bytes_;
  GuardedBuffer buffer_;
  std::vector<uint8_t> covered_;  // of each element
  std::vector<uint8_t> remembered_;
};

class StridedTensor {
 public:
  StridedTensor() = default;
  // A tensor with a block of its own. packed_qkv is contiguous here.
  StridedTensor(const Extent &extent, Layout layout, Operand operand, int32_t dtype, bool aligned = false);
  // A tensor `offset` elements into rows of `row_width` elements shared with others.
  StridedTensor(const Extent &extent, std::shared_ptr<TensorBlock> block, int64_t offset, int64_t row_width);

  bool present() const { return block_ != nullptr; }
  // As the problem is to have it: with the tensor's type, and without strides where they are the usual ones.
  const lasp_layout &strides() const { return problem_strides_; }
  lasp_buffer buffer() const;
  lasp_const_buffer const_buffer() const;
  const std::shared_ptr<TensorBlock> &block() const { return block_; }

  // From / to tokens [begin, begin + T) of a contiguous tensor with `global_tokens` tokens in each row.
  void load(const std::vector<float> &global, int64_t global_tokens, int64_t begin);
  std::vector<float> values() const;  // contiguous, this rank's tokens only

 private:
  int64_t offset_of(int64_t b, int64_t t, int64_t h) const {
    return offset_ + b * strides_.batch + t * strides_.token + h * strides_.head;
  }
  void cover();
  template <class Visit>
  void each(Visit visit) const;

  Extent extent_;
  lasp_layout strides_ = LASP_LAYOUT_INIT, problem_strides_ = LASP_LAYOUT_INIT;
  int64_t offset_ = 0;
  std::shared_ptr<TensorBlock> block_;
};

// q, k, v or dq, dk, dv of one rank: `first` is q or dq.
// Of the case's type where none is given.
std::array<StridedTensor, 3> make_qkv(const Case &c, int64_t tokens, Operand first,
                                      int32_t dtype = LASP_DTYPE_DEFAULT);

}  // namespace lasp_test
