// Plans and calls of liblasp for one packed qkv array.
#include "attention.hpp"

#include <exception>
#include <stdexcept>

namespace train_lm {
namespace {

// q, k and v lie in one row of 3 d_model: strides, not copies, take them apart.
lasp_problem problem_of(const Shape &shape, std::int64_t tokens) {
  const std::int64_t width = 3LL * shape.d_model, head_dim = shape.head_dim();
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = tokens;
  problem.heads_q = problem.heads_k = problem.heads_v = shape.heads;
  problem.head_dim_k = problem.head_dim_v = static_cast<std::int32_t>(head_dim);
  problem.decay = LASP_DECAY_HEAD;
  const lasp_strides packed = {tokens * width, width, head_dim};
  problem.q = problem.k = problem.v = packed;
  problem.dq = problem.dk = problem.dv = packed;
  return problem;
}

std::vector<std::vector<float>> all_log_decays(const Shape &shape) {
  std::vector<std::vector<float>> decays;
  for (int layer = 0; layer < shape.layers; ++layer) decays.push_back(log_decay(shape, layer));
  return decays;
}

std::size_t state_size(const Shape &shape) {
  return static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.head_dim() * shape.head_dim());
}

// The run of a packed array from part `index` of its first row to its end.
template <typename Buffer, typename Pointer>
Buffer packed_part(Pointer *qkv, const Shape &shape, std::size_t tokens, int index) {
  const std::size_t skip = static_cast<std::size_t>(index) * static_cast<std::size_t>(shape.d_model);
  const std::size_t all = tokens * 3 * static_cast<std::size_t>(shape.d_model);
  return Buffer{qkv + skip, (all > skip ? all - skip : 0) * sizeof(float)};
}

}  // namespace

void check(lasp_status status, const char *call) {
  if (status == LASP_OK) return;
  throw std::runtime_error(std::string(call) + ": " + lasp_status_name(status) + ": " + lasp_last_error());
}

Comm group_of_one() {
  lasp_comm *comm = nullptr;
  check(lasp_comm_create_self(&comm), "lasp_comm_create_self");
  return Comm(comm);
}

Context::Context(lasp_comm *comm, int cpu_threads) : exceptions_(std::uncaught_exceptions()) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.cpu_threads = cpu_threads;
  lasp_context *context = nullptr;
  check(lasp_context_create(LASP_ABI, comm, &options, &context), "lasp_context_create");
  context_.reset(context);
}

Context::~Context() {
  if (std::uncaught_exceptions() > exceptions_) lasp_context_abort(context_.get());
}

SequenceAttention::SequenceAttention(const Context &context, const Shape &shape, std::int64_t tokens,
                                     const AttentionSettings &settings, MemoryMeter &meter)
    : shape_(shape), tokens_(static_cast<std::size_t>(tokens)), decay_(all_log_decays(shape)) {
  lasp_problem problem = problem_of(shape, tokens);
  problem.schedule = settings.schedule;
  problem.cache = settings.cache;
  problem.backward = settings.backward ? 1 : 0;
  problem.broadcast_final_state = settings.final_state ? 1 : 0;
  lasp_plan *plan = nullptr;
  check(lasp_plan_create(context.get(), &problem, &plan), "lasp_plan_create");
  plan_.reset(plan);
  check(lasp_plan_get_info(plan, &info_), "lasp_plan_get_info");
  if (info_.alignment > Array<float>::kAlignment)
    throw std::runtime_error("The plan asks for an unusual alignment.");
  workspace_ = Array<unsigned char>(
      meter, std::max(info_.workspace_forward_bytes, settings.backward ? info_.workspace_backward_bytes : 0));
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (settings.backward) caches_.emplace_back(meter, info_.state_cache_bytes);
    if (settings.final_state) final_states_.emplace_back(meter, state_size(shape));
  }
}

lasp_const_buffer SequenceAttention::part(const float *qkv, int index) const {
  return packed_part<lasp_const_buffer>(qkv, shape_, tokens_, index);
}

lasp_const_buffer SequenceAttention::decay(int layer) const {
  const std::vector<float> &values = decay_[static_cast<std::size_t>(layer)];
  return {values.data(), values.size() * sizeof(float)};
}

void SequenceAttention::forward(int layer, const float *qkv, float *o) {
  const std::size_t l = static_cast<std::size_t>(layer);
  lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  args.q = part(qkv, 0);
  args.k = part(qkv, 1);
  args.v = part(qkv, 2);
  args.decay = decay(layer);
  args.o = {o, tokens_ * static_cast<std::size_t>(shape_.d_model) * sizeof(float)};
  if (!final_states_.empty()) args.final_state = {final_states_[l].data(), final_states_[l].bytes()};
  if (!caches_.empty()) args.state_cache = {caches_[l].data(), caches_[l].bytes()};
  args.workspace = {workspace_.data(), workspace_.bytes()};
  check(lasp_forward(plan_.get(), &args, nullptr), "lasp_forward");
}

void SequenceAttention::backward(int layer, const float *qkv, const float *d_o, float *d_qkv) {
  const std::size_t l = static_cast<std::size_t>(layer);
  lasp_backward_args args = LASP_BACKWARD_ARGS_INIT;
  args.q = part(qkv, 0);
  args.k = part(qkv, 1);
  args.v = part(qkv, 2);
  args.decay = decay(layer);
  args.d_o = {d_o, tokens_ * static_cast<std::size_t>(shape_.d_model) * sizeof(float)};
  args.state_cache = {caches_[l].data(), caches_[l].bytes()};
  args.dq = packed_part<lasp_buffer>(d_qkv, shape_, tokens_, 0);
  args.dk = packed_part<lasp_buffer>(d_qkv, shape_, tokens_, 1);
  args.dv = packed_part<lasp_buffer>(d_qkv, shape_, tokens_, 2);
  args.workspace = {workspace_.data(), workspace_.bytes()};
  check(lasp_backward(plan_.get(), &args, nullptr), "lasp_backward");
}

StepAttention::StepAttention(const Context &context, const Shape &shape, MemoryMeter &meter)
    : shape_(shape), decay_(all_log_decays(shape)) {
  lasp_problem problem = problem_of(shape, 1);
  problem.backward = 0;
  lasp_plan *plan = nullptr;
  check(lasp_plan_create(context.get(), &problem, &plan), "lasp_plan_create");
  plan_.reset(plan);
  for (int layer = 0; layer < shape.layers; ++layer) states_.emplace_back(meter, state_size(shape));
}

void StepAttention::set_state(int layer, const float *state) {
  Array<float> &own = states_[static_cast<std::size_t>(layer)];
  std::copy(state, state + own.size(), own.data());
}

void StepAttention::forward(int layer, const float *qkv, float *o) {
  const std::size_t l = static_cast<std::size_t>(layer);
  lasp_step_args args = LASP_STEP_ARGS_INIT;
  args.q = packed_part<lasp_const_buffer>(qkv, shape_, 1, 0);
  args.k = packed_part<lasp_const_buffer>(qkv, shape_, 1, 1);
  args.v = packed_part<lasp_const_buffer>(qkv, shape_, 1, 2);
  args.decay = {decay_[l].data(), decay_[l].size() * sizeof(float)};
  args.state = {states_[l].data(), states_[l].bytes()};
  args.o = {o, static_cast<std::size_t>(shape_.d_model) * sizeof(float)};
  check(lasp_step(plan_.get(), &args, nullptr), "lasp_step");
}

}  // namespace train_lm
