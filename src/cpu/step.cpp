// Decoding: the recurrence itself, token by token, on a state the caller keeps.
#include <algorithm>

#include "../decay.h"
#include "cpu_backend.h"

namespace lasp::cpu {

void CpuBackend::step(const StepBuffers &b) {
  const Problem &p = problem_;
  const int64_t heads = p.heads;
  math_.begin_pass(b.decay);
  // Rows of one batch row run one after another; a packed batch restarts with each sequence's own state.
  parallel(static_cast<int64_t>(work_.segments.size()) * heads, [&](int64_t item, Scratch &s) {
    const Segment &segment = work_.segments[static_cast<size_t>(item / heads)];
    const auto head = static_cast<int32_t>(item % heads);
    float *state = b.state + (segment.sequence * heads + head) * p.state_size();
    for (int64_t t = segment.begin; t < segment.end; ++t) {
      const Place place = {segment.row, t, 1};
      const Tile q = math_.load(b.q, p.q, p.q_head(head), place, p.head_dim_k, s.q);
      const Tile k = math_.load(b.k, p.k, p.k_head(head), place, p.head_dim_k, s.k);
      const Tile v = math_.load(b.v, p.v, p.v_head(head), place, p.head_dim_v, s.v);
      const Factor factor = math_.token_factor(s, place, head);
      math_.kernels().step(state, factor, q.data, k.data, v.data, p.scale, s.o, p.head_dim_k, p.head_dim_v);
      math_.flush({s.o, p.head_dim_v}, b.o, p.o, head, place, p.head_dim_v, p.dtype);
    }
  });
}

}  // namespace lasp::cpu
