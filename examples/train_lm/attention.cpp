// Plans and calls of liblasp for one packed qkv array.
#include "attention.hpp"

#include <exception>
#include <stdexcept>
#include <thread>

namespace train_lm {
namespace {

// q, k and v lie in one row of 3 d_model: strides, not copies, take them apart.
lasp_problem problem_of(const Shape &shape, std::int64_t tokens) {
  const std::int64_t row = 3LL * shape.d_model, head_dim = shape.head_dim();
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = tokens;
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

std::vector<DeviceArray> all_log_decays(const Shape &shape, Device &device, MemoryMeter &meter) {
  std::vector<DeviceArray> decays;
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::vector<float> values = log_decay(shape, layer);
    DeviceArray &there = decays.emplace_back(device, meter, values.size() * sizeof(float));
    device.copy(there.data(), values.data(), there.bytes());
  }
  return decays;
}

std::size_t state_bytes(const Shape &shape) {
  const std::size_t head_dim = static_cast<std::size_t>(shape.head_dim());
  return static_cast<std::size_t>(shape.heads) * head_dim * head_dim * sizeof(float);
}

std::size_t width(const Shape &shape) { return static_cast<std::size_t>(shape.d_model); }

lasp_const_buffer read(const DeviceArray &array) { return {array.data(), array.bytes()}; }
lasp_buffer write(DeviceArray &array) { return {array.data(), array.bytes()}; }

// The run of a packed array from part `index` of its first row to its end.
template <typename Buffer, typename Pointer>
Buffer packed_part(Pointer *qkv, const Shape &shape, std::size_t tokens, int index) {
  const std::size_t skip = static_cast<std::size_t>(index) * width(shape), all = tokens * 3 * width(shape);
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

Context::Context(lasp_comm *comm, int cpu_threads, const Place &place) : exceptions_(std::uncaught_exceptions()) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = place.device;
  options.device_index = place.index;
  options.cpu_threads = cpu_threads;
  lasp_context *context = nullptr;
  check(lasp_context_create(LASP_ABI, comm, &options, &context), "lasp_context_create");
  context_.reset(context);
  device_ = std::make_unique<Device>(place);  // after liblasp had its chance to say why there is no such device
}

Context::~Context() {
  if (std::uncaught_exceptions() > exceptions_) lasp_context_abort(context_.get());
}

void Context::finish() {
  while (!device_->is_idle()) {
    lasp_status status = LASP_OK;
    check(lasp_context_get_async_error(context_.get(), &status, nullptr, 0), "lasp_context_get_async_error");
    if (status != LASP_OK)
      throw std::runtime_error(std::string("The work on the GPU ended with ") + lasp_status_name(status) + ".");
    std::this_thread::yield();
  }
}

void require(const Place &place) {
  const Comm comm = group_of_one();
  const Context context(comm.get(), 1, place);
}

SequenceAttention::SequenceAttention(Context &context, const Shape &shape, std::int64_t tokens,
                                     const AttentionSettings &settings, MemoryMeter &meter)
    : context_(context),
      shape_(shape),
      tokens_(static_cast<std::size_t>(tokens)),
      decay_(all_log_decays(shape, context.device(), meter)),
      qkv_(context.device(), meter, tokens_ * 3 * width(shape)),
      d_qkv_(context.device(), meter, settings.backward ? tokens_ * 3 * width(shape) : 0),
      attended_(context.device(), meter, tokens_ * width(shape)) {
  lasp_problem problem = problem_of(shape, tokens);
  problem.schedule = settings.schedule;
  problem.cache = settings.cache;
  problem.backward = settings.backward ? 1 : 0;
  problem.broadcast_final_state = settings.final_state ? 1 : 0;
  lasp_plan *plan = nullptr;
  check(lasp_plan_create(context.get(), &problem, &plan), "lasp_plan_create");
  plan_.reset(plan);
  check(lasp_plan_get_info(plan, &info_), "lasp_plan_get_info");
  workspace_ = std::make_unique<DeviceArray>(
      context.device(), meter,
      std::max(info_.workspace_forward_bytes, settings.backward ? info_.workspace_backward_bytes : 0));
  if (info_.alignment > workspace_->alignment())
    throw std::runtime_error("The plan asks for an unusual alignment.");
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (settings.backward) caches_.emplace_back(context.device(), meter, info_.state_cache_bytes);
    if (settings.final_state) final_states_.emplace_back(context.device(), meter, state_bytes(shape));
  }
}

lasp_const_buffer SequenceAttention::part(const float *qkv, int index) const {
  return packed_part<lasp_const_buffer>(qkv, shape_, tokens_, index);
}

void SequenceAttention::forward(int layer, const float *qkv, float *o) {
  const std::size_t l = static_cast<std::size_t>(layer);
  const float *qkv_there = qkv_.upload(qkv);
  lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  args.q = part(qkv_there, 0);
  args.k = part(qkv_there, 1);
  args.v = part(qkv_there, 2);
  args.decay = read(decay_[l]);
  args.o = {attended_.place(o), tokens_ * width(shape_) * sizeof(float)};
  if (!final_states_.empty()) args.final_state = write(final_states_[l]);
  if (!caches_.empty()) args.state_cache = write(caches_[l]);
  args.workspace = write(*workspace_);
  check(lasp_forward(plan_.get(), &args, context_.device().stream()), "lasp_forward");
  context_.finish();
  attended_.download(o);
}

void SequenceAttention::backward(int layer, const float *qkv, const float *d_o, float *d_qkv) {
  const std::size_t l = static_cast<std::size_t>(layer);
  const float *qkv_there = qkv_.upload(qkv);
  float *d_qkv_there = d_qkv_.place(d_qkv);
  lasp_backward_args args = LASP_BACKWARD_ARGS_INIT;
  args.q = part(qkv_there, 0);
  args.k = part(qkv_there, 1);
  args.v = part(qkv_there, 2);
  args.decay = read(decay_[l]);
  args.d_o = {attended_.upload(d_o), tokens_ * width(shape_) * sizeof(float)};
  args.state_cache = read(caches_[l]);
  args.dq = packed_part<lasp_buffer>(d_qkv_there, shape_, tokens_, 0);
  args.dk = packed_part<lasp_buffer>(d_qkv_there, shape_, tokens_, 1);
  args.dv = packed_part<lasp_buffer>(d_qkv_there, shape_, tokens_, 2);
  args.workspace = write(*workspace_);
  check(lasp_backward(plan_.get(), &args, context_.device().stream()), "lasp_backward");
  context_.finish();
  d_qkv_.download(d_qkv);
}

StepAttention::StepAttention(Context &context, const Shape &shape, MemoryMeter &meter)
    : context_(context),
      shape_(shape),
      decay_(all_log_decays(shape, context.device(), meter)),
      qkv_(context.device(), meter, 3 * width(shape)),
      attended_(context.device(), meter, width(shape)) {
  lasp_problem problem = problem_of(shape, 1);
  problem.backward = 0;
  lasp_plan *plan = nullptr;
  check(lasp_plan_create(context.get(), &problem, &plan), "lasp_plan_create");
  plan_.reset(plan);
  for (int layer = 0; layer < shape.layers; ++layer)
    states_.emplace_back(context.device(), meter, state_bytes(shape));
}

void StepAttention::set_state(int layer, const DeviceArray &state) {
  DeviceArray &own = states_[static_cast<std::size_t>(layer)];
  context_.device().copy(own.data(), state.data(), own.bytes());
  context_.finish();
}

void StepAttention::forward(int layer, const float *qkv, float *o) {
  const std::size_t l = static_cast<std::size_t>(layer);
  const float *qkv_there = qkv_.upload(qkv);
  lasp_step_args args = LASP_STEP_ARGS_INIT;
  args.q = packed_part<lasp_const_buffer>(qkv_there, shape_, 1, 0);
  args.k = packed_part<lasp_const_buffer>(qkv_there, shape_, 1, 1);
  args.v = packed_part<lasp_const_buffer>(qkv_there, shape_, 1, 2);
  args.decay = read(decay_[l]);
  args.state = write(states_[l]);
  args.o = {attended_.place(o), width(shape_) * sizeof(float)};
  check(lasp_step(plan_.get(), &args, context_.device().stream()), "lasp_step");
  context_.finish();
  attended_.download(o);
}

}  // namespace train_lm
