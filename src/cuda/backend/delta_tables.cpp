#include "cuda/backend/delta_tables.h"

#include "base/status.h"

namespace lasp::cuda {
namespace {

// Runs of `tokens` tokens of each segment.
std::vector<gpu::Run> cut(const TokenPartition &partition, int64_t tokens) {
  return make_runs(partition, tokens, tokens);
}

}  // namespace

DeltaTables::DeltaTables(Tables &tables, const TokenPartition &partition, int64_t spacing) {
  for (const lasp::Segment &segment : partition.segments) {
    if (segment.end - segment.begin > kLongestStep)
      throw fail(LASP_ERROR_UNSUPPORTED,
                 "tokens: a sequence has %lld on this rank; the delta rule on a GPU takes %lld",
                 static_cast<long long>(segment.end - segment.begin), static_cast<long long>(kLongestStep));
    passes_through = passes_through || (!segment.starts_here && !segment.ends_here);
  }
  const std::vector<gpu::Segment> all = make_segments(partition, kLongestStep);
  const auto of_run = [&](const gpu::Run &run) -> const gpu::Segment & {
    return all[static_cast<size_t>(run.segment)];
  };
  segments = tables.add(all);
  for (int direction = 0; direction < 2; ++direction) {
    std::vector<gpu::Run> whole = cut(partition, kLongestStep);
    int64_t checkpoints = 0;
    for (gpu::Run &run : whole) {
      const gpu::Segment &segment = of_run(run);
      run.entered = segment.consumes[direction];
      run.state = run.entered != 0 ? segment.row : segment.sequence;
      run.checkpoint = static_cast<int32_t>(checkpoints);
      checkpoints += (run.length + spacing - 1) / spacing;
      consumes = consumes || (direction == 0 && run.entered != 0);
    }
    num_checkpoints = checkpoints;
    runs[direction] = tables.add(whole);
    for (gpu::Run &run : whole) run.state = of_run(run).sequence, run.entered = 0;
    if (direction == 0) steps = tables.add(whole);
  }
  std::vector<gpu::Run> parts = cut(partition, spacing);
  for (gpu::Run &run : parts) {
    run.entered = of_run(run).consumes[1];
    run.checkpoint = static_cast<int32_t>(run.state);  // both count the stretches
  }
  stretches = tables.add(parts);
  empty_sequences = tables.add(partition.empty_sequences);
}

}  // namespace lasp::cuda
