#include "cuda/cut/runs.h"

#include <algorithm>

namespace lasp {

std::vector<gpu::Segment> make_segments(const TokenPartition &partition, int64_t run_tokens) {
  std::vector<gpu::Segment> segments;
  int64_t first_run = 0;
  for (size_t i = 0; i < partition.segments.size(); ++i) {
    const Segment &from = partition.segments[i];
    gpu::Segment to;
    to.path = from.path;
    to.sequence = from.sequence;
    to.first_run = first_run;
    to.num_runs = (from.end - from.begin + run_tokens - 1) / run_tokens;
    first_run += to.num_runs;
    to.begins[0] = from.starts_here;
    to.begins[1] = from.ends_here;
    const auto path = static_cast<size_t>(from.path);
    const RowPath *const paths[2] = {&partition.forward[path], &partition.backward[path]};
    for (int direction = 0; direction < 2; ++direction) {
      to.produces[direction] = paths[direction]->producer == static_cast<int64_t>(i);
      to.consumes[direction] = paths[direction]->consumer == static_cast<int64_t>(i);
      to.resets[direction] = paths[direction]->reset;
    }
    segments.push_back(to);
  }
  return segments;
}

std::vector<gpu::Run> make_runs(const TokenPartition &partition, int64_t tokens, int64_t whole) {
  std::vector<gpu::Run> runs;
  for (size_t i = 0; i < partition.segments.size(); ++i) {
    const Segment &segment = partition.segments[i];
    for (int64_t begin = segment.begin; begin < segment.end; begin += tokens) {
      gpu::Run run;
      run.row = segment.row;
      run.begin = begin;
      run.segment = static_cast<int64_t>(i);
      run.path = static_cast<int32_t>(segment.path);
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

CutTables cut_runs(const TokenPartition &partition, int64_t run_tokens, int64_t state_tokens) {
  CutTables cut;
  cut.segments = make_segments(partition, state_tokens);
  cut.state_runs = make_runs(partition, state_tokens, run_tokens);
  const auto segment_of = [&](const gpu::Run &run) -> const gpu::Segment & {
    return cut.segments[static_cast<size_t>(run.segment)];
  };
  const std::vector<gpu::Run> whole = make_runs(partition, run_tokens, run_tokens);
  for (int direction = 0; direction < 2; ++direction) {
    for (const gpu::Run &run : cut.state_runs) {
      const Segment &segment = partition.segments[static_cast<size_t>(run.segment)];
      const bool is_last = direction == 0 ? run.begin + run.length + run.after == segment.end
                                          : run.begin - run.before == segment.begin;
      if (!is_last) cut.followed[direction].push_back(run);
      if (!is_last || segment_of(run).produces[direction]) cut.leading[direction].push_back(run);
    }
    int64_t first = 0, kept = 0;  // states, checkpoints
    for (gpu::Run run : whole) {
      const int64_t within = (run.length + state_tokens - 1) / state_tokens;
      const bool consumes = segment_of(run).consumes[direction] != 0;
      run.state = direction == 0 ? first : first + within - 1;
      run.entered = consumes;
      run.checkpoint = static_cast<int32_t>(kept);
      first += within;
      kept += (run.length + gpu::kFusedCheckpoint - 1) / gpu::kFusedCheckpoint;
      cut.runs[direction].push_back(run);
      (consumes ? cut.consumers : cut.independent)[direction].push_back(run);
      if (direction == 1 && run.starts >= 0) cut.beginnings.push_back(run);
    }
    cut.num_checkpoints = kept;
  }
  return cut;
}

ShortRunCount count_short_runs(const TokenPartition &partition, int64_t run_tokens, int64_t tokens) {
  ShortRunCount count;
  for (const gpu::Run &run : make_runs(partition, run_tokens, run_tokens)) {
    const int64_t parts = (run.length + tokens - 1) / tokens;
    count.all += parts;
    count.longest = std::max(count.longest, parts);
  }
  return count;
}

ShortRunTables cut_short_runs(const TokenPartition &partition, int64_t run_tokens, int64_t state_tokens,
                              int64_t tokens, int64_t most) {
  ShortRunTables cut;
  cut.windows.emplace_back();
  int64_t first_state = 0;
  for (const gpu::Run &whole : make_runs(partition, run_tokens, run_tokens)) {
    const int64_t parts = (whole.length + tokens - 1) / tokens,
                  states = (whole.length + state_tokens - 1) / state_tokens;
    if (cut.windows.back().num_runs > 0 && cut.windows.back().num_runs + parts > most) {
      ShortRunTables::Window next;
      next.first_run = static_cast<int64_t>(cut.runs.size());
      next.first_segment = static_cast<int64_t>(cut.segments.size());
      cut.windows.push_back(next);
    }
    ShortRunTables::Window &window = cut.windows.back();
    gpu::Segment segment;
    segment.first_run = window.num_runs;
    segment.num_runs = parts;
    cut.segments.push_back(segment);
    for (int64_t part = 0; part < parts; ++part) {
      gpu::Run run;
      run.row = whole.row;
      run.segment = window.num_segments;
      run.begin = whole.begin + part * tokens;
      run.length = static_cast<int32_t>(std::min(tokens, whole.length - part * tokens));
      run.state = window.num_runs + part;
      cut.runs.push_back(run);
    }
    cut.entered_at[0].push_back(first_state);
    cut.entered_at[1].push_back(first_state + states - 1);
    first_state += states;
    window.num_runs += parts, window.num_segments += 1;
    cut.most = std::max(cut.most, window.num_runs);
  }
  return cut;
}

}  // namespace lasp
