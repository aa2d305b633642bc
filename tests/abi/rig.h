// One valid small problem with all its buffers in one arena, from which a test departs by one wrong value. After
// the call the whole arena and every out-parameter are compared with what they held before.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

// Bytes of all buffers, filled with a canary; slices are 64-byte aligned with a gap of canary between them.
class Arena {
 public:
  static constexpr size_t kGap = 128;
  explicit Arena(size_t bytes) : memory_(bytes + 64, kCanary) {}

  lasp_buffer take(size_t bytes) {
    auto place = reinterpret_cast<uintptr_t>(memory_.data() + used_ + kGap);
    place = (place + 63) & ~uintptr_t{63};
    auto *data = reinterpret_cast<unsigned char *>(place);
    used_ = static_cast<size_t>(data - memory_.data()) + bytes;
    if (used_ + kGap > memory_.size()) throw std::logic_error("the arena is too small");
    return {data, bytes};
  }
  lasp_const_buffer take_input(size_t floats, float value) {
    const lasp_buffer buffer = take(floats * sizeof(float));
    for (size_t i = 0; i < floats; ++i) static_cast<float *>(buffer.data)[i] = value * static_cast<float>(i % 7);
    return {buffer.data, buffer.bytes};
  }
  const std::vector<unsigned char> &bytes() const { return memory_; }

  static constexpr unsigned char kCanary = 0xa5;
  static bool all_canary(const lasp_buffer &buffer) {
    const auto *bytes = static_cast<const unsigned char *>(buffer.data);
    for (size_t i = 0; i < buffer.bytes; ++i) {
      if (bytes[i] != kCanary) return false;
    }
    return true;
  }

 private:
  std::vector<unsigned char> memory_;
  size_t used_ = 0;
};

// Everything a call may write through a pointer that is not a tensor. Plain data, so that it compares by bytes.
struct Outs {
  lasp_comm *comm;
  lasp_comm *comms[4];
  lasp_context *context;
  lasp_plan *plan;
  lasp_halo *halo;
  int32_t number, numbers[4];
  double real;
  char text[64];
  size_t needed;
  lasp_status status;
  lasp_traffic traffic;
  lasp_build_info build;
  lasp_plan_info info;
  lasp_halo_info halo_info;
  lasp_groups groups;
};

class Rig {
 public:
  static constexpr int64_t kTokens = 24, kHeads = 2, kHeadsK = 1, kHeadDimK = 8, kHeadDimV = 16;
  // Of a packed plan: what it may have, and what `packing` has; the last tokens are padding.
  static constexpr int64_t kMostSequences = 3, kSequences = 2;

  Rig() : Rig(valid_problem()) {}
  explicit Rig(const lasp_problem &problem) : arena(size_t{1} << 21) {
    std::memset(static_cast<void *>(&outs), 0x5a, sizeof outs);
    outs.traffic.size = sizeof outs.traffic;
    outs.build.size = sizeof outs.build;
    outs.info.size = sizeof outs.info;
    outs.halo_info.size = sizeof outs.halo_info;
    outs.groups.size = sizeof outs.groups;
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 1;
    options.time_limit_ms = 5000;
    must(lasp_comm_create_self(&comm));
    must(lasp_context_create(LASP_ABI, comm, &options, &context));
    must(lasp_plan_create(context, &problem, &plan));
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    must(lasp_plan_get_info(plan, &info));

    const size_t q_size = kTokens * kHeads * kHeadDimK, k_size = kTokens * kHeadsK * kHeadDimK;
    const size_t o_size = kTokens * kHeads * kHeadDimV,
                 state_size = info.num_sequences * kHeads * kHeadDimK * kHeadDimV;
    is_packed_ = problem.max_sequences > 0;
    packing.cu_seqlens = {kOffsets, sizeof kOffsets}, packing.num_sequences = kSequences;
    q = arena.take_input(q_size, 0.01f);
    k = arena.take_input(k_size, 0.02f);
    v = arena.take_input(o_size, 0.03f);
    decay = arena.take_input(kTokens * kHeads, -0.01f);
    if (problem.write == LASP_WRITE_DELTA) {
      beta = arena.take_input(kTokens * kHeads, 0.1f);
      d_beta = arena.take(kTokens * kHeads * 4);
    }
    initial_state = arena.take_input(state_size, 0.1f);
    d_o = arena.take_input(o_size, 0.05f);
    d_final_state = arena.take_input(state_size, 0.02f);
    o = arena.take(o_size * 4);
    final_state = arena.take(state_size * 4);
    state = arena.take(state_size * 4);
    dq = arena.take(q_size * 4);
    dk = arena.take(k_size * 4);
    dv = arena.take(o_size * 4);
    d_decay = arena.take(kTokens * kHeads * 4);
    d_initial_state = arena.take(state_size * 4);
    state_cache = arena.take(info.state_cache_bytes);
    workspace = arena.take(info.workspace_forward_bytes);
    workspace_backward = arena.take(info.workspace_backward_bytes);
  }
  Rig(const Rig &) = delete;
  Rig &operator=(const Rig &) = delete;
  ~Rig() {
    lasp_plan_destroy(plan);
    lasp_context_destroy(context);
    lasp_comm_destroy(comm);
  }

  static lasp_problem valid_problem() {
    lasp_problem problem = LASP_PROBLEM_INIT;
    problem.tokens = kTokens;
    problem.heads_q = problem.heads_v = kHeads;
    problem.heads_k = kHeadsK;
    problem.head_dim_k = kHeadDimK;
    problem.head_dim_v = kHeadDimV;
    problem.decay = LASP_DECAY_SCALAR;
    problem.chunk = 16;
    return problem;
  }

  static lasp_problem packed_problem() {
    lasp_problem problem = valid_problem();
    problem.max_sequences = kMostSequences;
    return problem;
  }

  static lasp_problem delta_problem() {
    lasp_problem problem = valid_problem();
    problem.write = LASP_WRITE_DELTA;
    return problem;
  }

  lasp_forward_args forward_args() const {
    lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
    args.q = q, args.k = k, args.v = v, args.decay = decay, args.beta = beta, args.initial_state = initial_state;
    args.o = o, args.final_state = final_state, args.state_cache = state_cache, args.workspace = workspace;
    if (is_packed_) args.packing = &packing;
    return args;
  }
  lasp_backward_args backward_args() const {
    lasp_backward_args args = LASP_BACKWARD_ARGS_INIT;
    args.q = q, args.k = k, args.v = v, args.decay = decay, args.beta = beta, args.initial_state = initial_state;
    args.d_o = d_o, args.d_final_state = d_final_state;
    args.state_cache = {state_cache.data, state_cache.bytes};
    args.dq = dq, args.dk = dk, args.dv = dv, args.d_decay = d_decay, args.d_beta = d_beta,
    args.d_initial_state = d_initial_state;
    args.workspace = workspace_backward;
    if (is_packed_) args.packing = &packing;
    return args;
  }
  lasp_step_args step_args() const {
    lasp_step_args args = LASP_STEP_ARGS_INIT;
    args.q = q, args.k = k, args.v = v, args.decay = decay, args.beta = beta, args.state = state, args.o = o;
    return args;
  }

  static void must(lasp_status status) {
    if (status != LASP_OK)
      throw std::runtime_error(lasp_status_name(status) + std::string(": ") + lasp_last_error());
  }

  static constexpr int64_t kOffsets[] = {0, 5, 20};

  Arena arena;
  Outs outs;
  lasp_packing packing = LASP_PACKING_INIT;
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_const_buffer q, k, v, decay, initial_state, d_o, d_final_state;
  lasp_const_buffer beta = LASP_BUFFER_INIT;  // of the delta write; else absent
  lasp_buffer d_beta = LASP_BUFFER_INIT;
  lasp_buffer o, final_state, state, dq, dk, dv, d_decay, d_initial_state, state_cache, workspace,
      workspace_backward;

 private:
  bool is_packed_ = false;
};
