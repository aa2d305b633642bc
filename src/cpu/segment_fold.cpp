// One order of sums for every split (Problem::segment). The whole sequence is cut at multiples of the segment, and
// ranks begin at such places only. Within a segment the scan starts from zero; the state that enters the next one
// is
//
//     S_{i+1} = F_i S_i + P_i       F_i: decay over segment i, P_i: its own end state
//
// applied one after the other from a sequence's first segment to its last, on whichever rank each of them is: a
// rank hands on S, never a map of its own composed of several. To the state that enters a
// chunk, S_i is added with its decay from the segment's start. Every sum so has the same terms in the same order
// for one rank and for many; only the ring and the all-scan, which is the ring in pieces, keep that order.
#include <algorithm>

#include "cpu_backend.h"

namespace lasp::cpu {

// The segments of each sequence on this rank, in the scan's order.
void CpuBackend::find_chains() {
  if (problem_.segment == 0) return;
  for (std::vector<Chain> &chains : chains_) chains.clear();
  const auto count = static_cast<int64_t>(partition_.segments.size());
  for (int64_t first = 0; first < count;) {
    const Segment &segment = partition_.segments[static_cast<size_t>(first)];
    int64_t end = first + 1;
    while (end < count && partition_.segments[static_cast<size_t>(end)].sequence == segment.sequence) ++end;
    chains_[0].push_back({segment.path, first, end - first, waits(false, first)});
    chains_[1].push_back({segment.path, end - 1, end - first, waits(true, end - 1)});
    first = end;
  }
}

// From the segments' own end states to the states that enter them, in place, for the chains that begin on this rank
// or
// (`open`) for those that `incoming` enters.
void CpuBackend::fold(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out,
                      const float *incoming, bool open) {
  const std::vector<Chain> &chains = chains_[direction.reversed ? 1 : 0];
  const int64_t heads = problem_.heads;
  parallel(static_cast<int64_t>(chains.size()) * heads, [&](int64_t item, Scratch &s) {
    const Chain &chain = chains[static_cast<size_t>(item / heads)];
    if (chain.open == open) fold_chain(w, direction, out, incoming, chain, static_cast<int32_t>(item % heads), s);
  });
}

void CpuBackend::fold_chain(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out,
                            const float *incoming, const Chain &chain, int32_t head, Scratch &s) const {
  const int64_t heads = problem_.heads, size = problem_.state_size(), factors = math_.factor_size();
  const int64_t step = direction.reversed ? -1 : 1, last = chain.first + (chain.count - 1) * step;
  const bool leaves =
      out.state != nullptr && paths(direction.reversed)[static_cast<size_t>(chain.row)].producer == last;
  // Forward, the last chunk gives the final state: final_from_last_chunk.
  const Segment &end = partition_.segments[static_cast<size_t>(last)];
  const bool finishes = direction.reversed && direction.last_state != nullptr && end.starts_here;
  float *entering = s.joined, *leaving = s.part;
  if (chain.open) std::copy_n(incoming + (chain.row * heads + head) * size, size, entering);
  for (int64_t i = 0; i < chain.count; ++i) {
    const int64_t segment = chain.first + i * step, at = segment * heads + head;
    float *tail = w.tail + at * size;
    if (i == 0 && !chain.open) {  // begins the sequence: its own end state has all that came before
      if (chain.count == 1) return;
      std::copy_n(tail, size, entering);
      continue;
    }
    if (segment != last || leaves || finishes) {
      math_.kernels().affine(leaving, {w.tail_factor + at * factors, factors == 1 ? 0 : 1}, entering, tail,
                             problem_.head_dim_k, problem_.head_dim_v);
    }
    std::copy_n(entering, size, tail);
    std::swap(entering, leaving);
  }
  if (leaves) std::copy_n(entering, size, out.state + (chain.row * heads + head) * size);
  if (finishes) direction.put_last(entering, size, (end.sequence * heads + head) * size);
}

// The state that leaves this rank, from the one that enters it, on rows [begin, end) of [rows * H * K]. Where a
// sequence begins on this rank `to` already holds it. What `fold` needs is left as it is.
void CpuBackend::pass_through(float *to, const float *incoming, int64_t begin, int64_t end) {
  const int64_t values = problem_.head_dim_v, keys = problem_.head_dim_k, heads = problem_.heads;
  const int64_t factors = math_.factor_size(), step = passed_reversed_ ? -1 : 1;
  const std::vector<RowPath> &rows = paths(passed_reversed_);
  const auto chain_of = [&](int64_t row) {
    const int64_t consumer = rows[static_cast<size_t>(row)].consumer;
    const std::vector<Chain> &chains = chains_[passed_reversed_ ? 1 : 0];
    return std::find_if(chains.begin(), chains.end(),
                        [&](const Chain &c) { return c.open && c.first == consumer; });
  };
  for (int64_t at = begin; at < end;) {
    const int64_t stop = std::min(end, (at / keys + 1) * keys), key = at % keys, head = at / keys % heads;
    const RowPath &path = rows[static_cast<size_t>(at / keys / heads)];
    if (path.producer < 0) {
      std::copy_n(incoming + at * values, (stop - at) * values, to + at * values);
    } else if (path.consumer >= 0) {
      const Chain &chain = *chain_of(at / keys / heads);
      const float *entering = incoming + at * values;
      // A later sequence may end the row; then this one's state goes nowhere.
      const bool leaves = chain.first + (chain.count - 1) * step == path.producer;
      for (int64_t i = 0; leaves && i < chain.count; ++i) {
        const int64_t segment = (chain.first + i * step) * heads + head;
        const Factor factor = {passed_.tail_factor + segment * factors + (factors == 1 ? 0 : key),
                               factors == 1 ? 0 : 1};
        math_.kernels().affine(to + at * values, factor, entering, passed_.tail + (segment * keys + key) * values,
                               stop - at, values);
        entering = to + at * values;
      }
    }
    at = stop;
  }
}

}  // namespace lasp::cpu
