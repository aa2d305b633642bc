#include "rank_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <string_view>

#include "failure.h"
#include "float_bits.h"

namespace bench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

PlanHandle make_plan(Link &link, lasp_context *context, const Config &config) {
  const lasp_problem problem = config.problem(link.rank());
  lasp_plan *plan = nullptr;
  const lasp_status status = lasp_plan_create(context, &problem, &plan);
  const std::string reason = status == LASP_OK ? "" : sentence("lasp_plan_create", status);
  PlanHandle handle(plan);
  // The lowest refused rank's sentence would do, but each rank has one of its own that explains as much.
  if (link.largest(status) > 0) throw Refused(reason.empty() ? "lasp_plan_create failed on another rank" : reason);
  return handle;
}

bool all_finite(const Memory &memory, int32_t dtype) {
  const auto count = static_cast<int64_t>(memory.bytes() / dtype_bytes(dtype));
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(load(memory.data(), i, dtype))) return false;
  return true;
}

}  // namespace

RankCase::RankCase(Link &link, const Config &config)
    : link_(link),
      config_(config),
      first_token_(config.first_token(link.rank())),
      end_token_(config.first_token(link.rank() + 1)) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.cpu_threads = config.threads;
  options.device = config.device;
  options.device_index = link.device();
  lasp_context *context = nullptr;
  check(lasp_context_create(LASP_ABI, link.comm(), &options, &context), "lasp_context_create");
  context_.reset(context);
  plan_ = make_plan(link, context, config);
  check(lasp_plan_get_info(plan_.get(), &info_), "lasp_plan_get_info");

  const Shape &shape = config.shape;
  const Inputs inputs(shape);
  q_ = inputs.make(Inputs::kQ, first_token_, end_token_);
  k_ = inputs.make(Inputs::kK, first_token_, end_token_);
  v_ = inputs.make(Inputs::kV, first_token_, end_token_);
  decay_ = inputs.make_decay(first_token_, end_token_);
  beta_ = inputs.make_beta(first_token_, end_token_);
  const size_t tokens = static_cast<size_t>(shape.batch * (end_token_ - first_token_));
  o_ = Memory(tokens * shape.heads() * shape.head_dim_v * dtype_bytes(shape.dtype));
  uint64_t workspace = info_.workspace_forward_bytes;
  if (config.has_backward()) {
    d_o_ = inputs.make(Inputs::kDO, first_token_, end_token_);
    dq_ = Memory(q_.bytes());
    dk_ = Memory(k_.bytes());
    dv_ = Memory(v_.bytes());
    if (config.decay_gradient) d_decay_ = Memory(decay_.bytes());
    d_beta_ = Memory(beta_.bytes());
    cache_ = Memory(info_.state_cache_bytes, info_.alignment);
    workspace = std::max(workspace, info_.workspace_backward_bytes);
  }
  workspace_ = Memory(workspace, info_.alignment);
  if (config.on_cuda()) {
    std::vector<const Memory *> all = this->inputs();
    for (const Memory *output : outputs()) all.push_back(output);
    all.push_back(&cache_);
    device_ = std::make_unique<DeviceMirror>(link, all, &workspace_);
    for (const Memory *input : this->inputs()) device_->upload(*input);
  }
  spoil(workspace_);  // touched before it is timed, and garbage as it may be
  spoil(cache_);
  spoil_outputs();
}

// A rank that leaves by an exception takes the others with it, who may be waiting inside the library.
RankCase::~RankCase() {
  if (std::uncaught_exceptions() > 0 && context_) lasp_context_abort(context_.get());
}

lasp_traffic RankCase::traffic() const {
  lasp_traffic traffic = LASP_TRAFFIC_INIT;
  check(lasp_comm_get_traffic(link_.comm(), &traffic), "lasp_comm_get_traffic");
  return traffic;
}

void RankCase::forward() {
  lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  args.q = const_buffer(q_);
  args.k = const_buffer(k_);
  args.v = const_buffer(v_);
  args.decay = const_buffer(decay_);
  args.beta = const_buffer(beta_);
  args.o = buffer(o_);
  args.state_cache = buffer(cache_);
  args.workspace = buffer(workspace_);
  check(lasp_forward(plan_.get(), &args, stream()), "lasp_forward");
}

void RankCase::backward() {
  lasp_backward_args args = LASP_BACKWARD_ARGS_INIT;
  args.q = const_buffer(q_);
  args.k = const_buffer(k_);
  args.v = const_buffer(v_);
  args.decay = const_buffer(decay_);
  args.beta = const_buffer(beta_);
  args.d_o = const_buffer(d_o_);
  args.state_cache = const_buffer(cache_);
  args.dq = buffer(dq_);
  args.dk = buffer(dk_);
  args.dv = buffer(dv_);
  args.d_decay = buffer(d_decay_);
  args.d_beta = buffer(d_beta_);
  args.workspace = buffer(workspace_);
  check(lasp_backward(plan_.get(), &args, stream()), "lasp_backward");
}

void RankCase::spoil(const Memory &memory) {
  if (memory.bytes() == 0) return;
  if (device_)
    device_->spoil(memory);
  else
    std::memset(memory.data(), 0xff, memory.bytes());
}

std::string RankCase::kernels() const {
  size_t needed = 0;
  check(lasp_plan_describe(plan_.get(), nullptr, 0, &needed), "lasp_plan_describe");
  std::string text(needed, '\0');
  check(lasp_plan_describe(plan_.get(), text.data(), text.size(), nullptr), "lasp_plan_describe");
  constexpr std::string_view kLine = "backend: ";
  const size_t begin = text.find(kLine);
  return begin == std::string::npos
             ? ""
             : text.substr(begin + kLine.size(), text.find('\n', begin) - begin - kLine.size());
}

size_t RankCase::floor_bytes(bool backward) const {
  const size_t inputs = q_.bytes() + k_.bytes() + v_.bytes() + decay_.bytes() + beta_.bytes();
  if (!backward) return inputs + o_.bytes();
  return inputs + d_o_.bytes() + dq_.bytes() + dk_.bytes() + dv_.bytes() + d_decay_.bytes() + d_beta_.bytes();
}

void RankCase::spoil_outputs() {
  for (const Memory *memory : outputs()) spoil(*memory);
}

double RankCase::error_of(const std::vector<Sample> &samples, const Memory &memory, int32_t heads,
                          int32_t width) const {
  const int32_t dtype = &memory == &d_decay_ ? config_.shape.decay_dtype() : config_.shape.dtype;
  if (!all_finite(memory, dtype)) return kInfinity;
  if (samples.empty()) return -1;
  double difference = 0, norm = 0, all_squares = 0;
  size_t elements = 0, all_elements = 0;
  for (const Sample &sample : samples) {
    for (const double expected : sample.values) all_squares += expected * expected;
    all_elements += sample.values.size();
    elements += static_cast<size_t>(end_token_ - first_token_) * sample.dims.size();
    for (int64_t t = first_token_; t < end_token_; ++t)
      for (size_t i = 0; i < sample.dims.size(); ++i) {
        const int64_t row = sample.batch_row * (end_token_ - first_token_) + t - first_token_;
        const double found = load(memory.data(), (row * heads + sample.head) * width + sample.dims[i], dtype);
        const double expected = sample.values[static_cast<size_t>(t) * sample.dims.size() + i];
        difference += (found - expected) * (found - expected);
        norm += expected * expected;
      }
  }
  // A rank whose own elements are near nothing (the first token's decay has no effect) is held to their average
  // size.
  norm = std::max(norm, all_squares / static_cast<double>(all_elements) * static_cast<double>(elements));
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

// Per-head decay: ranks' shares are summed first. The sum's terms cancel, so the error is set against the sum of
// their sizes (docs/reference/numerics.md).
double RankCase::decay_error(const Reference &reference) {
  const Shape &shape = config_.shape;
  if (shape.decay != LASP_DECAY_HEAD)
    return error_of(reference.d_decay, d_decay_, shape.heads(),
                    d_decay_.bytes() == 0 ? 0 : Inputs(shape).width(Inputs::kDecay));
  double worst = reference.d_decay.empty() ? -1 : 0;
  const auto *mine = static_cast<const float *>(d_decay_.data());
  const auto heads = static_cast<size_t>(shape.heads());
  const std::vector<double> shares = link_.all_gather(std::vector<double>(mine, mine + heads));
  for (const double share : shares)
    if (!std::isfinite(share)) return kInfinity;
  for (size_t i = 0; i < reference.d_decay.size(); ++i) {
    const Sample &sample = reference.d_decay[i];
    double sum = 0;
    for (size_t rank = 0; rank < shares.size() / heads; ++rank) sum += shares[rank * heads + sample.head];
    const double expected = sample.values[0];
    if (sum != expected) worst = std::max(worst, std::abs(sum - expected) / reference.d_decay_size[i]);
  }
  return worst;
}

Errors RankCase::compare(const Reference &reference) {
  const Shape &shape = config_.shape;
  Errors errors{-1, -1, -1, -1, -1};
  if (device_)
    for (const Memory *output : outputs()) device_->download(*output);
  errors[0] = error_of(reference.o, o_, shape.heads(), shape.head_dim_v);
  if (config_.has_backward()) {
    errors[1] = error_of(reference.dq, dq_, shape.heads_q, shape.head_dim_k);
    errors[2] = error_of(reference.dk, dk_, shape.heads_k, shape.head_dim_k);
    errors[3] = error_of(reference.dv, dv_, shape.heads_v, shape.head_dim_v);
    if (shape.decay != LASP_DECAY_NONE && config_.decay_gradient) errors[4] = decay_error(reference);
  }
  return errors;
}

}  // namespace bench
