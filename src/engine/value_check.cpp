#include "engine/value_check.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/value_probe.h"

namespace lasp {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

const char *name_of(ValueFault fault) {
  switch (fault) {
    case ValueFault::kNan: return "NaN";
    case ValueFault::kInfinity: return "infinity";
    case ValueFault::kAboveZero: break;
  }
  return "a decay above 0";
}

// Offsets that lie on a device, which no call has looked at before.
Packing host_packing(const Packing &packing, const TokenRanges &ranges, Device &device, lasp_stream stream,
                     std::vector<int64_t> &room) {
  const int64_t total = ranges.total(), parts = parts_of_each(ranges);
  if (!packing.on_device) return packing;
  const auto count = static_cast<size_t>(packing.sequences) + 1, width = size_t{packing.wide ? 8U : 4U};
  room.resize(count);
  device.read(room.data(), packing.offsets, count * width, stream);
  const Packing read{room.data(), packing.sequences, packing.wide, false};
  if (read[0] != 0) throw fail(LASP_ERROR_VALUES, "packing.cu_seqlens[0] = %lld: must be 0", ll(read[0]));
  for (int64_t n = 1; n <= read.sequences; ++n)
    if (read[n] < read[n - 1])
      throw fail(LASP_ERROR_VALUES, "packing.cu_seqlens[%lld] = %lld: less than the offset before it, %lld", ll(n),
                 ll(read[n]), ll(read[n - 1]));
  if (read[read.sequences] > total)
    throw fail(LASP_ERROR_VALUES, "packing.cu_seqlens[%lld] = %lld: the ranks hold %lld tokens in all",
               ll(read.sequences), ll(read[read.sequences]), ll(total));
  for (int64_t n = 1; ranges.each && n <= read.sequences; ++n)
    if (read[n] % parts != 0)
      throw fail(LASP_ERROR_VALUES, "packing.cu_seqlens[%lld] = %lld: no multiple of %lld", ll(n), ll(read[n]),
                 ll(parts));
  return read;
}

class ValueCheck {
 public:
  // Of the first `most_tokens` of each row, where a call has no more.
  ValueCheck(const Plan &plan, const Packing &packing, lasp_stream stream,
             int64_t most_tokens = std::numeric_limits<int64_t>::max())
      : most_tokens_(most_tokens),
        plan_(plan),
        problem_(plan.problem()),
        device_(plan.context().device()),
        stream_(stream),
        packing_(host_packing(packing, plan.ranges(), device_, stream, offsets_)) {}

  // Throws for the first find.
  void finish() const {
    const std::optional<ValueFound> found = device_.find_value(probes_, stream_);
    if (!found) return;
    const ValueProbe &p = probes_[found->probe];
    const char *const fault = name_of(found->fault);
    const int64_t vector = found->element / p.dim, h = vector % p.heads, token = vector / p.heads,
                  row = token / p.tokens;
    if (p.first_token >= 0) {
      const int64_t t = p.first_token + token % p.tokens;
      throw fail(LASP_ERROR_VALUES, "%s: %s at sequence %lld, token %lld, head %lld", p.name, fault,
                 ll(sequence_of(row, t)), ll(t), ll(h));
    }
    if (p.first_sequence < 0) throw fail(LASP_ERROR_VALUES, "%s: %s at head %lld", p.name, fault, ll(h));
    throw fail(LASP_ERROR_VALUES, "%s: %s at sequence %lld, head %lld", p.name, fault, ll(p.first_sequence + row),
               ll(h));
  }

  void tensor(const char *name, const void *data, const Layout &layout, int64_t heads, int64_t dim, DType type,
              bool is_decay = false) {
    if (data == nullptr) return;
    const auto *const bytes = static_cast<const std::byte *>(data);
    each_run([&](int64_t local, int64_t begin, int64_t tokens) {
      probes_.push_back({name, bytes + local * layout.token * size_of(type), layout, problem_.batch, tokens, heads,
                         dim, type, is_decay, begin});
    });
  }

  void decay(const char *name, const void *data, bool is_decay) {
    const Problem &p = problem_;
    const Layout &layout = is_decay ? p.decay_layout : p.d_decay_layout;
    const DType type = is_decay ? p.decay_dtype : p.d_decay_dtype;
    if (p.decay == Decay::kScalar) return tensor(name, data, layout, p.heads, 1, type, is_decay);
    if (p.decay == Decay::kChannel) return tensor(name, data, layout, p.heads, p.head_dim_k, type, is_decay);
    if (data != nullptr)
      probes_.push_back({name, data, {0, 0, 1}, 1, 1, p.heads, 1, DType::kFloat32, is_decay, -1, -1});
  }

  // Of the sequences for which `mine` says so.
  template <class Mine>
  void states(const char *name, const float *data, Mine mine) {
    const Problem &p = problem_;
    const int64_t count = p.packed ? packing_.sequences : p.num_sequences, size = p.heads * p.state_size();
    int64_t first = 0;  // of neighbours that are mine
    for (int64_t n = 0; data != nullptr && n <= count; ++n) {
      if (n < count) {
        const auto [begin, end] = sequence_range(n);
        if (mine(begin, end)) continue;
      }
      if (n > first)
        probes_.push_back({name,
                           data + first * size,
                           {size, 0, p.state_size()},
                           n - first,
                           1,
                           p.heads,
                           p.state_size(),
                           DType::kFloat32,
                           false,
                           -1,
                           first});
      first = n + 1;
    }
  }
  void first_states(const char *name, const float *data) {
    states(name, data,
           [&](int64_t begin, int64_t end) { return plan_.owners(begin, end).first == plan_.info().rank; });
  }
  void last_states(const char *name, const float *data) {
    states(name, data,
           [&](int64_t begin, int64_t end) { return plan_.owners(begin, end).last == plan_.info().rank; });
  }

  // What all passes read.
  template <class Buffers>
  void inputs(const Buffers &b) {
    const Problem &p = problem_;
    tensor("q", b.q, p.q, p.heads_q, p.head_dim_k, p.dtype);
    tensor("k", b.k, p.k, p.heads_k, p.head_dim_k, p.dtype);
    tensor("v", b.v, p.v, p.heads_v, p.head_dim_v, p.dtype);
    decay("decay", b.decay, true);
    if (p.delta) tensor("beta", b.beta, p.beta_layout, p.heads, 1, p.beta_dtype);
  }

 private:
  int64_t sequence_of(int64_t row, int64_t token) const {
    if (!problem_.packed) return row;
    int64_t n = 0;
    while (packing_[n + 1] <= token) ++n;
    return n;
  }
  // Calls visit(first local token, first token of the whole buffer, tokens) for this rank's runs without padding.
  template <class Visit>
  void each_run(Visit visit) const {
    const TokenRanges &ranges = plan_.ranges();
    if (ranges.each) return each_run_of_each(visit);
    const int64_t end = problem_.packed ? packing_[packing_.sequences] : ranges.total();
    int64_t local = 0;
    for (int32_t n = 0; n < problem_.runs; ++n) {
      const int32_t position = ranges.position_of(plan_.info().rank, n);
      const int64_t begin = ranges.begin[static_cast<size_t>(position)], tokens = ranges.tokens(position);
      if (const int64_t count = std::min({tokens, end - begin, most_tokens_}); count > 0)
        visit(local, begin, count);
      local += tokens;
    }
  }
  // Where each sequence is cut by itself: as core/token_partition.cpp cuts it.
  template <class Visit>
  void each_run_of_each(Visit visit) const {
    std::vector<int64_t> offsets;
    for (int64_t n = 0; n <= packing_.sequences; ++n) offsets.push_back(packing_[n]);
    const TokenPartition cut = make_token_partition(problem_, plan_.ranges(), plan_.info().rank, offsets);
    for (const Segment &segment : cut.segments) {
      const int64_t run = segment.path / problem_.num_sequences;
      const int32_t position = plan_.ranges().position_of(plan_.info().rank, static_cast<int32_t>(run));
      const auto [from, to] = sequence_range(segment.sequence);
      const int64_t part = (to - from) / parts_of_each(plan_.ranges());
      const int64_t before = position + (position >= plan_.ranges().nranks());  // parts
      visit(segment.begin, from + before * part, segment.end - segment.begin);
    }
  }
  std::pair<int64_t, int64_t> sequence_range(int64_t n) const {
    if (!problem_.packed) return {0, plan_.ranges().total()};
    return {packing_[n], packing_[n + 1]};
  }

  const int64_t most_tokens_;
  const Plan &plan_;
  const Problem &problem_;
  Device &device_;
  const lasp_stream stream_;
  std::vector<int64_t> offsets_;  // copied from a device
  const Packing packing_;
  std::vector<ValueProbe> probes_;
};

}  // namespace

void check_values(const Plan &plan, const ForwardBuffers &b, lasp_stream stream) {
  const Problem &p = plan.problem();
  ValueCheck check(plan, b.packing, stream);
  check.inputs(b);
  check.first_states("initial_state", b.initial_state);
  check.tensor("o", b.o, p.o, p.heads, p.head_dim_v, p.dtype);
  check.last_states("final_state", b.final_state);
  check.finish();
}

void check_values(const Plan &plan, const BackwardBuffers &b, lasp_stream stream) {
  const Problem &p = plan.problem();
  ValueCheck check(plan, b.packing, stream);
  check.inputs(b);
  check.first_states("initial_state", b.initial_state);
  check.tensor("d_o", b.d_o, p.d_o, p.heads, p.head_dim_v, p.dtype);
  check.last_states("d_final_state", b.d_final_state);
  check.tensor("dq", b.dq, p.dq, p.heads_q, p.head_dim_k, p.dq_dtype);
  check.tensor("dk", b.dk, p.dk, p.heads_k, p.head_dim_k, p.dk_dtype);
  check.tensor("dv", b.dv, p.dv, p.heads_v, p.head_dim_v, p.dv_dtype);
  check.decay("d_decay", b.d_decay, false);
  if (p.delta) check.tensor("d_beta", b.d_beta, p.d_beta_layout, p.heads, 1, p.d_beta_dtype);
  check.first_states("d_initial_state", b.d_initial_state);
  check.finish();
}

void check_values(const Plan &plan, const StepBuffers &b, lasp_stream stream) {
  const Problem &p = plan.problem();
  const Packing rows{};
  ValueCheck check(plan, rows, stream, b.tokens);
  check.inputs(b);
  check.tensor("o", b.o, p.o, p.heads, p.head_dim_v, p.dtype);
  check.states("state", b.state, [&](int64_t, int64_t) { return p.tokens > 0; });
  check.finish();
}

}  // namespace lasp
