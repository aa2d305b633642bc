// Layouts and element-wise copies. Element order is the header's: b*batch + t*token + h*head + d.
#include "support/strided_tensor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "support/dtype.h"

namespace lasp_test {
namespace {

// From the first element to the last one: no byte more, so that a call which asks for padding after it fails.
int64_t span_of(const Extent &e, const lasp_layout &s) {
  if (e.batch * e.tokens * e.heads * e.dim == 0) return 0;
  return (e.batch - 1) * s.batch + (e.tokens - 1) * s.token + (e.heads - 1) * s.head + e.dim;
}

// Operand n has the n-th order of the axes, counted round, and n unused elements after each row of `dim`, with more
// after each of the outer axes: where two operands have the same extents, all their strides differ.
lasp_layout mixed_strides(const Extent &e, Operand operand) {
  constexpr int kOrders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2},
                                {0, 2, 1}, {1, 2, 0}, {2, 0, 1}};  // outermost first
  const auto n = static_cast<int64_t>(operand);
  const std::array<int64_t, 3> extents = {e.batch, e.tokens, e.heads};
  std::array<int64_t, 3> strides = {};
  int64_t span = e.dim + n;
  for (int i = 2; i >= 0; --i) {
    const auto axis = static_cast<size_t>(kOrders[n % 6][i]);
    strides[axis] = span;
    span = span * std::max<int64_t>(extents[axis], 1) + n + 1;
  }
  return strided(strides[0], strides[1], strides[2]);
}

}  // namespace

lasp_layout strides_of(const Extent &e, Layout layout, Operand operand) {
  if (layout == Layout::mixed) return mixed_strides(e, operand);
  if (layout == Layout::expanded) {
    lasp_layout all = strided(e.tokens * e.heads * e.dim, e.heads * e.dim, e.dim);
    switch (expanded_axis(operand)) {
      case Axis::none: break;
      case Axis::batch: all.batch = 0; break;
      case Axis::token: all.batch = e.heads * e.dim, all.token = 0; break;
      case Axis::head: all = strided(e.tokens * e.dim, e.dim, 0); break;
    }
    return all;
  }
  if (layout == Layout::head_major) return strided(e.heads * e.tokens * e.dim, e.dim, e.tokens * e.dim);
  if (layout == Layout::padded) {
    const int64_t head = e.dim + 3, token = e.heads * head + 5;
    return strided(e.tokens * token + 7, token, head);
  }
  return strided(e.tokens * e.heads * e.dim, e.heads * e.dim, e.dim);
}

// Tensors need no alignment but their element's: one element beyond a cache line is all they get, unless a case
// asks. A tensor that is written by another one's strides ends elsewhere: the canaries after it go on for its own
// length, up to 64 KiB, so that such a write is reported before it destroys the heap.
TensorBlock::TensorBlock(int64_t elements, int32_t dtype, bool aligned)
    : dtype_(dtype),
      element_bytes_(dtype_bytes(dtype)),
      buffer_(static_cast<size_t>(elements) * element_bytes_, 64, aligned ? 0 : element_bytes_,
              std::clamp<size_t>(static_cast<size_t>(elements) * element_bytes_, GuardedBuffer::kGuard, 64 << 10)),
      covered_(static_cast<size_t>(elements), 0) {}

bool TensorBlock::gaps_intact() const {
  const uint8_t *const first = covered_.data(), *const end = first + covered_.size();
  for (const uint8_t *gap = first; gap != end;) {
    gap = static_cast<const uint8_t *>(std::memchr(gap, 0, static_cast<size_t>(end - gap)));
    if (gap == nullptr) break;
    const auto *next = static_cast<const uint8_t *>(std::memchr(gap, kCovered, static_cast<size_t>(end - gap)));
    if (next == nullptr) next = end;
    if (!buffer_.poisoned(static_cast<size_t>(gap - first) * element_bytes_,
                          static_cast<size_t>(next - first) * element_bytes_))
      return false;
    gap = next;
  }
  return buffer_.canaries_intact();
}

void TensorBlock::remember() { remembered_.assign(buffer_.data(), buffer_.data() + buffer_.bytes()); }

bool TensorBlock::as_remembered() const {
  return buffer_.canaries_intact() &&
         (remembered_.empty() || std::memcmp(remembered_.data(), buffer_.data(), remembered_.size()) == 0);
}

StridedTensor::StridedTensor(const Extent &extent, Layout layout, Operand operand, int32_t dtype, bool aligned)
    : extent_(extent), strides_(strides_of(extent, layout, operand)) {
  if (layout != Layout::contiguous && layout != Layout::packed_qkv) problem_strides_ = strides_;
  problem_strides_.dtype = dtype;
  block_ = std::make_shared<TensorBlock>(span_of(extent_, strides_), dtype, aligned);
  cover();
}

StridedTensor::StridedTensor(const Extent &extent, std::shared_ptr<TensorBlock> block, int64_t offset,
                             int64_t row_width)
    : extent_(extent),
      strides_(strided(extent.tokens * row_width, row_width, extent.dim)),
      problem_strides_(strides_),
      offset_(extent.tokens == 0 ? 0 : offset),
      block_(std::move(block)) {
  problem_strides_.dtype = block_->dtype();
  cover();
}

template <class Visit>
void StridedTensor::each(Visit visit) const {
  size_t i = 0;
  for (int64_t b = 0; b < extent_.batch; ++b) {
    for (int64_t t = 0; t < extent_.tokens; ++t) {
      for (int64_t h = 0; h < extent_.heads; ++h) visit(b, t, h, offset_of(b, t, h), extent_.dim * i++);
    }
  }
}

void StridedTensor::cover() {
  each([&](int64_t, int64_t, int64_t, int64_t at, size_t) { block_->cover(at, extent_.dim); });
}

lasp_buffer StridedTensor::buffer() const {
  if (!present()) return LASP_BUFFER_INIT;
  const size_t bytes = block_->element_bytes(), skip = static_cast<size_t>(offset_) * bytes;
  return {block_->buffer().call_data() + skip, static_cast<size_t>(span_of(extent_, strides_)) * bytes};
}

lasp_const_buffer StridedTensor::const_buffer() const {
  const lasp_buffer b = buffer();
  return {b.data, b.bytes};
}

void StridedTensor::load(const std::vector<float> &global, int64_t global_tokens, int64_t begin) {
  uint8_t *const to = block_->buffer().data();
  const size_t bytes = block_->element_bytes();
  const bool plain = block_->dtype() == LASP_FLOAT32;
  each([&](int64_t b, int64_t t, int64_t h, int64_t at, size_t) {
    const int64_t from = ((b * global_tokens + begin + t) * extent_.heads + h) * extent_.dim;
    if (plain) return void(std::memcpy(to + at * bytes, &global[from], extent_.dim * bytes));
    for (int64_t d = 0; d < extent_.dim; ++d)
      store_element(to + (at + d) * bytes, global[from + d], block_->dtype());
  });
  block_->remember();
}

std::vector<float> StridedTensor::values() const {
  std::vector<float> result(extent_.batch * extent_.tokens * extent_.heads * extent_.dim);
  const uint8_t *const from = block_->buffer().data();
  const size_t bytes = block_->element_bytes();
  const bool plain = block_->dtype() == LASP_FLOAT32;
  each([&](int64_t, int64_t, int64_t, int64_t at, size_t to) {
    if (plain) return void(std::memcpy(&result[to], from + at * bytes, extent_.dim * bytes));
    for (int64_t d = 0; d < extent_.dim; ++d)
      result[to + d] = load_element(from + (at + d) * bytes, block_->dtype());
  });
  return result;
}

std::array<StridedTensor, 3> make_qkv(const Case &c, int64_t tokens, Operand first, int32_t dtype) {
  if (dtype == LASP_DTYPE_DEFAULT) dtype = c.dtype;
  const Extent extents[] = {{c.batch, tokens, c.heads_q, c.head_dim_k},
                            {c.batch, tokens, c.heads_k, c.head_dim_k},
                            {c.batch, tokens, c.heads_v, c.head_dim_v}};
  std::array<StridedTensor, 3> result;
  if (c.layout != Layout::packed_qkv) {
    for (int i = 0; i < 3; ++i) {
      const auto operand = static_cast<Operand>(static_cast<int32_t>(first) + i);
      result[i] = StridedTensor(extents[i], c.layout, operand, dtype, c.aligned);
    }
    return result;
  }
  int64_t width = 0;
  for (const Extent &e : extents) width += e.heads * e.dim;
  const auto block = std::make_shared<TensorBlock>(c.batch * tokens * width, dtype, c.aligned);
  for (int64_t i = 0, offset = 0; i < 3; offset += extents[i].heads * extents[i].dim, ++i) {
    result[i] = StridedTensor(extents[i], block, offset, width);
  }
  return result;
}

}  // namespace lasp_test
