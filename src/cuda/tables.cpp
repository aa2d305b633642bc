#include "tables.h"

#include <algorithm>

namespace lasp::cuda {
namespace {

std::vector<gpu::Segment> make_segments(const Work &work, int64_t run_tokens) {
  std::vector<gpu::Segment> segments;
  int64_t first_run = 0;
  for (size_t i = 0; i < work.segments.size(); ++i) {
    const Segment &from = work.segments[i];
    gpu::Segment to;
    to.row = from.row;
    to.sequence = from.sequence;
    to.first_run = first_run;
    to.num_runs = (from.end - from.begin + run_tokens - 1) / run_tokens;
    first_run += to.num_runs;
    to.begins[0] = from.starts_here;
    to.begins[1] = from.ends_here;
    const auto row = static_cast<size_t>(from.row);
    const RowCarry *const carries[2] = {&work.forward[row], &work.backward[row]};
    for (int direction = 0; direction < 2; ++direction) {
      to.produces[direction] = carries[direction]->producer == static_cast<int64_t>(i);
      to.consumes[direction] = carries[direction]->consumer == static_cast<int64_t>(i);
      to.resets[direction] = carries[direction]->reset;
    }
    segments.push_back(to);
  }
  return segments;
}

// Runs of `tokens` tokens, each a part of one of `whole`.
std::vector<gpu::Run> make_runs(const Work &work, int64_t tokens, int64_t whole) {
  std::vector<gpu::Run> runs;
  for (size_t i = 0; i < work.segments.size(); ++i) {
    const Segment &segment = work.segments[i];
    for (int64_t begin = segment.begin; begin < segment.end; begin += tokens) {
      gpu::Run run;
      run.row = segment.row;
      run.begin = begin;
      run.segment = static_cast<int64_t>(i);
      run.state = static_cast<int64_t>(runs.size());
      run.length = static_cast<int32_t>(std::min(tokens, segment.end - begin));
      const int64_t within = (begin - segment.begin) % whole, left = segment.end - begin - run.length;
      run.before = static_cast<int32_t>(within);
      run.after = static_cast<int32_t>(std::min(whole - within - run.length, left));
      if (begin == segment.begin && segment.starts_here) run.starts = segment.sequence;
      if (begin + run.length == segment.end && segment.ends_here) run.ends = segment.sequence;
      runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace

Partition::Partition(const Work &work, int64_t run_tokens, int64_t state_tokens) {
  const std::vector<gpu::Segment> all_segments = make_segments(work, state_tokens);
  const auto segment_of = [&](const gpu::Run &run) -> const gpu::Segment & {
    return all_segments[static_cast<size_t>(run.segment)];
  };
  const std::vector<gpu::Run> fine = make_runs(work, state_tokens, run_tokens),
                              coarse = make_runs(work, run_tokens, run_tokens);
  segments = DeviceArray(all_segments);
  state_runs = DeviceArray(fine);
  single_runs = coarse.size() == all_segments.size();
  longest_state_run = state_tokens;
  for (int direction = 0; direction < 2; ++direction) {
    std::vector<gpu::Run> inner, led;
    for (const gpu::Run &run : fine) {
      const Segment &segment = work.segments[static_cast<size_t>(run.segment)];
      const bool is_last = direction == 0 ? run.begin + run.length + run.after == segment.end
                                          : run.begin - run.before == segment.begin;
      if (!is_last) inner.push_back(run);
      if (!is_last || segment_of(run).produces[direction]) led.push_back(run);
    }
    followed[direction] = DeviceArray(inner);
    leading[direction] = DeviceArray(led);

    std::vector<gpu::Run> all, chosen[2], first_of_all;
    int64_t first = 0, kept = 0;  // states of the finer cut, checkpoints
    for (gpu::Run run : coarse) {
      const int64_t within = (run.length + state_tokens - 1) / state_tokens;
      run.state = direction == 0 ? first : first + within - 1;
      run.entered = segment_of(run).consumes[direction];
      run.checkpoint = static_cast<int32_t>(kept);
      first += within;
      kept += (run.length + gpu::kFusedCheckpoint - 1) / gpu::kFusedCheckpoint;
      all.push_back(run);
      chosen[segment_of(run).consumes[direction]].push_back(run);
      if (run.starts >= 0) first_of_all.push_back(run);
    }
    if (direction == 1) beginnings = DeviceArray(first_of_all);
    num_checkpoints = kept;
    runs[direction] = DeviceArray(all);
    independent[direction] = DeviceArray(chosen[0]);
    consumers[direction] = DeviceArray(chosen[1]);
  }
}

ShortRuns::Count ShortRuns::count(const Work &work, int64_t run_tokens, int64_t tokens) {
  Count count;
  for (const gpu::Run &run : make_runs(work, run_tokens, run_tokens)) {
    const int64_t parts = (run.length + tokens - 1) / tokens;
    count.all += parts;
    count.longest = std::max(count.longest, parts);
  }
  return count;
}

ShortRuns::ShortRuns(const Work &work, int64_t run_tokens, int64_t state_tokens, int64_t tokens_of_run,
                     int64_t most_runs)
    : tokens(tokens_of_run) {
  std::vector<gpu::Run> all_runs;
  std::vector<gpu::Segment> all_segments;
  std::vector<int64_t> entered[2];
  windows.emplace_back();
  int64_t first_state = 0;
  for (const gpu::Run &whole : make_runs(work, run_tokens, run_tokens)) {
    const int64_t parts = (whole.length + tokens - 1) / tokens,
                  states = (whole.length + state_tokens - 1) / state_tokens;
    if (windows.back().num_runs > 0 && windows.back().num_runs + parts > most_runs) {
      Window next;
      next.first_run = static_cast<int64_t>(all_runs.size());
      next.first_segment = static_cast<int64_t>(all_segments.size());
      windows.push_back(next);
    }
    Window &window = windows.back();
    gpu::Segment segment;
    segment.row = whole.row;
    segment.first_run = window.num_runs;
    segment.num_runs = parts;
    all_segments.push_back(segment);
    for (int64_t part = 0; part < parts; ++part) {
      gpu::Run run;
      run.row = whole.row;
      run.segment = window.num_segments;
      run.begin = whole.begin + part * tokens;
      run.length = static_cast<int32_t>(std::min(tokens, whole.length - part * tokens));
      run.state = window.num_runs + part;
      all_runs.push_back(run);
    }
    entered[0].push_back(first_state);
    entered[1].push_back(first_state + states - 1);
    first_state += states;
    window.num_runs += parts, window.num_segments += 1;
    most = std::max(most, window.num_runs);
  }
  runs = DeviceArray(all_runs);
  segments = DeviceArray(all_segments);
  for (const int direction : {0, 1}) entered_at[direction] = DeviceArray(entered[direction]);
}

}  // namespace lasp::cuda
