// The scan over a rank's chunks: from each chunk's own part of the state to the state that enters each chunk, and
// to what the rank does to a state that passes through it.
#include <algorithm>
#include <cstring>

#include "cpu_backend.h"

namespace lasp::cpu {
namespace {

bool begins(const Segment &segment, bool reversed) { return reversed ? segment.ends_here : segment.starts_here; }
bool ends(const Segment &segment, bool reversed) { return reversed ? segment.starts_here : segment.ends_here; }

}  // namespace

bool CpuBackend::consumes(bool reversed, int64_t index) const {
  const Segment &segment = partition_.segments[static_cast<size_t>(index)];
  if (problem_.segment > 0) return !begins(segment, reversed);
  return paths(reversed)[static_cast<size_t>(segment.path)].consumer == index;
}

// Whether the scan finds the state that leaves the segment's sequence, in scan order, by itself.
bool CpuBackend::ends_alone(bool reversed, int64_t index) const {
  return !consumes(reversed, index) && ends(partition_.segments[static_cast<size_t>(index)], reversed);
}

bool CpuBackend::waits(bool reversed, int64_t index) const {
  const Segment &segment = partition_.segments[static_cast<size_t>(index)];
  const int64_t consumer = paths(reversed)[static_cast<size_t>(segment.path)].consumer;
  return consumer >= 0 && partition_.segments[static_cast<size_t>(consumer)].sequence == segment.sequence;
}

int64_t CpuBackend::entry_of(int64_t segment) const {
  return problem_.segment > 0 ? segment : partition_.segments[static_cast<size_t>(segment)].path;
}

void CpuBackend::place_scan(Carver &carver, ScanWorkspace &w, bool reversed, bool slots) const {
  if (slots) w.slots = carver.take<float>(states(most_chunks()));
  const bool consumer = may_consume_[reversed];
  const int64_t entries = !consumer ? 0 : problem_.segment > 0 ? most_segments() : partition_.rows();
  w.entry_decay = carver.take<float>(consumer ? factors(most_chunks()) : 0);
  w.tail = carver.take<float>(states(entries));
  w.tail_factor = carver.take<float>(factors(entries));
}

void CpuBackend::scan(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out) {
  fill_factors(w, direction, out);
  // States are cut into slices of keys where segments and heads alone would not occupy the threads.
  const int64_t whole = static_cast<int64_t>(partition_.segments.size()) * problem_.heads;
  int64_t slices = 1;
  while (whole * slices < 4 * pool_.threads() && problem_.head_dim_k % (slices * 16) == 0) slices *= 2;
  const int64_t keys = problem_.head_dim_k / slices;
  parallel(whole * slices, [&](int64_t item, Scratch &s) {
    const int64_t pair = item / slices;
    scan_slice(w, direction, out, pair / problem_.heads, static_cast<int32_t>(pair % problem_.heads),
               item % slices * keys, keys, s.run);
  });
  if (problem_.segment > 0) fold(w, direction, out, nullptr, false);
}

// The decay from a consumer segment's first token to each of its chunks, and to its end.
void CpuBackend::find_entry_decay(const ScanWorkspace &w, bool reversed, int64_t index, int32_t head,
                                  Scratch &s) const {
  const Segment &segment = partition_.segments[static_cast<size_t>(index)];
  const int64_t size = math_.factor_size(), heads = problem_.heads;
  int64_t tokens = 0;
  std::fill_n(s.log_total, size, 0.0);
  for (int64_t i = 0; i < segment.num_chunks; ++i) {
    const int64_t n = segment.first_chunk + (reversed ? segment.num_chunks - 1 - i : i);
    const int64_t at = (n * heads + head) * size;
    math_.factor_of(w.entry_decay + at, head, tokens, s.log_total);
    tokens += partition_.chunks[static_cast<size_t>(n)].length;
    if (math_.has_logs()) {
      for (int64_t c = 0; c < size; ++c) s.log_total[c] += w.logs[at + c];
    }
  }
  math_.factor_of(w.tail_factor + (entry_of(index) * heads + head) * size, head, tokens, s.log_total);
}

// The rank's factor for each row, and what entering states need.
void CpuBackend::fill_factors(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out) {
  const int64_t size = math_.factor_size(), heads = problem_.heads;
  if (problem_.segment > 0) {  // maps are applied segment by segment: the rank's own is never formed
    return parallel(static_cast<int64_t>(partition_.segments.size()) * heads, [&](int64_t item, Scratch &s) {
      if (consumes(direction.reversed, item / heads))
        find_entry_decay(w, direction.reversed, item / heads, static_cast<int32_t>(item % heads), s);
    });
  }
  parallel(partition_.rows() * heads, [&](int64_t item, Scratch &s) {
    const RowPath &path = paths(direction.reversed)[static_cast<size_t>(item / heads)];
    const auto head = static_cast<int32_t>(item % heads);
    float *factor = out.transition == nullptr ? nullptr : out.transition + item * size;
    if (factor != nullptr) std::fill_n(factor, size, path.producer < 0 ? kKeepsAll : kForgetsAll);
    if (path.producer < 0 && out.state != nullptr) {
      std::fill_n(out.state + item * problem_.state_size(), problem_.state_size(), 0.0f);
    }
    if (path.consumer < 0) return;
    find_entry_decay(w, direction.reversed, path.consumer, head, s);
    // A row that is one segment passes the state through; any other row's last sequence begins here.
    if (factor != nullptr && path.producer == path.consumer) {
      std::copy_n(w.tail_factor + item * size, size, factor);
    }
  });
}

void CpuBackend::scan_slice(const ScanWorkspace &w, const ScanDirection &direction, const AffineMapView &out,
                            int64_t index, int32_t head, int64_t key_begin, int64_t keys, double *run) {
  const Segment &segment = partition_.segments[static_cast<size_t>(index)];
  const int64_t heads = problem_.heads, values = problem_.head_dim_v, size = math_.factor_size();
  const int64_t count = keys * values, slice = key_begin * values;
  const auto at = [&](int64_t n) { return (n * heads + head) * problem_.state_size() + slice; };
  if (begins(segment, direction.reversed) && direction.first_state != nullptr) {
    std::copy_n(direction.first_state + at(segment.sequence), count, run);
  } else {
    std::fill_n(run, count, 0.0);
  }
  alignas(kAlignment) float factor[kMaxHeadDim];
  for (int64_t i = 0; i < segment.num_chunks; ++i) {
    const int64_t n = segment.first_chunk + (direction.reversed ? segment.num_chunks - 1 - i : i);
    const double *log = math_.has_logs() ? w.logs + (n * heads + head) * size : nullptr;
    math_.factor_of(factor, head, partition_.chunks[static_cast<size_t>(n)].length, log);
    const Factor decay = {size == 1 ? factor : factor + key_begin, size == 1 ? 0 : 1};
    const bool from_slot = !direction.reversed && ends_sequence(n);  // as final_from_last_chunk does
    math_.kernels().scan_step(w.slots + at(n), run, decay, keys, values, from_slot);
  }
  const bool consumer = consumes(direction.reversed, index);
  const int64_t producer = paths(direction.reversed)[static_cast<size_t>(segment.path)].producer;
  if (producer == index && out.state != nullptr) std::copy_n(run, count, out.state + at(segment.path));
  // With Problem::segment the first one of a sequence hands its state to the next by its entry.
  const bool hands_on = problem_.segment > 0 && !ends(segment, direction.reversed) && producer != index;
  if (consumer || hands_on) std::copy_n(run, count, w.tail + at(entry_of(index)));
  if (!ends_alone(direction.reversed, index)) return;
  if (direction.last_state != nullptr) direction.put_last(run, count, at(segment.sequence));
  if (w.ends != nullptr) std::copy_n(run, count, w.ends + at(index));
}

void CpuBackend::finish_tails(const ScanWorkspace &w, const ScanDirection &direction, const float *incoming) {
  if (problem_.segment > 0) return fold(w, direction, {}, incoming, true);
  if (direction.last_state == nullptr) return;
  const int64_t heads = problem_.heads, size = math_.factor_size();
  parallel(partition_.rows() * heads, [&](int64_t item, Scratch &s) {
    const RowPath &path = paths(direction.reversed)[static_cast<size_t>(item / heads)];
    if (path.consumer < 0) return;
    const Segment &segment = partition_.segments[static_cast<size_t>(path.consumer)];
    if (!ends(segment, direction.reversed)) return;
    const float *tail = w.tail + item * problem_.state_size();
    const int64_t to = (segment.sequence * heads + item % heads) * problem_.state_size();
    if (incoming != nullptr) {
      math_.kernels().affine(s.part, {w.tail_factor + item * size, size == 1 ? 0 : 1},
                             incoming + item * problem_.state_size(), tail, problem_.head_dim_k,
                             problem_.head_dim_v);
    }
    direction.put_last(incoming == nullptr ? tail : s.part, problem_.state_size(), to);
  });
}

bool CpuBackend::depends(const ScanWorkspace &w, bool reversed, int64_t chunk, int32_t head) const {
  if (!consumes(reversed, partition_.chunks[static_cast<size_t>(chunk)].segment)) return false;
  const float *decay = w.entry_decay + (chunk * problem_.heads + head) * math_.factor_size();
  return !std::all_of(decay, decay + math_.factor_size(), forgets_all);
}

void CpuBackend::join_incoming(const ScanWorkspace &w, bool reversed, const float *incoming, int64_t chunk,
                               int32_t head) const {
  if (problem_.segment > 0) incoming = w.tail;
  if (incoming == nullptr || !depends(w, reversed, chunk, head)) return;
  const int64_t heads = problem_.heads, size = math_.factor_size();
  float *slot = w.slots + (chunk * heads + head) * problem_.state_size();
  const int64_t entry = entry_of(partition_.chunks[static_cast<size_t>(chunk)].segment);
  const float *from = incoming + (entry * heads + head) * problem_.state_size();
  math_.kernels().affine(slot, {w.entry_decay + (chunk * heads + head) * size, size == 1 ? 0 : 1}, from, slot,
                         problem_.head_dim_k, problem_.head_dim_v);
}

// Whether the state that enters a chunk is known to be zero, so that its products can be left out.
bool CpuBackend::enters_with_zero(const ScanDirection &direction, int64_t chunk, const float *incoming) const {
  const int64_t index = partition_.chunks[static_cast<size_t>(chunk)].segment;
  const Segment &segment = partition_.segments[static_cast<size_t>(index)];
  const int64_t first = segment.first_chunk + (direction.reversed ? segment.num_chunks - 1 : 0);
  if (chunk != first) return false;
  if (begins(segment, direction.reversed)) return direction.first_state == nullptr;
  return problem_.segment == 0 && incoming == nullptr;
}

}  // namespace lasp::cpu
