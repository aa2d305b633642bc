// A halo: the rows before the first token of each of a rank's runs, within its sequence. Which ranks hold them,
// which ranks want rows of this one, and where a message lies in memory. Messages do not depend on how tokens are
// packed: rows of another sequence travel too, and whoever they come to passes them over. Pure data.
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
  int64_t lines = 1;  // for which rows come: of the batch, or sequences that are each cut by itself (Problem::each)
  int64_t runs = 1;   // the most of any rank
  int64_t rows = 1, channels = 1;
  DType dtype = DType::kFloat32, d_dtype = DType::kFloat32;  // of x and `before`, of their gradients
  Layout x, d_x;

  Layout before() const { return {rows * channels, channels, 0}; }  // of [runs * lines, rows, channels]
};
// Throws Error for what this rank can find wrong alone.
HaloShape validate(const lasp_halo_options &options, const Problem &problem);

// Rows that one run has and a later one wants: one message of [lines, count, C], there in the forward direction,
// back in the other. Between two runs of one rank none is sent: both have the same place.
struct HaloPart {
  int32_t peer = -1;         // rank
  int32_t from = 0, to = 0;  // positions of the two runs
  // Given: first local token, which with Problem::each every sequence has its own of. Wanted: first row of
  // `before`, where a run has lines * rows.
  int64_t begin = 0;
  int64_t count = 0;   // at least 1
  int64_t place = -1;  // byte of the workspace; -1: it is one piece of `before`
};

struct HaloPlan {
  HaloShape shape;
  // By positions, first that which has the rows: so two ranks' messages match in order. At most `rows` of each for
  // each run, since each has a token of its own.
  std::vector<HaloPart> given, wanted;
  TokenRanges ranges;
  std::vector<int32_t> positions;     // of this rank's runs
  std::vector<int64_t> local_begins;  // their first tokens in its tensors
  int32_t rank = 0;
  uint64_t workspace_bytes = 0;

  // How many of the first rows before a run lie outside of its first token's sequence: all, where that token is
  // padding or there is none.
  int64_t missing(int32_t position, OffsetSpan offsets) const;
  bool is_message(const HaloPart &part) const { return part.peer != rank; }
  uint64_t bytes(const HaloPart &part, DType type) const;
  // Where the message of a part lies.
  std::byte *message(const HaloPart &part, DType type, void *workspace, void *before) const;
  lasp_halo_info info() const;
};

HaloPlan make_halo_plan(const HaloShape &shape, const TokenRanges &ranges, int32_t rank);

}  // namespace lasp
