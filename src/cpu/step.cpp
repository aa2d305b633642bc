// Decoding: the recurrence itself, token by token, on a state the caller keeps.
#include <algorithm>

#include "core/decay.h"
#include "cpu_backend.h"

namespace lasp::cpu {

void CpuBackend::step(const StepBuffers &b) {
  const Problem &p = problem_;
  const int64_t heads = p.heads;
  math_.begin_pass(b.decay);
  // A sequence and head at a time. Its tokens may be cut into several segments, which follow each other.
  const std::vector<Segment> &segments = partition_.segments;
  parallel(static_cast<int64_t>(segments.size()) * heads, [&](int64_t item, Scratch &s) {
    const auto first = static_cast<size_t>(item / heads);
    const int64_t sequence = segments[first].sequence;
    if (first > 0 && segments[first - 1].sequence == sequence) return;
    size_t last = first;
    while (last + 1 < segments.size() && segments[last + 1].sequence == sequence) ++last;
    const auto head = static_cast<int32_t>(item % heads);
    float *state = b.state + (sequence * heads + head) * p.state_size();
    const int64_t end = std::min(segments[last].end, b.tokens);
    for (int64_t t = segments[first].begin; t < end; ++t) {
      const TokenSpan span = {segments[first].row, t, 1};
      const Tile q = math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q);
      const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
      const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
      const Factor factor = math_.token_factor(s, span, head);
      math_.kernels().step(state, factor, q.data, k.data, v.data, p.scale, s.o, p.head_dim_k, p.head_dim_v);
      math_.flush({s.o, p.head_dim_v}, b.o, p.o, head, span, p.head_dim_v, p.dtype);
    }
  });
}

}  // namespace lasp::cpu
