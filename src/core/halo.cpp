#include "core/halo.h"

#include <algorithm>

#include "base/status.h"
#include "core/layout.h"
#include "core/workspace.h"

namespace lasp {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

// The first token that a run wants of others; its own first where it wants none.
int64_t first_wanted(const TokenRanges &ranges, int32_t position, int64_t rows) {
  const int64_t begin = ranges.begin[static_cast<size_t>(position)];
  return ranges.tokens(position) == 0 ? begin : begin - std::min(rows, begin);
}

// What the n-th run of the plan's rank wants and gives.
void add_run(HaloPlan &plan, size_t n) {
  const TokenRanges &ranges = plan.ranges;
  const HaloShape &shape = plan.shape;
  const auto begin_of = [&](int32_t p) { return ranges.begin[static_cast<size_t>(p)]; };
  const int32_t own = plan.positions[n];
  const int64_t begin = begin_of(own), end = begin_of(own + 1);
  const int64_t first = first_wanted(ranges, own, shape.rows);
  const int64_t before_first = begin - shape.rows;  // the token that row 0 before the run stands for
  const int64_t row_0 = static_cast<int64_t>(n) * shape.batch * shape.rows;
  // What is wanted lies less than `rows` runs with tokens away, but any number without.
  for (int32_t p = own - 1; p >= 0 && begin_of(p + 1) > first; --p) {
    const int64_t from = std::max(first, begin_of(p));
    if (from < begin_of(p + 1))
      plan.wanted.push_back({ranges.owner_of(p), p, own, row_0 + from - before_first, begin_of(p + 1) - from, -1});
  }
  for (int32_t p = own + 1; p < ranges.positions() && begin_of(p) - shape.rows < end; ++p) {
    const int64_t from = std::max(begin, first_wanted(ranges, p, shape.rows));
    if (from < end && ranges.tokens(p) > 0)
      plan.given.push_back({ranges.owner_of(p), own, p, plan.local_begins[n] + from - begin, end - from, -1});
  }
}

// The same where each sequence is cut by itself: of each position's neighbours alone, for parts are long enough.
void add_run_of_each(HaloPlan &plan, size_t n) {
  const int32_t own = plan.positions[n], rows = static_cast<int32_t>(plan.shape.rows);
  if (plan.ranges.total() == 0) return;
  const int64_t row_0 = static_cast<int64_t>(n) * plan.shape.lines * rows;
  if (own > 0) plan.wanted.push_back({plan.ranges.owner_of(own - 1), own - 1, own, row_0, rows, -1});
  if (own + 1 < plan.ranges.positions())
    plan.given.push_back({plan.ranges.owner_of(own + 1), own, own + 1, 0, rows, -1});
}

// Of a part that is wanted of this rank itself: where what is given lies.
int64_t given_place(const HaloPlan &plan, const HaloPart &wanted) {
  for (const HaloPart &given : plan.given)
    if (given.from == wanted.from && given.to == wanted.to) return given.place;
  return -1;
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
  shape.lines = problem.map_rows();
  shape.tokens = problem.tokens;
  shape.rows = given.rows;
  shape.channels = given.channels;
  shape.dtype = check_type("x", given.x, problem.dtype);
  shape.d_dtype = check_type("d_x", given.d_x, problem.dtype);
  // Of `before` and the workspace: as many rows as there can be, for either direction, and the alignment of each.
  checked_bytes("channels: the workspace", {shape.lines, 3 * kMostHaloRows * kMostRuns, given.channels, 4, 2});
  // Tensors of one head.
  const auto tensor = [&](const char *name, const lasp_layout &layout, DType type, bool input) {
    return check_strides(name, layout, {problem.batch, problem.tokens, 1, given.channels, size_of(type), input});
  };
  shape.x = tensor("x", given.x, shape.dtype, true);
  shape.d_x = tensor("d_x", given.d_x, shape.d_dtype, false);
  return shape;
}

uint64_t HaloPlan::bytes(const HaloPart &part, DType type) const {
  return static_cast<uint64_t>(shape.lines * part.count * shape.channels * size_of(type));
}

std::byte *HaloPlan::message(const HaloPart &part, DType type, void *workspace, void *before) const {
  if (part.place >= 0) return static_cast<std::byte *>(workspace) + part.place;
  return static_cast<std::byte *>(before) + part.begin * shape.channels * size_of(type);
}

int64_t HaloPlan::missing(int32_t position, OffsetSpan offsets) const {
  const int64_t token = ranges.begin[static_cast<size_t>(position)];
  const int64_t beginning = ranges.tokens(position) == 0 ? -1 : beginning_of(offsets, token);
  return beginning < 0 ? shape.rows : shape.rows - std::min(shape.rows, token - beginning);
}

lasp_halo_info HaloPlan::info() const {
  lasp_halo_info info = LASP_HALO_INFO_INIT;
  const HaloPart before{.count = shape.runs * shape.rows};
  info.workspace_bytes = workspace_bytes;
  info.before_bytes = bytes(before, shape.dtype);
  info.d_before_bytes = bytes(before, shape.d_dtype);
  const auto count = [&](const std::vector<HaloPart> &parts, DType type, uint64_t &bytes_of, uint64_t &messages) {
    for (const HaloPart &part : parts)
      if (is_message(part)) bytes_of += bytes(part, type), messages += 1;
  };
  count(given, shape.dtype, info.forward_bytes_sent, info.forward_messages_sent);
  count(wanted, shape.d_dtype, info.backward_bytes_sent, info.backward_messages_sent);
  return info;
}

HaloPlan make_halo_plan(const HaloShape &shape, const TokenRanges &ranges, int32_t rank) {
  HaloPlan plan;
  plan.shape = shape;
  plan.shape.runs = ranges.most_runs();
  plan.ranges = ranges;
  plan.rank = rank;
  int64_t local = 0;
  for (int32_t n = 0; n < ranges.runs_of(rank); ++n) {
    plan.positions.push_back(ranges.position_of(rank, n));
    plan.local_begins.push_back(local);
    local += ranges.tokens(plan.positions.back());
    ranges.each ? add_run_of_each(plan, static_cast<size_t>(n)) : add_run(plan, static_cast<size_t>(n));
  }
  for (auto *parts : {&plan.given, &plan.wanted})
    std::sort(parts->begin(), parts->end(), [](const HaloPart &a, const HaloPart &b) {
      return a.from != b.from ? a.from < b.from : a.to < b.to;
    });
  // Either direction has the same places, wide enough for both.
  const DType widest = size_of(shape.dtype) > size_of(shape.d_dtype) ? shape.dtype : shape.d_dtype;
  Carver count(nullptr);
  for (auto *parts : {&plan.given, &plan.wanted})
    for (HaloPart &part : *parts) {
      const bool is_wanted = parts == &plan.wanted;
      if (is_wanted && !plan.is_message(part)) part.place = given_place(plan, part);
      if (part.place >= 0 || (is_wanted && (shape.batch == 1 || part.count == shape.rows))) continue;
      part.place = static_cast<int64_t>(count.used());
      count.take<std::byte>(static_cast<int64_t>(plan.bytes(part, widest)));
    }
  plan.workspace_bytes = count.used();
  return plan;
}

}  // namespace lasp
