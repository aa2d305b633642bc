// A halo: the rows before a rank's first token, within its sequence. Which ranks hold them, which ranks want rows
// of this one, and where a message lies in memory. Messages do not depend on how tokens are packed: rows of another
// sequence travel too, and whoever they come to passes them over. Pure data.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/token_partition.h"

namespace lasp {

inline constexpr int64_t kMostHaloRows = 64;

// The caller's lasp_halo_options after validation, with what a halo has of its plan.
struct HaloShape {
  bool packed = false;
  int64_t most_sequences = 0;  // when packed
  int64_t batch = 1, tokens = 0;
  int64_t rows = 1, channels = 1;
  DType dtype = DType::kFloat32, d_dtype = DType::kFloat32;  // of x and `before`, of their gradients
  Layout x, d_x;

  Layout before() const { return {rows * channels, channels, 0}; }
};
// Throws Error for what this rank can find wrong alone.
HaloShape validate(const lasp_halo_options &options, const Problem &problem);

// Rows that one rank has and a later one wants: one message of [B, count, C], there in the forward direction, back
// in the other.
struct HaloPart {
  int32_t peer = -1;
  int64_t begin = 0;   // given: first local token; wanted: first row of `before`
  int64_t count = 0;   // at least 1
  int64_t place = -1;  // byte of the workspace; -1: it is one piece of `before`
};

struct HaloPlan {
  HaloShape shape;
  std::vector<HaloPart> given, wanted;  // by peer. At most `rows` of each, since each has a token of its own
  TokenRanges ranges;
  int32_t rank = 0;
  uint64_t workspace_bytes = 0;

  // How many of the first rows of a rank's `before` lie outside of its first token's sequence: all, where that
  // token is padding or there is none.
  int64_t missing(int32_t r, OffsetSpan offsets) const;
  uint64_t bytes(const HaloPart &part, DType type) const;
  // Where the message of a part lies.
  std::byte *message(const HaloPart &part, DType type, void *workspace, void *before) const;
};

HaloPlan make_halo_plan(const HaloShape &shape, const TokenRanges &ranges, int32_t rank);

}  // namespace lasp
