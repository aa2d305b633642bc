#include "engine/value_check.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace lasp {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

// Of an element's bits: where its exponent lies. No type needs its value for what is looked for.
struct Format {
  uint32_t sign, exponent;
};
Format format_of(DType type) {
  switch (type) {
    case DType::kBFloat16: return {0x8000, 0x7f80};
    case DType::kFloat16: return {0x8000, 0x7c00};
    case DType::kFloat32: break;
  }
  return {0x80000000, 0x7f800000};
}

// What is wrong with an element, or null.
const char *fault_of(uint32_t bits, const Format &format, bool is_decay) {
  const uint32_t magnitude = bits & (format.sign - 1);
  const bool negative = (bits & format.sign) != 0;
  if (magnitude > format.exponent) return "NaN";
  if (is_decay) return !negative && magnitude != 0 ? "a decay above 0" : nullptr;
  return magnitude == format.exponent ? "infinity" : nullptr;
}

class ValueCheck {
 public:
  ValueCheck(const Plan &plan, const Packing &packing) : plan_(plan), problem_(plan.problem()), packing_(packing) {}

  void tensor(const char *name, const void *data, const Layout &layout, int64_t heads, int64_t dim, DType type,
              bool is_decay = false) const {
    if (data == nullptr) return;
    const Problem &p = problem_;
    for (int64_t b = 0; b < p.batch; ++b)
      each_token([&](int64_t t, int64_t token) {
        for (int64_t h = 0; h < heads; ++h)
          if (const char *fault = fault_in(data, layout.offset(b, t, h), dim, type, is_decay))
            throw fail(LASP_ERROR_VALUES, "%s: %s at sequence %lld, token %lld, head %lld", name, fault,
                       ll(sequence_of(b, token)), ll(token), ll(h));
      });
  }

  void decay(const char *name, const void *data, bool is_decay) const {
    const Problem &p = problem_;
    const Layout &layout = is_decay ? p.decay_layout : p.d_decay_layout;
    const DType type = is_decay ? p.decay_dtype : p.d_decay_dtype;
    if (p.decay == Decay::kScalar) return tensor(name, data, layout, p.heads, 1, type, is_decay);
    if (p.decay == Decay::kChannel) return tensor(name, data, layout, p.heads, p.head_dim_k, type, is_decay);
    for (int64_t h = 0; data != nullptr && h < p.heads; ++h)
      if (const char *fault = fault_in(data, h, 1, DType::kFloat32, is_decay))
        throw fail(LASP_ERROR_VALUES, "%s: %s at head %lld", name, fault, ll(h));
  }

  // Of the sequences for which `mine` says so.
  template <class Mine>
  void states(const char *name, const float *data, Mine mine) const {
    const Problem &p = problem_;
    const int64_t count = p.packed ? packing_.sequences : p.num_sequences;
    for (int64_t n = 0; data != nullptr && n < count; ++n) {
      const auto [begin, end] = sequence_range(n);
      if (!mine(begin, end)) continue;
      for (int64_t h = 0; h < p.heads; ++h)
        if (const char *fault =
                fault_in(data, (n * p.heads + h) * p.state_size(), p.state_size(), DType::kFloat32, false))
          throw fail(LASP_ERROR_VALUES, "%s: %s at sequence %lld, head %lld", name, fault, ll(n), ll(h));
    }
  }
  void first_states(const char *name, const float *data) const {
    states(name, data,
           [&](int64_t begin, int64_t end) { return plan_.owners(begin, end).first == plan_.info().rank; });
  }
  void last_states(const char *name, const float *data) const {
    states(name, data,
           [&](int64_t begin, int64_t end) { return plan_.owners(begin, end).last == plan_.info().rank; });
  }

  // What all passes read.
  template <class Buffers>
  void inputs(const Buffers &b) const {
    const Problem &p = problem_;
    tensor("q", b.q, p.q, p.heads_q, p.head_dim_k, p.dtype);
    tensor("k", b.k, p.k, p.heads_k, p.head_dim_k, p.dtype);
    tensor("v", b.v, p.v, p.heads_v, p.head_dim_v, p.dtype);
    decay("decay", b.decay, true);
    if (p.delta) tensor("beta", b.beta, p.beta_layout, p.heads, 1, p.beta_dtype);
  }

 private:
  static const char *fault_in(const void *data, int64_t first, int64_t count, DType type, bool is_decay) {
    const Format format = format_of(type);
    for (int64_t i = first; i < first + count; ++i) {
      uint32_t bits = 0;
      if (type == DType::kFloat32) {
        std::memcpy(&bits, static_cast<const char *>(data) + i * 4, 4);
      } else {
        uint16_t half = 0;
        std::memcpy(&half, static_cast<const char *>(data) + i * 2, 2);
        bits = half;
      }
      if (const char *fault = fault_of(bits, format, is_decay)) return fault;
    }
    return nullptr;
  }

  int64_t sequence_of(int64_t row, int64_t token) const {
    if (!problem_.packed) return row;
    int64_t n = 0;
    while (packing_[n + 1] <= token) ++n;
    return n;
  }
  // Calls visit(local token, token of the whole buffer) for those of this rank that are no padding.
  template <class Visit>
  void each_token(Visit visit) const {
    const TokenRanges &ranges = plan_.ranges();
    const int64_t end = problem_.packed ? packing_[packing_.sequences] : ranges.total();
    int64_t local = 0;
    for (int32_t n = 0; n < problem_.runs; ++n) {
      const int32_t position = ranges.position_of(plan_.info().rank, n);
      const int64_t begin = ranges.begin[static_cast<size_t>(position)], tokens = ranges.tokens(position);
      for (int64_t t = 0; t < tokens && begin + t < end; ++t) visit(local + t, begin + t);
      local += tokens;
    }
  }
  std::pair<int64_t, int64_t> sequence_range(int64_t n) const {
    if (!problem_.packed) return {0, plan_.ranges().total()};
    return {packing_[n], packing_[n + 1]};
  }

  const Plan &plan_;
  const Problem &problem_;
  const Packing &packing_;
};

}  // namespace

void check_values(const Plan &plan, const ForwardBuffers &b) {
  const Problem &p = plan.problem();
  const ValueCheck check(plan, b.packing);
  check.inputs(b);
  check.first_states("initial_state", b.initial_state);
  check.tensor("o", b.o, p.o, p.heads, p.head_dim_v, p.dtype);
  check.last_states("final_state", b.final_state);
}

void check_values(const Plan &plan, const BackwardBuffers &b) {
  const Problem &p = plan.problem();
  const ValueCheck check(plan, b.packing);
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
}

void check_values(const Plan &plan, const StepBuffers &b) {
  const Problem &p = plan.problem();
  const Packing rows{};
  const ValueCheck check(plan, rows);
  check.inputs(b);
  check.tensor("o", b.o, p.o, p.heads, p.head_dim_v, p.dtype);
  check.states("state", b.state, [&](int64_t, int64_t) { return p.tokens > 0; });
}

}  // namespace lasp
