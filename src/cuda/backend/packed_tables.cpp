#include "cuda/backend/packed_tables.h"

#include <algorithm>

#include "base/status.h"
#include "cuda/backend/device_plan.h"

namespace lasp::cuda {

// All that there is room for, whatever this packing needs: entries that it does not use are made empty, and a later
// pass that is given the same offsets in other memory may look at them.
template <class T>
gpu::Table<T> PackedTables::table_of(const DeviceArray<T> &array) {
  return {reinterpret_cast<T *>(array.place_->data), array.place_->most};
}

static_assert(gpu::kMostRanges == kMostRuns);

PackedTables::PackedTables(const Problem &problem, const TokenRanges &ranges, int32_t rank)
    : ranges_(packed_ranges(ranges, rank)),
      each_(problem.each ? EachSplit{ranges.nranks(), problem.num_sequences} : EachSplit{}),
      tokens_(problem.tokens),
      max_sequences_(problem.num_sequences),
      most_segments_(problem.each ? max_sequences_ * static_cast<int64_t>(ranges_.size())
                                  : std::min(tokens_, max_sequences_ + static_cast<int64_t>(ranges_.size()) - 1)),
      given_(static_cast<size_t>(max_sequences_ + 1)),
      offsets_(add<int32_t>(max_sequences_ + 1)),
      empty_(add<int64_t>(max_sequences_)),
      live_(add<int64_t>(gpu::kLiveCount)) {
  if (tokens_ > gpu::kMostPackedTokens)
    throw fail(LASP_ERROR_UNSUPPORTED, "tokens = %lld: a packed plan on a GPU takes at most %lld on each rank",
               static_cast<long long>(tokens_), static_cast<long long>(gpu::kMostPackedTokens));
}

// The most bytes of room for tables that are made on the host, of which a packing uses a part.
constexpr uint64_t kMostOfImage = 256 * 1024;

template <class T>
DeviceArray<T> PackedTables::add(int64_t most) {
  const uint64_t offset = (bytes_ + kTableAlignment - 1) / kTableAlignment * kTableAlignment;
  bytes_ = offset + static_cast<uint64_t>(most) * sizeof(T);
  bytes_ <= kMostOfImage ? image_.resize(bytes_) : image_.clear();
  places_.push_back(std::make_shared<TablePlace>(TablePlace{nullptr, nullptr, offset, most, most}));
  return DeviceArray<T>(places_.back());
}

void PackedTables::add(Partition &cut, const gpu::CutTokens &tokens) {
  const gpu::CutCounts most = gpu::most_of_cut(tokens_, most_segments_, tokens);
  cut.num_states = most.states, cut.num_runs = most.runs, cut.num_checkpoints = most.checkpoints;
  cut.single_runs = cut.always_single = tokens_ <= tokens.run;
  const auto ranges = static_cast<int64_t>(ranges_.size());
  const bool each = each_.ranks > 0;  // then states may enter and leave every segment
  cut.segments = add<gpu::Segment>(most_segments_);
  cut.state_runs = add<gpu::Run>(most.states);
  for (const int direction : {0, 1}) {
    cut.followed[direction] = add<gpu::Run>(most.followed[direction]);
    cut.leading[direction] = add<gpu::Run>(each ? most.states : tokens_ == 0 ? 0 : tokens_ / tokens.state + ranges);
    cut.runs[direction] = add<gpu::Run>(most.runs);
    cut.consumers[direction] = add<gpu::Run>(each           ? most.runs
                                             : tokens_ == 0 ? 0
                                                            : (tokens_ - ranges) / tokens.run + ranges);
    cut.independent[direction] = add<gpu::Run>(most.runs);
  }
  cut.beginnings = add<gpu::Run>(std::min(tokens_, max_sequences_));
  cuts_.push_back({&cut, tokens, add<gpu::PackedSegment>(most_segments_)});
}

void PackedTables::add(ShortRuns &short_runs, const Partition &cut) {
  const auto of = std::find_if(cuts_.begin(), cuts_.end(), [&](const Cut &each) { return each.partition == &cut; });
  of->short_runs = &short_runs;
  short_runs.runs = add<gpu::Run>(cut.num_runs * short_runs.parts);
  short_runs.segments = add<gpu::Segment>(cut.num_runs);
  for (const int direction : {0, 1}) short_runs.entered_at[direction] = add<int64_t>(cut.num_runs);
}

// A table of all runs has an entry at least where there are tokens, so that what a launch does besides is done.
void PackedTables::set_sizes(const Packing &packing) {
  std::array<gpu::CutTokens, gpu::kMostCuts> tokens;
  for (size_t i = 0; i < cuts_.size(); ++i) tokens[i] = cuts_[i].tokens;
  const PackedSizes sizes = count_packing(packing, ranges_, std::span(tokens).first(cuts_.size()), each_);
  const int64_t least = std::min<int64_t>(1, tokens_);
  const auto set = [](const auto &array, int64_t size) { array.place_->size = size; };
  for (size_t i = 0; i < cuts_.size(); ++i) {
    const CutSizes &from = sizes.cuts[i];
    Partition &to = *cuts_[i].partition;
    to.single_runs = from.single_runs;
    to.usual_states = std::max(least, from.state_runs);
    to.usual_runs = std::max(least, from.runs);
    set(to.segments, std::max(least, from.segments));
    set(to.state_runs, std::max(least, from.state_runs));
    set(to.beginnings, from.beginnings);
    for (const int direction : {0, 1}) {
      set(to.followed[direction], from.followed[direction]);
      set(to.leading[direction], from.leading[direction]);
      set(to.runs[direction], std::max(least, from.runs));
      set(to.consumers[direction], from.consumers[direction]);
      set(to.independent[direction], from.independent[direction]);
    }
  }
  num_empty_ = sizes.empty;
  may_pad_ = sizes.padded;
}

gpu::PackedCut PackedTables::tables_of(const Cut &cut) const {
  const Partition &from = *cut.partition;
  gpu::PackedCut to;
  to.tokens = cut.tokens;
  to.scratch = cut.scratch.data();
  to.segments = table_of(from.segments);
  to.state_runs = table_of(from.state_runs);
  for (const int direction : {0, 1}) {
    to.followed[direction] = table_of(from.followed[direction]);
    to.leading[direction] = table_of(from.leading[direction]);
    to.runs[direction] = table_of(from.runs[direction]);
    to.consumers[direction] = table_of(from.consumers[direction]);
    to.independent[direction] = table_of(from.independent[direction]);
  }
  to.beginnings = table_of(from.beginnings);
  if (cut.short_runs == nullptr) return to;
  const ShortRuns &shorts = *cut.short_runs;
  to.short_runs.tokens = shorts.tokens;
  to.short_runs.parts = shorts.parts;
  to.short_runs.runs = shorts.runs_in_window;
  to.short_runs.short_runs = table_of(shorts.runs);
  to.short_runs.segments = table_of(shorts.segments);
  for (const int direction : {0, 1}) to.short_runs.entered_at[direction] = shorts.entered_at[direction].data();
  return to;
}

void PackedTables::set(void *memory, const Packing &packing) {
  memory_ = memory;
  for (const auto &place : places_) place->data = static_cast<std::byte *>(memory) + place->offset;
  packing_ = packing;
  exact_ = !packing.on_device, cleared_ = false;
  if (exact_) {
    for (int64_t n = 0; n <= packing.sequences; ++n)
      given_[static_cast<size_t>(n)] =
          each_.ranks > 0 ? static_cast<int32_t>(packing[n] / each_.ranks)
                          : gpu::given_offset(packing[n], ranges_.data(), static_cast<int32_t>(ranges_.size()));
    return set_sizes(packing);
  }
  for (const auto &place : places_) place->size = place->most;
  // As of sequences of one length.
  const int64_t count = std::clamp<int64_t>(packing.sequences, 1, std::max<int64_t>(tokens_, 1));
  const int64_t length = (tokens_ + count - 1) / count;
  for (const Cut &cut : cuts_) {
    Partition &to = *cut.partition;
    to.single_runs = to.always_single;
    to.usual_states = std::min(to.num_states, count * gpu::parts_of(length, cut.tokens.state));
    to.usual_runs = std::min(to.num_runs, count * gpu::parts_of(length, cut.tokens.run));
  }
  may_pad_ = true;
}

const int64_t *PackedTables::followed(const Partition &cut) const {
  const auto of = std::find_if(cuts_.begin(), cuts_.end(), [&](const Cut &each) { return each.partition == &cut; });
  return exact_ ? nullptr : live_.data() + gpu::kLiveFollowed + (of - cuts_.begin());
}

// Whether it is worth the host's time to make the tables and see whether they fit.
bool PackedTables::may_carry() const {
  int64_t runs = 0;
  for (const Cut &cut : cuts_) runs += cut.partition->usual_states + cut.partition->usual_runs;
  return !image_.empty() && runs <= gpu::kMostCarriedRuns;
}

void PackedTables::make(cudaStream_t stream, std::span<const Padded> results) {
  gpu::PackedTables tables;
  tables.offsets = packing_.offsets;
  tables.wide = packing_.wide;
  tables.sequences = packing_.sequences;
  for (const gpu::PackedRange &range : ranges_) tables.ranges[tables.num_ranges++] = range;
  tables.rows = each_.rows, tables.ranks = std::max(each_.ranks, 1), tables.tokens = tokens_;
  tables.empty = table_of(empty_);
  tables.live = live_.data();
  for (const Cut &cut : cuts_) tables.cuts[tables.num_cuts++] = tables_of(cut);
  const char *const what = "making the tables of a packing";
  if (!exact_) {
    cleared_ = !results.empty();
    return check_launch(gpu::launch_packed_tables(tables, padding_of(results), stream), what);
  }
  tables.wide = false, tables.ranks = 1;  // they are divided already
  for (int32_t n = 0; n < tables.num_ranges && each_.ranks == 0; ++n)
    tables.ranges[n] = gpu::given_range(ranges_.data(), n);
  const int carried = may_carry() ? gpu::launch_carried_tables(tables, given_.data(),
                                                               {image_.data(), memory_, image_.size()}, stream)
                                  : gpu::kTooManyTables;
  if (carried != gpu::kTooManyTables) return check_launch(carried, what);
  check_launch(gpu::launch_packed_tables(tables, given_.data(), offsets_.data(), stream), what);
}

void PackedTables::copy_empty_sequences(float *to, const float *from, int64_t size, bool adds,
                                        cudaStream_t stream) const {
  check_launch(exact_ ? gpu::launch_copy_states(to, from, empty_.data(), num_empty_, size, adds, stream)
                      : gpu::launch_copy_live_states(to, from, empty_.data(), live_.data() + gpu::kLiveEmpty,
                                                     max_sequences_, size, adds, stream),
               "handing on the states of empty sequences");
}

gpu::ZeroPadding PackedTables::padding_of(std::span<const Padded> results) const {
  gpu::ZeroPadding pass;
  pass.live = live_.data();
  for (const gpu::PackedRange &range : ranges_)
    pass.ends[pass.num_ranges++] = range.local + range.end - range.begin;
  if (each_.ranks > 0) pass.num_ranges = 1, pass.ends[0] = tokens_;  // behind all sequences
  for (const Padded &result : results) {
    const gpu::Tensor &t = result.tensor;
    pass.parts[pass.count++] = {t.data,  t.strides.token, t.strides.head,
                                t.heads, t.dim,           static_cast<int32_t>(size_of(result.dtype))};
  }
  return pass;
}

void PackedTables::zero_padding(std::span<const Padded> results, cudaStream_t stream) const {
  check_launch(gpu::launch_zero_padding(padding_of(results), stream), "clearing padding");
}

}  // namespace lasp::cuda
