#include "cpu_backend.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace lasp::cpu {

CpuBackend::CpuBackend(const Problem &problem, const TokenPartition &partition, ThreadPool &pool,
                       const Kernels &kernels)
    : RankWork(problem, partition, pool, kernels) {
  done_.resize(static_cast<size_t>(most_chunks() * problem.heads));
  for (std::vector<Chain> &chains : chains_) chains.reserve(static_cast<size_t>(most_segments()));
  find_chains();
  for (const bool reversed : {false, true})
    for (size_t i = 0; i < partition.segments.size(); ++i)
      may_consume_[reversed] = may_consume_[reversed] || consumes(reversed, static_cast<int64_t>(i));
  char text[160];
  std::snprintf(text, sizeof text, "chunks of %d tokens, %s, %s, %d threads; alone: %s", problem.chunk,
                name_of(products()), math_.kernels().name, pool.threads(),
                problem.packed    ? "as the packing of a pass allows"
                : walk_heads_ > 0 ? "walks along each sequence"
                                  : "chunks in parallel, then a scan");
  describe(text);
  if (problem.segment > 0) {
    std::snprintf(text, sizeof text, "; one order of sums over segments of %lld tokens",
                  static_cast<long long>(problem.segment));
    describe(text);
  }
}

void CpuBackend::follow_partition() { find_chains(); }

bool CpuBackend::slots_in_cache() const {
  return problem_.backward && problem_.cache_chunks && !problem_.bidirectional;
}

CpuBackend::ForwardWorkspace CpuBackend::forward_workspace(void *workspace, void *cache) const {
  Carver carver(workspace);
  ForwardWorkspace w{};
  place_scan(carver, w.scan, false, !slots_in_cache());
  if (slots_in_cache()) w.scan.slots = static_cast<float *>(cache);
  w.scan.logs = carver.take<double>(math_.has_logs() ? factors(most_chunks()) : 0);
  w.sums = carver.take<float>(problem_.bidirectional ? states(most_segments()) : 0);
  const bool staged = !problem_.bidirectional && !math_.direct(problem_.o, problem_.dtype);
  const int64_t tokens = problem_.batch * problem_.tokens;
  w.staged_o = carver.take<float>(staged ? tokens * problem_.heads * problem_.head_dim_v : 0);
  w.bytes = carver.used();
  return w;
}

CpuBackend::BackwardWorkspace CpuBackend::backward_workspace(void *workspace, const void *cache) const {
  Carver carver(workspace);
  BackwardWorkspace w{};
  const Problem &p = problem_;
  const int64_t tokens = p.batch * p.tokens;
  place_scan(carver, w.gradients, true, true);
  w.gradients.logs = carver.take<double>(math_.has_logs() ? factors(most_chunks()) : 0);
  if (!p.bidirectional) {
    place_scan(carver, w.states, false, !p.cache_chunks);
    // The cache is only read here: its states are final.
    if (p.cache_chunks) w.states.slots = const_cast<float *>(static_cast<const float *>(cache));
    w.states.logs = w.gradients.logs;
    const bool in_place_k = math_.direct(p.dk, p.dk_dtype), in_place_v = math_.direct(p.dv, p.dv_dtype);
    w.staged_dk = carver.take<float>(in_place_k ? 0 : tokens * p.heads_k * p.head_dim_k);
    w.staged_dv = carver.take<float>(in_place_v ? 0 : tokens * p.heads_v * p.head_dim_v);
    const bool stage_channel = p.decay == Decay::kChannel && !math_.direct(p.d_decay_layout, p.d_decay_dtype);
    w.staged_dg_channel = carver.take<float>(stage_channel ? tokens * p.heads * p.head_dim_k : 0);
    const bool stage_tokens = p.decay == Decay::kScalar || p.decay == Decay::kHead;
    w.staged_dg = carver.take<double>(stage_tokens ? tokens * p.heads : 0);
    w.head_dg = carver.take<double>(p.decay == Decay::kHead ? most_chunks() * p.heads : 0);
  }
  w.sums = carver.take<float>(p.bidirectional ? states(most_segments()) : 0);
  w.bytes = carver.used();
  return w;
}

uint64_t CpuBackend::forward_workspace_bytes() const { return forward_workspace(nullptr, nullptr).bytes; }
uint64_t CpuBackend::backward_workspace_bytes() const { return backward_workspace(nullptr, nullptr).bytes; }

uint64_t CpuBackend::cache_bytes(bool chunks_kept) const {
  const int64_t count = problem_.bidirectional ? most_segments() : chunks_kept ? most_chunks() : partition_.rows();
  return static_cast<uint64_t>(states(count)) * sizeof(float);
}

void CpuBackend::compose(lasp_stream, AffineMapView to, std::span<const AffineMapView> later, AffineMapView earlier,
                         int64_t begin, int64_t end) {
  if (problem_.segment > 0) return pass_through(to.state, earlier.state, begin, end);
  if (later.empty()) {
    const auto floats = static_cast<size_t>((end - begin) * map_.slice_floats());
    std::memcpy(to.state + begin * map_.slice_floats(), earlier.state + begin * map_.slice_floats(),
                floats * sizeof(float));
    return;
  }
  compose_states(to.state, later.front(), earlier.state, begin, end);
  if (to.transition != nullptr)
    map_.compose_transitions(to.transition, later.front().transition, earlier.transition);
}

void CpuBackend::compose_states(float *to, const AffineMapView &later, const float *earlier, int64_t begin,
                                int64_t end) {
  const int64_t values = problem_.head_dim_v, keys = problem_.head_dim_k;
  constexpr int64_t kPiece = 256;  // rows: a task worth waking a thread for
  parallel((end - begin + kPiece - 1) / kPiece, [&](int64_t item, Scratch &) {
    const int64_t first = begin + item * kPiece, last = std::min(first + kPiece, end);
    for (int64_t row = first; row < last;) {
      // A run of rows with one factor array: all of them for channel decay, those of one head otherwise.
      const bool each = map_.head_transition_floats() != 1;
      const int64_t stop = each ? last : std::min(last, (row / keys + 1) * keys);
      const Factor factor = later.transition == nullptr
                                ? Factor{&kKeepsAll, 0}
                                : Factor{later.transition + (each ? row : row / keys), each ? 1 : 0};
      math_.kernels().affine(to + row * values, factor, earlier + row * values, later.state + row * values,
                             stop - row, values);
      row = stop;
    }
  });
}

}  // namespace lasp::cpu
