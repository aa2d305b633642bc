#include "tensors.h"

namespace lasp_fuzz {
namespace {

uint64_t extent(const lasp_layout &s, const lasp_problem &p, int64_t heads, int64_t dim) {
  if (p.batch == 0 || p.tokens == 0) return 0;
  if (s.flags == 0) return static_cast<uint64_t>(p.batch * p.tokens * heads * dim);
  return static_cast<uint64_t>((p.batch - 1) * s.batch + (p.tokens - 1) * s.token + (heads - 1) * s.head + dim);
}

}  // namespace

bool Tensors::Part::intact() const {
  // Each byte equals the next, and the first the fill.
  return bytes == 0 || (data[0] == fill && std::memcmp(data, data + 1, bytes - 1) == 0);
}

Tensors::Part Tensors::make(Draw &in, Memory &memory, uint64_t bytes, size_t alignment) {
  // Zeros, small and large numbers, negative ones, NaN, in every type.
  constexpr uint8_t kFills[] = {0x3c, 0x00, 0xbc, 0x30, 0xb0, 0x3f, 0x7f, 0xff};
  const uint8_t fill = in.one_of(kFills);
  Part part{memory.take(bytes, alignment, fill), bytes, fill};
  if (part.data == nullptr) whole_ = false;
  return part;
}

Tensors::Tensors(Draw &in, Memory &memory, const lasp_problem &p, const lasp_plan_info &info) {
  const uint64_t element = p.dtype == LASP_FLOAT32 ? 4 : 2,
                 decay_element = p.decay_layout.dtype <= LASP_FLOAT32 ? 4 : 2;
  const int64_t h = info.heads, k = p.head_dim_k, v = p.head_dim_v;
  const uint64_t states = static_cast<uint64_t>(info.num_sequences * h * k * v) * 4;
  const auto tensor = [&](Name name, const lasp_layout &s, int64_t heads, int64_t dim) {
    parts_[name] = make(in, memory, extent(s, p, heads, dim) * element, element);
  };
  const auto decay = [&](Name name, const lasp_layout &s) {
    if (p.decay == LASP_DECAY_NONE) return;
    const uint64_t bytes = p.decay == LASP_DECAY_HEAD
                               ? static_cast<uint64_t>(h) * 4
                               : extent(s, p, h, p.decay == LASP_DECAY_CHANNEL ? k : 1) * decay_element;
    parts_[name] = make(in, memory, bytes, p.decay == LASP_DECAY_HEAD ? 4 : decay_element);
  };
  const auto plain = [&](Name name, uint64_t bytes, size_t alignment) {
    parts_[name] = make(in, memory, bytes, alignment);
  };
  tensor(kQ, p.q, p.heads_q, k);
  tensor(kK, p.k, p.heads_k, k);
  tensor(kV, p.v, p.heads_v, v);
  decay(kDecay, p.decay_layout);
  tensor(kO, p.o, h, v);
  plain(kStateCache, info.state_cache_bytes, info.alignment);
  plain(kForwardWorkspace, info.workspace_forward_bytes, info.alignment);
  const uint8_t absent = in.byte();
  const auto optional = [&](Name name, int32_t bit) {
    if (((absent >> bit) & 1) == 0) plain(name, states, 4);
  };
  optional(kInitialState, 0);
  if (p.broadcast_final_state != 0) {
    plain(kFinalState, states, 4);
  } else {
    optional(kFinalState, 1);
  }
  plain(kState, states, 4);
  if (p.backward == 0) return;
  tensor(kDO, p.d_o, h, v);
  tensor(kDQ, p.dq, p.heads_q, k);
  tensor(kDK, p.dk, p.heads_k, k);
  tensor(kDV, p.dv, p.heads_v, v);
  if ((absent & 4) == 0) decay(kDDecay, p.d_decay_layout);
  optional(kDFinalState, 3);
  optional(kDInitialState, 4);
  plain(kBackwardWorkspace, info.workspace_backward_bytes, info.alignment);
}

lasp_forward_args Tensors::forward() const {
  lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
  a.q = parts_[kQ], a.k = parts_[kK], a.v = parts_[kV], a.decay = parts_[kDecay];
  a.initial_state = parts_[kInitialState];
  a.o = parts_[kO], a.final_state = parts_[kFinalState];
  if (parts_[kStateCache].bytes > 0) a.state_cache = parts_[kStateCache];
  a.workspace = parts_[kForwardWorkspace];
  return a;
}

lasp_backward_args Tensors::backward() const {
  lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
  a.q = parts_[kQ], a.k = parts_[kK], a.v = parts_[kV], a.decay = parts_[kDecay];
  a.initial_state = parts_[kInitialState];
  a.d_o = parts_[kDO], a.d_final_state = parts_[kDFinalState], a.state_cache = parts_[kStateCache];
  a.dq = parts_[kDQ], a.dk = parts_[kDK], a.dv = parts_[kDV], a.d_decay = parts_[kDDecay];
  a.d_initial_state = parts_[kDInitialState];
  a.workspace = parts_[kBackwardWorkspace];
  return a;
}

lasp_step_args Tensors::step() const {
  lasp_step_args a = LASP_STEP_ARGS_INIT;
  a.q = parts_[kQ], a.k = parts_[kK], a.v = parts_[kV], a.decay = parts_[kDecay];
  a.state = parts_[kState], a.o = parts_[kO];
  return a;
}

bool Tensors::inputs_intact() const {
  return std::all_of(parts_.begin(), parts_.begin() + kO, [](const Part &part) { return part.intact(); });
}

bool Tensors::outputs_untouched() const {
  return std::all_of(parts_.begin() + kO, parts_.end(), [](const Part &part) { return part.intact(); });
}

}  // namespace lasp_fuzz
