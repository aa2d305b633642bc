#include "cpu_backend.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace lasp {

std::unique_ptr<Backend> make_cpu_backend(const Problem &problem, const TokenPartition &partition,
                                          ThreadPool &pool) {
  return std::make_unique<cpu::CpuBackend>(problem, partition, pool, cpu::kernels());
}

namespace cpu {
namespace {

// Heads whose gradients meet in a shared q, k or v head lie in one block of this many.
int32_t heads_in_group(const Problem &p) {
  return std::lcm(std::lcm(p.heads / p.heads_q, p.heads / p.heads_k), p.heads / p.heads_v);
}

// Whether walks of these lengths, `walks` of each, keep the threads about as busy as an even split would: longest
// first, each to the thread that is free first.
bool walks_are_even(const std::vector<int64_t> &lengths, int64_t walks, int32_t threads) {
  if (threads == 1) return true;
  std::vector<int64_t> busy(static_cast<size_t>(threads), 0);
  int64_t total = 0;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < walks; ++i) *std::min_element(busy.begin(), busy.end()) += length;
    total += length * walks;
  }
  const int64_t longest = *std::max_element(busy.begin(), busy.end());
  return static_cast<double>(longest) * threads <= 1.15 * static_cast<double>(total);
}

// How many heads a walk takes; 0: there are not enough walks for the threads. Where heads lie inside a token, a
// tile's rows are far apart, each in a page of its own; neighbouring heads find those pages still mapped and their
// lines fetched ahead. Their states should stay in a core's own cache. Two walks or more for each thread even out a
// thread that was held up, which is worth more than the last neighbours.
int32_t heads_of_a_walk(const Problem &p, const std::vector<int64_t> &lengths, int32_t threads) {
  constexpr int64_t kCacheForStates = 256 << 10;
  int32_t best = 0;
  for (int32_t heads = 1; heads <= (p.q.head < p.q.token ? 8 : 1); heads *= 2) {
    if (p.heads % heads != 0 || (heads > 1 && heads * p.state_size() * 4 > kCacheForStates)) break;
    const int64_t walks = static_cast<int64_t>(lengths.size()) * p.heads / heads;
    if (heads > 2 && threads > 1 && walks < 2 * threads) break;
    if (walks_are_even(lengths, p.heads / heads, threads)) best = heads;
  }
  return best;
}

}  // namespace

CpuBackend::CpuBackend(const Problem &problem, const TokenPartition &partition, ThreadPool &pool,
                       const Kernels &kernels)
    : problem_(problem),
      map_(affine_map_of(problem)),
      partition_(partition),
      pool_(pool),
      math_(problem, kernels),
      group_(heads_in_group(problem)) {
  done_.resize(static_cast<size_t>(chunks() * problem.heads));
  walk_order_.resize(partition_.segments.size());
  std::iota(walk_order_.begin(), walk_order_.end(), 0);
  const auto length = [&](int64_t i) {
    const Segment &s = partition_.segments[static_cast<size_t>(i)];
    return s.end - s.begin;
  };
  std::stable_sort(walk_order_.begin(), walk_order_.end(),
                   [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<int64_t> lengths;
  for (const int64_t i : walk_order_) lengths.push_back(length(i));
  // A walk has its own order of sums.
  if (problem.segment == 0) walk_heads_ = heads_of_a_walk(problem, lengths, pool.threads());
  find_chains();
  for (int32_t t = 0; t < pool.threads(); ++t) {
    scratch_.push_back(std::make_unique<Scratch>(problem, std::max(walk_heads_, 1)));
  }
  char text[160];
  std::snprintf(text, sizeof text, "chunks of %d tokens, CBLAS products, %s, %d threads; alone: %s", problem.chunk,
                math_.kernels().name, pool.threads(),
                walk_heads_ > 0 ? "walks along each sequence" : "chunks in parallel, then a scan");
  description_ = text;
  if (problem.segment > 0) {
    std::snprintf(text, sizeof text, "; one order of sums over segments of %lld tokens",
                  static_cast<long long>(problem.segment));
    description_ += text;
  }
}

TokenSpan CpuBackend::tokens_of(int64_t chunk) const {
  const Chunk &c = partition_.chunks[static_cast<size_t>(chunk)];
  return {partition_.segments[static_cast<size_t>(c.segment)].row, c.begin, c.length};
}

const Segment &CpuBackend::segment_of(int64_t chunk) const {
  return partition_.segments[static_cast<size_t>(partition_.chunks[static_cast<size_t>(chunk)].segment)];
}

bool CpuBackend::ends_sequence(int64_t chunk) const {
  const Segment &segment = segment_of(chunk);
  return segment.ends_here && chunk == segment.first_chunk + segment.num_chunks - 1;
}

bool CpuBackend::slots_in_cache() const {
  return problem_.backward && problem_.cache_chunks && !problem_.bidirectional;
}

CpuBackend::ForwardWorkspace CpuBackend::forward_workspace(void *workspace, void *cache) const {
  Carver carver(workspace);
  ForwardWorkspace w{};
  const auto segments = static_cast<int64_t>(partition_.segments.size());
  place_scan(carver, w.scan, false, !slots_in_cache());
  if (slots_in_cache()) w.scan.slots = static_cast<float *>(cache);
  w.scan.logs = carver.take<double>(math_.has_logs() ? factors(chunks()) : 0);
  w.sums = carver.take<float>(problem_.bidirectional ? states(segments) : 0);
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
  const auto segments = static_cast<int64_t>(partition_.segments.size());
  const int64_t tokens = p.batch * p.tokens;
  place_scan(carver, w.gradients, true, true);
  w.gradients.logs = carver.take<double>(math_.has_logs() ? factors(chunks()) : 0);
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
    w.head_dg = carver.take<double>(p.decay == Decay::kHead ? chunks() * p.heads : 0);
  }
  w.sums = carver.take<float>(p.bidirectional ? states(segments) : 0);
  w.bytes = carver.used();
  return w;
}

uint64_t CpuBackend::forward_workspace_bytes() const { return forward_workspace(nullptr, nullptr).bytes; }
uint64_t CpuBackend::backward_workspace_bytes() const { return backward_workspace(nullptr, nullptr).bytes; }

uint64_t CpuBackend::cache_bytes(bool chunks_kept) const {
  const auto segments = static_cast<int64_t>(partition_.segments.size());
  const int64_t count = problem_.bidirectional ? segments : chunks_kept ? chunks() : partition_.rows();
  return static_cast<uint64_t>(states(count)) * sizeof(float);
}

void CpuBackend::copy_empty_sequences(float *to, const float *from, bool add) {
  const int64_t size = states(1);
  for (const int64_t n : partition_.empty_sequences) {
    if (add) {
      for (int64_t i = n * size; from != nullptr && i < (n + 1) * size; ++i) to[i] += from[i];
    } else if (from != nullptr) {
      std::memcpy(to + n * size, from + n * size, static_cast<size_t>(size) * sizeof(float));
    } else {
      std::memset(to + n * size, 0, static_cast<size_t>(size) * sizeof(float));
    }
  }
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

void CpuBackend::fill_known_transition(lasp_stream, float *transition, const KnownTransition &known,
                                       const float *log_decay) {
  map_.fill_known_transition(transition, known, log_decay);
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

}  // namespace cpu
}  // namespace lasp
