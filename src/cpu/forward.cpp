// The forward pass over a rank's chunks and heads.
#include <algorithm>
#include <atomic>

#include "cpu_backend.h"
#include "gemm.h"

namespace lasp::cpu {

// Each chunk's own part of the state, and its decay.
void CpuBackend::state_parts(const void *k, const void *v, const ScanWorkspace &w, FunctionRef<void()> between) {
  const Problem &p = problem_;
  const int64_t size = math_.factor_size();
  const auto part = [&](int64_t item, Scratch &s) {
    const auto head = static_cast<int32_t>(item % p.heads);
    const TokenSpan span = tokens_of(item / p.heads);
    math_.find_decay(s, span, head, kDecayOut);
    if (math_.has_logs()) std::copy_n(s.decay.log_total, size, w.logs + item * size);
    const Tile key = math_.load(k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
    const Tile value = math_.load(v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
    math_.state_part(s, span, key, value, w.slots + item * p.state_size());
  };
  parallel(chunks() * p.heads, part, between);
}

// A segment from its first chunk to its last, for a few neighbouring heads in turn; only where the whole sequence
// is here.
void CpuBackend::walk_forward(const ForwardBuffers &b, int64_t index, int32_t first, Scratch &s) const {
  const Problem &p = problem_;
  const Segment &segment = partition_.segments[static_cast<size_t>(index)];
  const int64_t count = walk_heads_ * p.state_size(), at = (segment.sequence * p.heads + first) * p.state_size();
  if (b.initial_state != nullptr) {
    std::copy_n(b.initial_state + at, count, s.run);
  } else {
    std::fill_n(s.run, count, 0.0);
  }
  for (int64_t n = segment.first_chunk; n < segment.first_chunk + segment.num_chunks; ++n) {
    const bool zero = n == segment.first_chunk && b.initial_state == nullptr;
    for (int32_t i = 0; i < walk_heads_; ++i) walk_chunk(b, n, first + i, s.run + i * p.state_size(), zero, s);
  }
  if (b.final_state != nullptr) std::copy_n(s.run, count, b.final_state + at);
}

// One chunk of a walk: its output, and the running state moved on.
void CpuBackend::walk_chunk(const ForwardBuffers &b, int64_t chunk, int32_t head, double *run, bool zero,
                            Scratch &s) const {
  const Problem &p = problem_;
  const TokenSpan span = tokens_of(chunk);
  math_.find_decay(s, span, head, kDecayAll);
  const Tile q = math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q);
  const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
  const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
  const OutTile o = math_.sink(b.o, p.o, head, span, p.head_dim_v, s.o, p.dtype, true);
  math_.local_output(s, span, q, k, v, o);
  math_.state_part(s, span, k, v, s.part);
  math_.kernels().scan_step(s.part, run, math_.total(s), p.head_dim_k, p.head_dim_v, ends_sequence(chunk));
  if (!zero) math_.state_output(s, span, q, s.part, o);
  math_.flush(o, b.o, p.o, head, span, p.head_dim_v, p.dtype);
  if (!p.backward || !p.cache_chunks) return;
  float *before = static_cast<float *>(b.state_cache) + states(chunk) + head * p.state_size();
  math_.kernels().store_rows(before, 0, s.part, 0, 1, p.state_size(), DType::kFloat32, math_.streams());
}

// Takes an item's output from one stage to another: the tokens' own part, then the part of the state before. The
// arithmetic is the same whether or not the two are done at once.
void CpuBackend::forward_item(const ForwardBuffers &b, const ForwardWorkspace &w, int64_t item, Done from, Done to,
                              const float *incoming, Scratch &s) const {
  const Problem &p = problem_;
  const auto head = static_cast<int32_t>(item % p.heads);
  const int64_t chunk = item / p.heads;
  const TokenSpan span = tokens_of(chunk);
  const bool at_once = from == Done::kNothing && to == Done::kAll;
  OutTile o = math_.sink(b.o, p.o, head, span, p.head_dim_v, s.o, p.dtype, at_once);
  if (!at_once && o.data == s.o) {
    const int64_t ld = int64_t{p.heads} * p.head_dim_v;
    o = {w.staged_o + (span.row * p.tokens + span.token) * ld + int64_t{head} * p.head_dim_v, static_cast<int>(ld)};
  }
  const bool local = from == Done::kNothing, whole = to == Done::kAll;
  math_.find_decay(s, span, head, (local ? kDecayScores : 0u) | (whole ? kDecayIn : 0u));
  const Tile q = math_.load(b.q, p.q, p.q_head(head), span, p.head_dim_k, s.q);
  if (local) {
    const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
    const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
    math_.local_output(s, span, q, k, v, o);
  }
  if (!whole) return;
  const ScanDirection direction{false, b.initial_state, nullptr};
  if (!enters_with_zero(direction, chunk, incoming)) {
    math_.state_output(s, span, q, w.scan.slots + item * p.state_size(), o);
  }
  math_.flush(o, b.o, p.o, head, span, p.head_dim_v, p.dtype);
}

void CpuBackend::forward_alone(const ForwardBuffers &b) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  if (problem_.bidirectional || walk_heads_ == 0) {
    forward_states(b, {}, {});
    return forward_finish(b, {});
  }
  const int64_t walks = problem_.heads / walk_heads_;
  parallel(static_cast<int64_t>(partition_.segments.size()) * walks, [&](int64_t item, Scratch &s) {
    const auto first = static_cast<int32_t>(item % walks) * walk_heads_;
    walk_forward(b, walk_order_[static_cast<size_t>(item / walks)], first, s);
  });
  keep_incoming(b, nullptr);
}

void CpuBackend::forward_states(const ForwardBuffers &b, const AffineMapView &left, const AffineMapView &right) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  const ForwardWorkspace w = forward_workspace(b);
  state_parts(b.k, b.v, w.scan);
  if (problem_.bidirectional) return bidirectional_sums(w.scan.slots, w.sums, b.initial_state, false, left, right);
  scan(w.scan, {false, b.initial_state, b.final_state}, left);
  passed_ = w.scan;
  passed_reversed_ = false;
  std::fill(done_.begin(), done_.end(), Done::kNothing);
}

void CpuBackend::forward_ahead(const ForwardBuffers &b, const Progress &progress) {
  if (problem_.bidirectional) return;
  SerialBlas serial;
  const ForwardWorkspace w = forward_workspace(b);
  std::atomic<bool> arrived{false};
  const auto look = [&] {
    if (!arrived.load(std::memory_order_relaxed) && progress()) arrived.store(true, std::memory_order_relaxed);
  };
  parallel(
      chunks() * problem_.heads,
      [&](int64_t item, Scratch &s) {
        if (arrived.load(std::memory_order_relaxed)) return;
        const auto head = static_cast<int32_t>(item % problem_.heads);
        const int64_t chunk = item / problem_.heads,
                      segment = partition_.chunks[static_cast<size_t>(chunk)].segment;
        const bool later = waits(false, segment) && depends(w.scan, false, chunk, head);
        const Done to = later ? Done::kLocal : Done::kAll;
        if (!later) join_incoming(w.scan, false, nullptr, chunk, head);
        forward_item(b, w, item, Done::kNothing, to, nullptr, s);
        done_[static_cast<size_t>(item)] = to;
      },
      look);
}

void CpuBackend::forward_finish(const ForwardBuffers &b, const Incoming &incoming) {
  SerialBlas serial;
  const ForwardWorkspace w = forward_workspace(b);
  if (problem_.bidirectional) return bidirectional_outputs(b, w, incoming);
  keep_incoming(b, incoming.left);
  if (problem_.segment > 0) fold(w.scan, {false, b.initial_state, nullptr}, {}, incoming.left, true);
  parallel(chunks() * problem_.heads, [&](int64_t item, Scratch &s) {
    const Done done = done_[static_cast<size_t>(item)];
    const int64_t chunk = item / problem_.heads;
    if (done != Done::kAll) {
      join_incoming(w.scan, false, incoming.left, chunk, static_cast<int32_t>(item % problem_.heads));
      forward_item(b, w, item, done, Done::kAll, incoming.left, s);
    }
    // Of other segments the scan has written it.
    if (consumes(false, partition_.chunks[static_cast<size_t>(chunk)].segment))
      final_from_last_chunk(b, w.scan.slots, item, s);
  });
}

// The final state out of the state that enters a sequence's last chunk, where that is the item's: the same bits
// whether the states come from a scan, an exchange or the cache.
void CpuBackend::final_from_last_chunk(const ForwardBuffers &b, const float *entering, int64_t item,
                                       Scratch &s) const {
  const Problem &p = problem_;
  const int64_t chunk = item / p.heads;
  if (b.final_state == nullptr || !ends_sequence(chunk)) return;
  const Segment &segment = segment_of(chunk);
  const auto head = static_cast<int32_t>(item % p.heads);
  const TokenSpan span = tokens_of(chunk);
  math_.find_decay(s, span, head, kDecayOut);
  const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
  const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
  math_.state_part(s, span, k, v, s.part);
  std::copy_n(entering + item * p.state_size(), p.state_size(), s.run);
  math_.kernels().scan_step(s.part, s.run, math_.total(s), p.head_dim_k, p.head_dim_v, false);
  std::copy_n(s.run, p.state_size(), b.final_state + (segment.sequence * p.heads + head) * p.state_size());
}

// With the incoming state cached: the forward pass again, up to the exchange and on from it. With chunk states
// cached: outputs at once; a final state takes its last chunk's part anew.
void CpuBackend::forward_from_cache(const ForwardBuffers &b) {
  SerialBlas serial;
  math_.begin_pass(b.decay);
  const ForwardWorkspace w = forward_workspace(b);
  if (problem_.bidirectional) return bidirectional_from_totals(b, static_cast<const float *>(b.state_cache));
  const auto *cache = static_cast<const float *>(b.state_cache);
  if (!problem_.cache_chunks) {
    forward_states(b, {}, {});
    return forward_finish(b, {.left = cache});
  }
  const Problem &p = problem_;
  parallel(chunks() * p.heads, [&](int64_t item, Scratch &s) {
    // Only "not null" matters of the incoming state here: the slot already holds it.
    forward_item(b, w, item, Done::kNothing, Done::kAll, cache, s);
    final_from_last_chunk(b, cache, item, s);
  });
}

}  // namespace lasp::cpu
