// The unmasked form: every token reads one state, the sum over its whole sequence. A rank adds up its own part of
// each sequence; what comes from the left and from the right is added to that.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu_backend.h"
#include "gemm.h"

namespace lasp::cpu {

// Adds the chunks' parts of each segment (the slots hold other sums afterwards), and `own` (the initial state, or
// the gradient of the final state) on the rank that holds that end of the sequence. Those sums are also what other
// ranks need: a segment that has that end here is the last one on its side that anybody asks for.
void CpuBackend::bidirectional_sums(float *slots, float *sums, const float *own, bool at_end,
                                    const AffineMapView &left, const AffineMapView &right) {
  const int64_t heads = problem_.heads, size = problem_.state_size();
  parallel(static_cast<int64_t>(partition_.segments.size()) * heads, [&](int64_t item, Scratch &s) {
    const int64_t index = item / heads, head = item % heads;
    const Segment &segment = partition_.segments[static_cast<size_t>(index)];
    const bool joins = own != nullptr && (at_end ? segment.ends_here : segment.starts_here);
    if (joins) {
      std::copy_n(own + (segment.sequence * heads + head) * size, size, s.run);
    } else {
      std::fill_n(s.run, size, 0.0);
    }
    for (int64_t n = segment.first_chunk; n < segment.first_chunk + segment.num_chunks; ++n) {
      math_.kernels().scan_step(slots + (n * heads + head) * size, s.run, {&kKeepsAll, 0}, problem_.head_dim_k,
                                problem_.head_dim_v, false);
    }
    float *sum = sums + item * size;
    std::copy_n(s.run, size, sum);
    const auto row = static_cast<size_t>(segment.path);
    const int64_t to = (segment.path * heads + head) * size;
    if (left.state != nullptr && partition_.forward[row].producer == index) std::copy_n(sum, size, left.state + to);
    if (right.state != nullptr && partition_.backward[row].producer == index)
      std::copy_n(sum, size, right.state + to);
  });
  complete_map(left, partition_.forward);
  complete_map(right, partition_.backward);
}

// Without decay a factor is one, or zero where the row resets; a row without tokens passes a state on as it is.
void CpuBackend::complete_map(const AffineMapView &map, const std::vector<RowPath> &rows) const {
  for (size_t row = 0; row < rows.size(); ++row) {
    const auto at = static_cast<int64_t>(row);
    if (map.transition != nullptr)
      std::fill_n(map.transition + factors(at), factors(1), rows[row].reset ? kForgetsAll : kKeepsAll);
    if (map.state != nullptr && rows[row].producer < 0) std::fill_n(map.state + states(at), states(1), 0.0f);
  }
}

// totals = sums + what came in, and out to the last state on the rank that holds that end of the sequence.
void CpuBackend::bidirectional_totals(float *totals, const float *sums, const Incoming &incoming,
                                      const ScanDirection &direction) {
  const int64_t heads = problem_.heads, size = problem_.state_size();
  parallel(static_cast<int64_t>(partition_.segments.size()) * heads, [&](int64_t item, Scratch &) {
    const int64_t head = item % heads;
    const Segment &segment = partition_.segments[static_cast<size_t>(item / heads)];
    float *total = totals + item * size;
    if (total != sums + item * size) std::copy_n(sums + item * size, size, total);
    const int64_t from = (segment.path * heads + head) * size;
    const auto join = [&](const float *state) {
      math_.kernels().affine(total, {&kKeepsAll, 0}, total, state + from, problem_.head_dim_k, problem_.head_dim_v);
    };
    if (incoming.left != nullptr && !segment.starts_here) join(incoming.left);
    if (incoming.right != nullptr && !segment.ends_here) join(incoming.right);
    if (direction.last_state != nullptr && (direction.reversed ? segment.starts_here : segment.ends_here)) {
      direction.put_last(total, size, (segment.sequence * heads + head) * size);
    }
  });
}

void CpuBackend::bidirectional_outputs(const ForwardBuffers &b, const ForwardWorkspace &w,
                                       const Incoming &incoming) {
  float *totals = problem_.backward ? static_cast<float *>(b.state_cache) : w.sums;
  bidirectional_totals(totals, w.sums, incoming, {false, b.initial_state, b.final_state});
  bidirectional_reads(b, totals);
}

void CpuBackend::bidirectional_from_totals(const ForwardBuffers &b, const float *totals) {
  const int64_t heads = problem_.heads;
  for (size_t i = 0; i < partition_.segments.size() && b.final_state != nullptr; ++i) {
    const Segment &segment = partition_.segments[i];
    if (!segment.ends_here) continue;
    std::copy_n(totals + states(static_cast<int64_t>(i)), heads * problem_.state_size(),
                b.final_state + states(segment.sequence));
  }
  bidirectional_reads(b, totals);
}

// o = scale * q S
void CpuBackend::bidirectional_reads(const ForwardBuffers &b, const float *totals) {
  const Problem &p = problem_;
  const int keys = p.head_dim_k, values = p.head_dim_v;
  parallel(chunks() * p.heads, [&](int64_t item, Scratch &s) {
    const auto head = static_cast<int32_t>(item % p.heads);
    const int64_t chunk = item / p.heads;
    const TokenSpan span = tokens_of(chunk);
    const Tile q = math_.load(b.q, p.q, p.q_head(head), span, keys, s.q);
    const OutTile o = math_.sink(b.o, p.o, head, span, values, s.o, p.dtype, true);
    gemm(Op::kPlain, Op::kPlain, span.length, values, keys, p.scale, q.data, q.ld, total_of(totals, chunk, head),
         values, 0, o.data, o.ld);
    math_.flush(o, b.o, p.o, head, span, values, p.dtype);
  });
}

const float *CpuBackend::total_of(const float *totals, int64_t chunk, int32_t head) const {
  return totals +
         (partition_.chunks[static_cast<size_t>(chunk)].segment * problem_.heads + head) * problem_.state_size();
}

// dq = scale * d_o S^T: needs no gradient from other ranks.
void CpuBackend::bidirectional_query(const BackwardBuffers &b, int64_t item, Scratch &s) const {
  const Problem &p = problem_;
  const int64_t chunk = item * group_ / p.heads;
  const auto first = static_cast<int32_t>(item * group_ % p.heads);
  const TokenSpan span = tokens_of(chunk);
  const int keys = p.head_dim_k, values = p.head_dim_v;
  for (int32_t head = first; head < first + group_; ++head) {
    const GradientTiles to = output_tiles(b, span, head, s, true);
    const Tile d_o = math_.load(b.d_o, p.d_o, head, span, values, s.d_o);
    math_.row_products(s, to.dq, to.add_dq ? 1 : 0, p.scale, d_o,
                       {total_of(static_cast<const float *>(b.state_cache), chunk, head), values}, span.length,
                       keys, values);
    flush_tiles(b, to, span, chunk, head, true, false, {}, s);
  }
}

void CpuBackend::bidirectional_queries(const BackwardBuffers &b, const std::atomic<bool> &arrived,
                                       FunctionRef<void()> between) {
  parallel(
      chunks() * problem_.heads / group_,
      [&](int64_t item, Scratch &s) {
        if (arrived.load(std::memory_order_relaxed)) return;
        bidirectional_query(b, item, s);
        done_[static_cast<size_t>(item)] = Done::kLocal;
      },
      between);
}

// dk = v dS^T, dv = k dS
void CpuBackend::bidirectional_gradients(const BackwardBuffers &b, const BackwardWorkspace &w,
                                         const Incoming &incoming) {
  const Problem &p = problem_;
  const int keys = p.head_dim_k, values = p.head_dim_v;
  bidirectional_totals(w.sums, w.sums, incoming, backward_in_time(b));
  parallel(chunks() * p.heads / group_, [&](int64_t item, Scratch &s) {
    if (done_[static_cast<size_t>(item)] == Done::kNothing) bidirectional_query(b, item, s);
    const int64_t chunk = item * group_ / p.heads;
    const auto first = static_cast<int32_t>(item * group_ % p.heads);
    const TokenSpan span = tokens_of(chunk);
    for (int32_t head = first; head < first + group_; ++head) {
      const GradientTiles to = output_tiles(b, span, head, s, true);
      const Tile k = math_.load(b.k, p.k, p.k_head(head), span, keys, s.k);
      const Tile v = math_.load(b.v, p.v, p.v_head(head), span, values, s.v);
      const float *total = total_of(w.sums, chunk, head);
      math_.row_products(s, to.dk, to.add_dk ? 1 : 0, 1, v, {total, values}, span.length, keys, values);
      gemm(Op::kPlain, Op::kPlain, span.length, values, keys, 1, k.data, k.ld, total, values, to.add_dv ? 1 : 0,
           to.dv.data, to.dv.ld);
      flush_tiles(b, to, span, chunk, head, false, true, w.head_dg, s);
    }
  });
}

}  // namespace lasp::cpu
