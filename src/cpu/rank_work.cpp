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

RankWork::RankWork(const Problem &problem, const TokenPartition &partition, ThreadPool &pool,
                   const Kernels &kernels)
    : problem_(problem),
      map_(affine_map_of(problem)),
      partition_(partition),
      pool_(pool),
      math_(problem, kernels),
      group_(heads_in_group(problem)) {
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
  for (int32_t t = 0; t < pool.threads(); ++t) {
    scratch_.push_back(std::make_unique<Scratch>(problem, std::max(walk_heads_, 1)));
  }
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
