#include "rank_work.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lasp::cpu {
namespace {

// Heads whose gradients meet in a shared q, k or v head lie in one block of this many.
int32_t heads_in_group(const Problem &p) {
  return std::lcm(std::lcm(p.heads / p.heads_q, p.heads / p.heads_k), p.heads / p.heads_v);
}

}  // namespace

RankWork::RankWork(const Problem &problem, const TokenPartition &partition, ThreadPool &pool,
                   const Kernels &kernels)
    : problem_(problem),
      map_(affine_map_of(problem)),
      partition_(partition),
      pool_(pool),
      math_(problem, kernels),
      group_(heads_in_group(problem)) {
  most_ = {static_cast<int64_t>(partition.segments.size()), static_cast<int64_t>(partition.chunks.size())};
  if (problem.packed) {
    most_ = most_of(problem);
    reserve(partition_, problem);
  }
  walk_order_.reserve(static_cast<size_t>(most_.segments));
  busy_.resize(static_cast<size_t>(pool.threads()));
  cut_walks();
  int32_t walk_heads = walk_heads_;
  if (problem.packed && problem.segment == 0) walk_heads = heads_of_a_walk(false);
  for (int32_t t = 0; t < pool.threads(); ++t) {
    scratch_.push_back(std::make_unique<Scratch>(problem, std::max(walk_heads, 1)));
  }
}

void RankWork::cut_walks() {
  const auto length = [&](int64_t i) {
    const Segment &s = partition_.segments[static_cast<size_t>(i)];
    return s.end - s.begin;
  };
  walk_order_.resize(partition_.segments.size());
  std::iota(walk_order_.begin(), walk_order_.end(), 0);
  std::sort(walk_order_.begin(), walk_order_.end(),
            [&](int64_t a, int64_t b) { return length(a) != length(b) ? length(a) > length(b) : a < b; });
  // A walk has its own order of sums.
  walk_heads_ = problem_.segment == 0 ? heads_of_a_walk(true) : 0;
}

// Whether so many walks of each segment keep the threads about as busy as an even split would: longest first, each
// to the thread that is free first.
bool RankWork::walks_are_even(int64_t walks) {
  const int32_t threads = pool_.threads();
  if (threads == 1) return true;
  std::fill(busy_.begin(), busy_.end(), 0);
  int64_t total = 0;
  for (const int64_t at : walk_order_) {
    const Segment &segment = partition_.segments[static_cast<size_t>(at)];
    const int64_t length = segment.end - segment.begin;
    for (int64_t i = 0; i < walks; ++i) *std::min_element(busy_.begin(), busy_.end()) += length;
    total += length * walks;
  }
  const int64_t longest = *std::max_element(busy_.begin(), busy_.end());
  return static_cast<double>(longest) * threads <= 1.15 * static_cast<double>(total);
}

// How many heads a walk takes; 0: there are not enough walks for the threads. Where heads lie inside a token, a
// tile's rows are far apart, each in a page of its own; neighbouring heads find those pages still mapped and their
// lines fetched ahead. Their states should stay in a core's own cache. Two walks or more for each thread even out a
// thread that was held up, which is worth more than the last neighbours. Without `even`: the most that there may
// be.
int32_t RankWork::heads_of_a_walk(bool even) {
  constexpr int64_t kCacheForStates = 256 << 10;
  const Problem &p = problem_;
  const int32_t threads = pool_.threads();
  const auto segments = static_cast<int64_t>(walk_order_.size());
  int32_t best = 0;
  for (int32_t heads = 1; heads <= (p.q.head < p.q.token ? 8 : 1); heads *= 2) {
    if (p.heads % heads != 0 || (heads > 1 && heads * p.state_size() * 4 > kCacheForStates)) break;
    if (even && heads > 2 && threads > 1 && segments * p.heads / heads < 2 * threads) break;
    if (!even || walks_are_even(p.heads / heads)) best = heads;
  }
  return best;
}

void RankWork::repack(const TokenRanges &ranges, int32_t rank, OffsetSpan offsets) {
  make_token_partition(partition_, problem_, ranges, rank, offsets);
  if (ranges.each) {
    padding_[0] = {offsets.back() / ranges.nranks(), problem_.tokens};
    cut_walks();
    return follow_partition();
  }
  int64_t local = 0;
  for (int32_t n = 0; n < problem_.runs; ++n) {
    const int32_t position = ranges.position_of(rank, n);
    const int64_t tokens = ranges.tokens(position);
    const int64_t used =
        std::clamp<int64_t>(offsets.back() - ranges.begin[static_cast<size_t>(position)], 0, tokens);
    padding_[static_cast<size_t>(n)] = {local + used, local + tokens};
    local += tokens;
  }
  cut_walks();
  follow_partition();
}

// Zero into the rows of padding.
void RankWork::clear_rows(void *data, const Layout &layout, int64_t heads, int64_t dim, DType type) const {
  const int64_t bytes = size_of(type);
  for (const Slices &run : padding_)
    for (int64_t t = run.begin; data != nullptr && t < run.end; ++t)
      for (int64_t h = 0; h < heads; ++h)
        std::memset(static_cast<std::byte *>(data) + layout.offset(0, t, h) * bytes, 0,
                    static_cast<size_t>(dim * bytes));
}

void RankWork::clear_padding(const ForwardBuffers &b) {
  clear_rows(b.o, problem_.o, problem_.heads, problem_.head_dim_v, problem_.dtype);
}

void RankWork::clear_padding(const BackwardBuffers &b) {
  const Problem &p = problem_;
  if (!b.adds(LASP_ADD_DQ)) clear_rows(b.dq, p.dq, p.heads_q, p.head_dim_k, p.dq_dtype);
  if (!b.adds(LASP_ADD_DK)) clear_rows(b.dk, p.dk, p.heads_k, p.head_dim_k, p.dk_dtype);
  if (!b.adds(LASP_ADD_DV)) clear_rows(b.dv, p.dv, p.heads_v, p.head_dim_v, p.dv_dtype);
  const bool of_tokens = p.decay == Decay::kScalar || p.decay == Decay::kChannel;
  if (of_tokens && !b.adds(LASP_ADD_D_DECAY))
    clear_rows(b.d_decay, p.d_decay_layout, p.heads, p.decay == Decay::kScalar ? 1 : p.head_dim_k, p.d_decay_dtype);
  if (p.delta && !b.adds(LASP_ADD_D_BETA)) clear_rows(b.d_beta, p.d_beta_layout, p.heads, 1, p.d_beta_dtype);
}

TokenSpan RankWork::tokens_of(int64_t chunk) const {
  const Chunk &c = partition_.chunks[static_cast<size_t>(chunk)];
  return {partition_.segments[static_cast<size_t>(c.segment)].row, c.begin, c.length};
}

const Segment &RankWork::segment_of(int64_t chunk) const {
  return partition_.segments[static_cast<size_t>(partition_.chunks[static_cast<size_t>(chunk)].segment)];
}

bool RankWork::ends_sequence(int64_t chunk) const {
  const Segment &segment = segment_of(chunk);
  return segment.ends_here && chunk == segment.first_chunk + segment.num_chunks - 1;
}

void RankWork::copy_empty_sequences(float *to, const float *from, bool add) {
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

void RankWork::fill_known_transition(lasp_stream, float *transition, const KnownTransition &known,
                                     const float *log_decay) {
  map_.fill_known_transition(transition, known, log_decay);
}

// The cache of a plan that keeps only incoming states: [rows, H, K, V], zero where a row has none.
void RankWork::keep_incoming(const ForwardBuffers &b, const float *incoming) const {
  if (!problem_.backward || problem_.cache_chunks || problem_.bidirectional || b.state_cache == incoming) return;
  auto *cache = static_cast<float *>(b.state_cache);
  for (int64_t row = 0; row < partition_.rows(); ++row) {
    const bool some = incoming != nullptr && partition_.forward[static_cast<size_t>(row)].consumer >= 0;
    if (some) {
      std::copy_n(incoming + states(row), states(1), cache + states(row));
    } else {
      std::fill_n(cache + states(row), states(1), 0.0f);
    }
  }
}

}  // namespace lasp::cpu
