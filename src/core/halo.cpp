#include "core/halo.h"

#include <algorithm>

#include "base/status.h"
#include "core/layout.h"
#include "core/workspace.h"

namespace lasp {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

// The first token that a rank wants of others; its own first where it wants none.
int64_t first_wanted(const TokenRanges &ranges, int32_t rank, int64_t rows) {
  const int64_t begin = ranges.begin[static_cast<size_t>(rank)];
  return ranges.tokens(rank) == 0 ? begin : begin - std::min(rows, begin);
}

}  // namespace

HaloShape validate(const lasp_halo_options &given, const Problem &problem) {
  if (given.rows < 1 || given.rows > kMostHaloRows)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "rows = %lld: must be 1 to %lld", ll(given.rows), ll(kMostHaloRows));
  if (given.channels < 1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "channels = %lld: must be at least 1", ll(given.channels));
  HaloShape shape;
  shape.packed = problem.packed;
  shape.most_sequences = problem.packed ? problem.num_sequences : 0;
  shape.batch = problem.batch;
  shape.tokens = problem.tokens;
  shape.rows = given.rows;
  shape.channels = given.channels;
  shape.dtype = check_type("x", given.x, problem.dtype);
  shape.d_dtype = check_type("d_x", given.d_x, problem.dtype);
  // Of `before` and the workspace: as many rows as there can be, for either direction, and the alignment of each.
  checked_bytes("channels: the workspace", {problem.batch, 3 * kMostHaloRows, given.channels, 4, 2});
  // Tensors of one head.
  const auto tensor = [&](const char *name, const lasp_layout &layout, DType type, bool input) {
    return check_strides(name, layout, {problem.batch, problem.tokens, 1, given.channels, size_of(type), input});
  };
  shape.x = tensor("x", given.x, shape.dtype, true);
  shape.d_x = tensor("d_x", given.d_x, shape.d_dtype, false);
  return shape;
}

uint64_t HaloPlan::bytes(const HaloPart &part, DType type) const {
  return static_cast<uint64_t>(shape.batch * part.count * shape.channels * size_of(type));
}

std::byte *HaloPlan::message(const HaloPart &part, DType type, void *workspace, void *before) const {
  if (part.place >= 0) return static_cast<std::byte *>(workspace) + part.place;
  return static_cast<std::byte *>(before) + part.begin * shape.channels * size_of(type);
}

int64_t HaloPlan::missing(int32_t r, OffsetSpan offsets) const {
  const int64_t token = ranges.begin[static_cast<size_t>(r)];
  const int64_t beginning = ranges.tokens(r) == 0 ? -1 : beginning_of(offsets, token);
  return beginning < 0 ? shape.rows : shape.rows - std::min(shape.rows, token - beginning);
}

HaloPlan make_halo_plan(const HaloShape &shape, const TokenRanges &ranges, int32_t rank) {
  HaloPlan plan;
  plan.shape = shape;
  plan.ranges = ranges;
  plan.rank = rank;
  const auto end_of = [&](int32_t r) { return ranges.begin[static_cast<size_t>(r) + 1]; };
  const int64_t begin = ranges.begin[static_cast<size_t>(rank)], end = end_of(rank);
  const int64_t first = first_wanted(ranges, rank, shape.rows);
  const int64_t before_first = begin - shape.rows;  // the token that row 0 of `before` stands for
  // What is wanted lies less than `rows` ranks with tokens away, but any number without.
  for (int32_t r = rank - 1; r >= 0 && end_of(r) > first; --r) {
    const int64_t from = std::max(first, ranges.begin[static_cast<size_t>(r)]);
    if (from < end_of(r)) plan.wanted.push_back({r, from - before_first, end_of(r) - from, -1});
  }
  std::reverse(plan.wanted.begin(), plan.wanted.end());
  for (int32_t r = rank + 1; r < ranges.nranks() && ranges.begin[static_cast<size_t>(r)] - shape.rows < end; ++r) {
    const int64_t from = std::max(begin, first_wanted(ranges, r, shape.rows));
    if (from < end && ranges.tokens(r) > 0) plan.given.push_back({r, from - begin, end - from, -1});
  }
  // Either direction has the same places, wide enough for both.
  const DType widest = size_of(shape.dtype) > size_of(shape.d_dtype) ? shape.dtype : shape.d_dtype;
  Carver count(nullptr);
  for (auto *parts : {&plan.given, &plan.wanted})
    for (HaloPart &part : *parts) {
      const bool is_piece = parts == &plan.wanted && (shape.batch == 1 || part.count == shape.rows);
      if (is_piece) continue;
      part.place = static_cast<int64_t>(count.used());
      count.take<std::byte>(static_cast<int64_t>(plan.bytes(part, widest)));
    }
  plan.workspace_bytes = count.used();
  return plan;
}

}  // namespace lasp
