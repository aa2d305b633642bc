// States along a segment, and their gradients back along it, under the delta rule: for one head and some columns.
#include <algorithm>

#include "delta_backend.h"
#include "gemm.h"

namespace lasp::cpu {
namespace {

bool ends(const Segment &segment, bool reversed) { return reversed ? segment.starts_here : segment.ends_here; }

Tile columns_of(Tile tile, int begin) { return {tile.data + begin, tile.ld}; }

// Rows of `count` columns, contiguous, into a matrix, or added to it.
void put_columns(float *matrix, int64_t ld, const double *from, int64_t rows, int64_t count, bool add = false) {
  for (int64_t r = 0; r < rows; ++r) {
    float *to = matrix + r * ld;
    for (int64_t c = 0; c < count; ++c)
      to[c] = static_cast<float>(add ? to[c] + from[r * count + c] : from[r * count + c]);
  }
}

// Into how many parts of at least eight columns a state is cut, where segments and heads alone would not occupy the
// threads.
int parts_of(int64_t columns, int64_t chains, int32_t threads) {
  int parts = 1;
  while (threads > 1 && chains * parts < 2 * threads && columns % (16 * parts) == 0) parts *= 2;
  return parts;
}

}  // namespace

// Each chunk's T'.
void DeltaBackend::solve_chunks(const void *k, const StateWork &w) {
  const Problem &p = problem_;
  parallel(chunks() * p.heads, [&](int64_t item, Scratch &s) {
    const auto head = static_cast<int32_t>(item % p.heads);
    const TokenSpan span = tokens_of(item / p.heads);
    math_.find_decay(s, span, head, kDecayScores);
    delta_.load_beta(s, span, head);
    delta_.find_key_scores(s, span, math_.load(k, p.k, p.k_head(head), span, p.head_dim_k, s.k));
    delta_.solve(s, span, square(w.solved, item));
  });
}

// Into how many parts so many columns of a state or transition are cut. A product of fewer columns may be rounded
// another way, and a walk takes all of them: where there are walks, so do chains, that a pass from the state cache
// gives the same bits.
int DeltaBackend::parts_of_chain(int64_t columns) const {
  const int64_t pairs = static_cast<int64_t>(partition_.segments.size()) * problem_.heads;
  return parts_of(columns, pairs, walk_heads_ > 0 ? 1 : pool_.threads());
}

// Calls body(chain, scratch) for the chains that `entering` names: of states, and with `transitions` of those of
// segments that a state passes through, where another rank asks for them.
template <class Body>
void DeltaBackend::each_chain(bool reversed, const Entering &entering, const AffineMapView &out, bool transitions,
                              const Body &body, FunctionRef<void()> between) {
  const Problem &p = problem_;
  const int64_t pairs = static_cast<int64_t>(partition_.segments.size()) * p.heads;
  const int parts = parts_of_chain(p.head_dim_v), width = p.head_dim_v / parts;
  const int more = transitions ? parts_of_chain(p.head_dim_k) : 0;
  parallel(
      pairs * (parts + more),
      [&](int64_t item, Scratch &s) {
        const auto part = static_cast<int>(item % (parts + more));
        const int64_t pair = item / (parts + more), segment = pair / p.heads;
        const bool of_transition = part >= parts, open = consumes(reversed, segment);
        const int columns = of_transition ? p.head_dim_k / more : width;
        const Chain chain{segment, static_cast<int32_t>(pair % p.heads),
                          (of_transition ? part - parts : part) * columns, columns, of_transition};
        // What a segment does to a state that is not known yet is asked for by the next rank only.
        const bool ahead = open && !entering.open;
        if (ahead ? passes_through(segment) && (of_transition || out.state != nullptr)
                  : !of_transition && open == entering.open)
          body(chain, s);
      },
      between);
}

// The state that a chain starts with, [K, V] of its head; null: zero, or the identity.
const float *DeltaBackend::entry_of(const Chain &chain, bool reversed, const float *first_state,
                                    const Entering &entering) const {
  const Segment &segment = segment_at(chain.segment);
  const bool open = consumes(reversed, chain.segment);
  if (open && !entering.open) return nullptr;
  const float *from = open ? entering.incoming : first_state;
  const int64_t at = open ? segment.path : segment.sequence;
  return from == nullptr ? nullptr : from + states(at) + chain.head * problem_.state_size();
}

// Where a chain's end goes: to other ranks, or to the caller.
void DeltaBackend::leave(const Chain &chain, bool reversed, const AffineMapView &out, float *last_state, bool add,
                         const double *run) const {
  const Segment &segment = segment_at(chain.segment);
  const int64_t values = problem_.head_dim_v, at = chain.head * problem_.state_size() + chain.begin;
  const RowPath &path = paths(reversed)[static_cast<size_t>(segment.path)];
  const auto put = [&](float *to, bool adds) {
    put_columns(to + at, values, run, problem_.head_dim_k, chain.count, adds);
  };
  if (out.state != nullptr && path.producer == chain.segment) put(out.state + states(segment.path), false);
  if (last_state != nullptr && ends(segment, reversed)) put(last_state + states(segment.sequence), add);
}

void DeltaBackend::state_chains(const KeysAndValues &in, const StateWork &w, const float *first_state,
                                float *last_state, const Entering &entering, const AffineMapView &out,
                                float *transitions, FunctionRef<void()> between) {
  const int64_t keys = problem_.head_dim_k;
  each_chain(
      false, entering, out, transitions != nullptr,
      [&](const Chain &chain, Scratch &s) {
        const bool ahead = consumes(false, chain.segment) && !entering.open;
        walk_states(in, w, chain, entry_of(chain, false, first_state, entering), !ahead, s);
        if (chain.of_transition) {
          const int64_t at = (segment_at(chain.segment).path * problem_.heads + chain.head) * keys * keys;
          put_columns(transitions + at + chain.begin, keys, s.run, keys, chain.count);
        } else {
          leave(chain, false, out, last_state, false, s.run);
        }
      },
      between);
}

// Leaves the columns of the state after the segment in s.run. `keep`: those that enter each chunk go to their
// slots.
void DeltaBackend::walk_states(const KeysAndValues &in, const StateWork &w, const Chain &chain, const float *first,
                               bool keep, Scratch &s) const {
  const Problem &p = problem_;
  const Segment &segment = segment_at(chain.segment);
  const int64_t keys = p.head_dim_k, count = chain.count;
  std::fill_n(s.run, keys * count, 0.0);
  for (int64_t r = 0; first != nullptr && r < keys; ++r)
    std::copy_n(first + r * p.head_dim_v + chain.begin, count, s.run + r * count);
  for (int64_t c = 0; chain.of_transition && c < count; ++c) s.run[(chain.begin + c) * count + c] = 1;
  for (int64_t n = segment.first_chunk; n < segment.first_chunk + segment.num_chunks; ++n) {
    const int64_t item = n * p.heads + chain.head;
    const TokenSpan span = tokens_of(n);
    math_.find_decay(s, span, chain.head, kDecayIn | kDecayOut);
    delta_.load_beta(s, span, chain.head);
    const Tile k = math_.load(in.k, p.k, p.k_head(chain.head), span, p.head_dim_k, s.k);
    Tile v;
    if (!chain.of_transition) v = math_.load(in.v, p.v, p.v_head(chain.head), span, chain.count, s.v, chain.begin);
    const bool zero = n == segment.first_chunk && first == nullptr && !chain.of_transition;
    std::copy_n(s.run, keys * count, s.joined);
    delta_.find_written(s, span, square(w.solved, item), math_.decayed_query(s, span, k, s.k_in), v,
                        zero ? nullptr : s.joined, chain.count);
    delta_.state_part(s, span, k, chain.count, s.part);
    math_.kernels().scan_step(s.part, s.run, math_.total(s), keys, count, ends_sequence(n));
    if (!keep) continue;
    float *slot = state_at(w.slots, item) + chain.begin;
    math_.kernels().load_rows(slot, p.head_dim_v, s.part, count, keys, count, DType::kFloat32);
  }
}

// The final state out of the state that enters a sequence's last chunk, where that is the item's. T' is in
// s.solved, beta in s.beta. A product takes as many columns as a chain's does, so that the bits are the same.
// `zero`: nothing enters the chunk.
void DeltaBackend::final_from_last_chunk(const ForwardBuffers &b, int64_t item, bool zero, Scratch &s) const {
  const Problem &p = problem_;
  const int64_t chunk = item / p.heads, keys = p.head_dim_k;
  if (b.final_state == nullptr || !ends_sequence(chunk)) return;
  const auto head = static_cast<int32_t>(item % p.heads);
  const TokenSpan span = tokens_of(chunk);
  math_.find_decay(s, span, head, kDecayIn | kDecayOut);
  const Tile k = math_.load(b.k, p.k, p.k_head(head), span, p.head_dim_k, s.k);
  const Tile v = math_.load(b.v, p.v, p.v_head(head), span, p.head_dim_v, s.v);
  const Tile k_in = math_.decayed_query(s, span, k, s.k_in);
  const float *const from = static_cast<const float *>(b.state_cache) + item * p.state_size();
  float *const to = b.final_state + states(segment_of(chunk).sequence) + head * p.state_size();
  const int columns = p.head_dim_v / parts_of_chain(p.head_dim_v);
  for (int begin = 0; begin < p.head_dim_v; begin += columns) {
    for (int64_t r = 0; r < keys; ++r) {
      std::copy_n(from + r * p.head_dim_v + begin, columns, s.run + r * columns);
      std::copy_n(from + r * p.head_dim_v + begin, columns, s.joined + r * columns);
    }
    delta_.find_written(s, span, s.solved, k_in, columns_of(v, begin), zero ? nullptr : s.joined, columns);
    delta_.state_part(s, span, k, columns, s.part);
    math_.kernels().scan_step(s.part, s.run, math_.total(s), keys, columns, false);
    put_columns(to + begin, p.head_dim_v, s.run, keys, columns);
  }
}

void DeltaBackend::gradient_chains(const BackwardBuffers &b, const BackwardWorkspace &w, const Entering &entering,
                                   const AffineMapView &out) {
  each_chain(true, entering, out, false, [&](const Chain &chain, Scratch &s) {
    const bool ahead = consumes(true, chain.segment) && !entering.open;
    walk_gradients(b, w, chain, entry_of(chain, true, b.d_final_state, entering), !ahead, s);
    leave(chain, true, out, ahead ? nullptr : b.d_initial_state, b.adds(LASP_ADD_D_INITIAL_STATE), s.run);
  });
}

void DeltaBackend::walk_gradients(const BackwardBuffers &b, const BackwardWorkspace &w, const Chain &chain,
                                  const float *first, bool keep, Scratch &s) const {
  const Problem &p = problem_;
  const Segment &segment = segment_at(chain.segment);
  const int64_t keys = p.head_dim_k, count = chain.count;
  const int64_t last = segment.first_chunk + segment.num_chunks - 1;
  std::fill_n(s.run, keys * count, 0.0);
  for (int64_t r = 0; first != nullptr && r < keys; ++r)
    std::copy_n(first + r * p.head_dim_v + chain.begin, count, s.run + r * count);
  for (int64_t n = last; n >= segment.first_chunk; --n) {
    const int64_t item = n * p.heads + chain.head;
    const TokenSpan span = tokens_of(n);
    math_.find_decay(s, span, chain.head, kDecayIn | kDecayOut);
    delta_.load_beta(s, span, chain.head);
    const Tile q = math_.load(b.q, p.q, p.q_head(chain.head), span, p.head_dim_k, s.q);
    const Tile k = math_.load(b.k, p.k, p.k_head(chain.head), span, p.head_dim_k, s.k);
    const Tile d_o = math_.load(b.d_o, p.d_o, chain.head, span, chain.count, s.d_o, chain.begin);
    const bool zero = n == last && first == nullptr;
    std::copy_n(s.run, keys * count, s.joined);
    delta_.find_d_written(s, span, square(w.states.solved, item), square(w.scores, item),
                          math_.decayed_key(s, span, k, s.k_out), d_o, zero ? nullptr : s.joined, chain.count);
    delta_.gradient_part(s, span, math_.decayed_query(s, span, q, s.q_in), math_.decayed_query(s, span, k, s.k_in),
                         d_o, chain.count, s.part);
    math_.kernels().scan_step(s.part, s.run, math_.total(s), keys, count, false);
    if (!keep) continue;
    float *slot = state_at(w.slots, item) + chain.begin;
    math_.kernels().load_rows(slot, p.head_dim_v, s.part, count, keys, count, DType::kFloat32);
  }
}

// The rest of the rank's map: transitions, transposed for gradients, and rows without tokens. Nobody asks for what
// a sequence leaves behind that ends here.
void DeltaBackend::complete_map(const AffineMapView &out, bool reversed, const float *transitions) const {
  if (out.state == nullptr) return;
  const int64_t keys = problem_.head_dim_k, size = problem_.heads * keys * keys;
  const std::vector<RowPath> &rows = paths(reversed);
  for (int64_t row = 0; row < partition_.rows(); ++row) {
    const RowPath &path = rows[static_cast<size_t>(row)];
    const bool through = path.producer >= 0 && passes_through(path.producer);
    const bool chained = path.producer >= 0 && (through || !consumes(reversed, path.producer));
    if (!chained) std::fill_n(out.state + states(row), states(1), 0.0f);
    float *to = out.transition + row * size;
    const float *from = transitions == nullptr ? nullptr : transitions + row * size;
    if (path.producer < 0) {
      std::fill_n(to, size, 0.0f);
      for (int64_t i = 0; i < problem_.heads * keys; ++i) to[i * keys + i % keys] = 1;
    } else if (!through) {
      std::fill_n(to, size, 0.0f);
    } else if (!reversed) {
      if (to != from) std::copy_n(from, size, to);
    } else {
      for (int64_t i = 0; i < size; ++i)
        to[i] = from[i / keys / keys * keys * keys + i % keys * keys + i / keys % keys];
    }
  }
}

}  // namespace lasp::cpu
