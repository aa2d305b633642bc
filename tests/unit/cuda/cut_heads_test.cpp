// Head tiles read the heads of shared tensors that their output heads read in the whole problem.
#include "cuda/cut/cut_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lasp::cuda {
namespace {

// The first element of the head that output head `head` of `heads` reads.
const uint16_t *head_of(const gpu::Tensor &x, int32_t heads, int32_t head) {
  return static_cast<const uint16_t *>(x.data) + int64_t{head} * x.heads / heads * x.strides.head;
}

TEST(CutHeads, TilesReadTheHeadsOfTheWhole) {
  constexpr int32_t kHeads = 24;
  std::vector<uint16_t> memory(1000);
  for (const int32_t shared : {24, 12, 8, 6, 3, 1}) {
    const gpu::Tensor whole = {memory.data(), {0, 0, 40}, shared, 8};
    const int32_t group = kHeads / shared;
    for (int32_t count = 1; count <= kHeads; ++count) {
      if (group % count != 0 && count % group != 0) continue;
      for (int32_t first = 0; first < kHeads; first += count) {
        SCOPED_TRACE(testing::Message() << shared << " heads, " << count << " of " << kHeads << " from " << first);
        const int32_t tile = std::min(count, kHeads - first);
        const gpu::Tensor cut = cut_heads(whole, sizeof(uint16_t), kHeads, first, tile);
        ASSERT_GE(cut.heads, 1);
        for (int32_t h = 0; h < tile; ++h)
          ASSERT_EQ(head_of(cut, tile, h), head_of(whole, kHeads, first + h)) << "head " << h;
      }
    }
  }
}

TEST(CutHeads, DecaysBeginWithTheTilesFirstHead) {
  const std::vector<float> g(100);
  const auto offset = [&](gpu::Decay decay, int64_t stride, int64_t bytes) {
    return static_cast<const std::byte *>(cut_decay(g.data(), decay, stride, bytes, 3)) -
           reinterpret_cast<const std::byte *>(g.data());
  };
  EXPECT_EQ(offset(gpu::Decay::kHead, 77, 2), 12);  // always float32, without strides
  EXPECT_EQ(offset(gpu::Decay::kScalar, 1, 2), 6);
  EXPECT_EQ(offset(gpu::Decay::kChannel, 16, 4), 192);
  EXPECT_EQ(cut_decay(nullptr, gpu::Decay::kNone, 5, 4, 3), nullptr);
}

}  // namespace
}  // namespace lasp::cuda
