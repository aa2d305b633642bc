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

std::vector<gpu::Run> make_runs(const Work &work, int64_t run_tokens) {
  std::vector<gpu::Run> runs;
  for (size_t i = 0; i < work.segments.size(); ++i) {
    const Segment &segment = work.segments[i];
    for (int64_t begin = segment.begin; begin < segment.end; begin += run_tokens) {
      gpu::Run run;
      run.row = segment.row;
      run.begin = begin;
      run.segment = static_cast<int64_t>(i);
      run.state = static_cast<int64_t>(runs.size());
      run.length = static_cast<int32_t>(std::min(run_tokens, segment.end - begin));
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
  const std::vector<gpu::Run> fine = make_runs(work, state_tokens), coarse = make_runs(work, run_tokens);
  segments = DeviceArray(all_segments);
  state_runs = DeviceArray(fine);
  for (int direction = 0; direction < 2; ++direction) {
    std::vector<gpu::Run> inner, entered;
    for (const gpu::Run &run : fine) {
      const gpu::Segment &segment = segment_of(run);
      const int64_t last = direction == 0 ? segment.first_run + segment.num_runs - 1 : segment.first_run;
      if (run.state != last) inner.push_back(run);
      if (segment.consumes[direction]) entered.push_back(run);
    }
    followed[direction] = DeviceArray(inner);
    joined[direction] = DeviceArray(entered);

    std::vector<gpu::Run> all, chosen[2];
    int64_t first = 0;  // of the finer cut
    for (gpu::Run run : coarse) {
      const int64_t within = (run.length + state_tokens - 1) / state_tokens;
      run.state = direction == 0 ? first : first + within - 1;
      if (direction == 0) first_states.push_back(first);
      first += within;
      all.push_back(run);
      chosen[segment_of(run).consumes[direction]].push_back(run);
    }
    runs[direction] = DeviceArray(all);
    independent[direction] = DeviceArray(chosen[0]);
    consumers[direction] = DeviceArray(chosen[1]);
  }
}

}  // namespace lasp::cuda
