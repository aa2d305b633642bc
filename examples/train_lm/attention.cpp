// Plans and calls of liblasp for one packed qkv array.
#include "attention.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <thread>

namespace train_lm {
namespace {

// q, k and v lie in one row of 3 d_model: strides, not copies, take them apart.
lasp_problem problem_of(const Shape &shape, std::int64_t tokens, int dtype) {
  const std::int64_t row = 3LL * shape.d_model, head_dim = shape.head_dim();
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = tokens;
  problem.dtype = dtype;
  problem.heads_q = problem.heads_k = problem.heads_v = shape.heads;
  problem.head_dim_k = problem.head_dim_v = static_cast<std::int32_t>(head_dim);
  problem.decay = LASP_DECAY_HEAD;
  lasp_layout packed = LASP_LAYOUT_INIT;
  packed.flags = LASP_LAYOUT_STRIDED;
  packed.batch = tokens * row, packed.token = row, packed.head = head_dim;
  problem.q = problem.k = problem.v = packed;
  problem.dq = problem.dk = problem.dv = packed;
  return problem;
}

std::vector<DeviceArray<float>> all_log_decays(const Shape &shape, Device &device) {
  std::vector<DeviceArray<float>> decays;
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::vector<float> values = log_decay(shape, layer);
    DeviceArray<float> &there = decays.emplace_back(device, values.size());
    device.copy(there.data(), values.data(), there.bytes());
  }
  return decays;
}

std::size_t state_size(const Shape &shape) {
  const std::size_t head_dim = static_cast<std::size_t>(shape.head_dim());
  return static_cast<std::size_t>(shape.heads) * head_dim * head_dim;
}

template <typename T>
lasp_const_buffer read(const DeviceArray<T> &array) {
  return {array.data(), array.bytes()};
}
template <typename T>
lasp_buffer write(DeviceArray<T> &array) {
  return {array.data(), array.bytes()};
}

// [T, d_model].
template <typename Buffer>
Buffer whole(Real x, const Shape &shape, std::size_t tokens) {
  return Buffer{x.data, tokens * static_cast<std::size_t>(shape.d_model * x.size)};
}

// Of a packed array: from q, k or v (part 0, 1, 2) of its first row to its end.
template <typename Buffer>
Buffer packed(Real qkv, const Shape &shape, std::size_t tokens, int part) {
  const Real first = qkv + static_cast<std::int64_t>(part) * shape.d_model;
  const std::size_t skipped = static_cast<std::size_t>(first.data - qkv.data);
  const std::size_t all = 3 * tokens * static_cast<std::size_t>(shape.d_model * qkv.size);
  return Buffer{first.data, all > skipped ? all - skipped : 0};
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

Context::Context(lasp_comm *comm, int cpu_threads, const Place &place) : exceptions_(std::uncaught_exceptions()) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = place.device;
  options.device_index = place.index;
  options.cpu_threads = cpu_threads;
  lasp_context *context = nullptr;
  check(lasp_context_create(LASP_ABI, comm, &options, &context), "lasp_context_create");
  context_.reset(context);
  device_ = make_device(place, cpu_threads);  // after liblasp had its chance to say why there is no such device
}

Context::~Context() {
  if (std::uncaught_exceptions() > exceptions_) lasp_context_abort(context_.get());
}

void Context::finish() {
  while (!device_->is_idle()) {
    lasp_status status = LASP_OK;
    char why[512] = "";
    const lasp_status asked = lasp_context_get_async_error(context_.get(), &status, why, sizeof why);
    check(asked, "lasp_context_get_async_error");
    const std::string name = lasp_status_name(status);
    if (status != LASP_OK) throw std::runtime_error(name + ": " + why);
    std::this_thread::yield();
  }
}

void require(const Place &place) {
  const Comm comm = group_of_one();
  const Context context(comm.get(), 1, place);
}

SequenceAttention::SequenceAttention(Context &context, const Shape &shape, std::int64_t tokens,
                                     const AttentionSettings &settings)
    : context_(context),
      shape_(shape),
      tokens_(static_cast<std::size_t>(tokens)),
      decay_(all_log_decays(shape, context.device())) {
  Device &device = context.device();
  lasp_problem problem = problem_of(shape, tokens, device.dtype());
  problem.schedule = settings.schedule;
  problem.cache = settings.cache;
  problem.backward = settings.backward ? 1 : 0;
  problem.broadcast_final_state = settings.final_state ? 1 : 0;
  lasp_plan *plan = nullptr;
  check(lasp_plan_create(context.get(), &problem, &plan), "lasp_plan_create");
  plan_.reset(plan);
  check(lasp_plan_get_info(plan, &info_), "lasp_plan_get_info");
  const std::size_t backward = settings.backward ? info_.workspace_backward_bytes : 0;
  workspace_ = DeviceArray<std::byte>(device, std::max(info_.workspace_forward_bytes, backward));
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (settings.backward) caches_.emplace_back(device, info_.state_cache_bytes);
    if (settings.final_state) final_states_.emplace_back(device, state_size(shape));
  }
}

void SequenceAttention::forward(int layer, Real qkv, Real o) {
  const std::size_t l = static_cast<std::size_t>(layer);
  lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  args.q = packed<lasp_const_buffer>(qkv, shape_, tokens_, 0);
  args.k = packed<lasp_const_buffer>(qkv, shape_, tokens_, 1);
  args.v = packed<lasp_const_buffer>(qkv, shape_, tokens_, 2);
  args.decay = read(decay_[l]);
  args.o = whole<lasp_buffer>(o, shape_, tokens_);
  if (!final_states_.empty()) args.final_state = write(final_states_[l]);
  if (!caches_.empty()) args.state_cache = write(caches_[l]);
  args.workspace = write(workspace_);
  check(lasp_forward(plan_.get(), &args, context_.device().stream()), "lasp_forward");
}

void SequenceAttention::backward(int layer, Real qkv, Real d_o, Real d_qkv) {
  const std::size_t l = static_cast<std::size_t>(layer);
  lasp_backward_args args = LASP_BACKWARD_ARGS_INIT;
  args.q = packed<lasp_const_buffer>(qkv, shape_, tokens_, 0);
  args.k = packed<lasp_const_buffer>(qkv, shape_, tokens_, 1);
  args.v = packed<lasp_const_buffer>(qkv, shape_, tokens_, 2);
  args.decay = read(decay_[l]);
  args.d_o = whole<lasp_const_buffer>(d_o, shape_, tokens_);
  args.state_cache = read(caches_[l]);
  args.dq = packed<lasp_buffer>(d_qkv, shape_, tokens_, 0);
  args.dk = packed<lasp_buffer>(d_qkv, shape_, tokens_, 1);
  args.dv = packed<lasp_buffer>(d_qkv, shape_, tokens_, 2);
  args.workspace = write(workspace_);
  check(lasp_backward(plan_.get(), &args, context_.device().stream()), "lasp_backward");
}

StepAttention::StepAttention(Context &context, const Shape &shape)
    : context_(context), shape_(shape), decay_(all_log_decays(shape, context.device())) {
  lasp_problem problem = problem_of(shape, 1, context.device().dtype());
  problem.backward = 0;
  lasp_plan *plan = nullptr;
  check(lasp_plan_create(context.get(), &problem, &plan), "lasp_plan_create");
  plan_.reset(plan);
  for (int layer = 0; layer < shape.layers; ++layer) states_.emplace_back(context.device(), state_size(shape));
}

void StepAttention::set_state(int layer, const DeviceArray<float> &state) {
  DeviceArray<float> &own = states_[static_cast<std::size_t>(layer)];
  context_.device().copy(own.data(), state.data(), own.bytes());
}

void StepAttention::forward(int layer, Real qkv, Real o) {
  const std::size_t l = static_cast<std::size_t>(layer);
  lasp_step_args args = LASP_STEP_ARGS_INIT;
  args.q = packed<lasp_const_buffer>(qkv, shape_, 1, 0);
  args.k = packed<lasp_const_buffer>(qkv, shape_, 1, 1);
  args.v = packed<lasp_const_buffer>(qkv, shape_, 1, 2);
  args.decay = read(decay_[l]);
  args.state = write(states_[l]);
  args.o = whole<lasp_buffer>(o, shape_, 1);
  check(lasp_step(plan_.get(), &args, context_.device().stream()), "lasp_step");
}

}  // namespace train_lm
