#include "known_answers.h"

#include <cmath>

#include "failure.h"
#include "float_bits.h"
#include "inputs.h"
#include "rank_case.h"
#include "reference.h"

namespace bench {
namespace {

using Values = std::vector<double>;

Values read(const Memory &memory, int32_t dtype) {
  Values values(memory.bytes() / dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) values[i] = load(memory.data(), static_cast<int64_t>(i), dtype);
  return values;
}

// What is computed of all tokens of all heads; in the order of RankCase::outputs().
struct Known {
  Values o, dq, dk, dv, d_decay, d_beta;
};

// One head of the recurrence and of its gradient. Vectors lie in arrays [T, H, width].
class Head {
 public:
  Head(const Shape &shape, int32_t head) : s_(shape), head_(head), k_(shape.head_dim_k), v_(shape.head_dim_v) {}

  void run(const Inputs &inputs, Known &to) {
    const int64_t tokens = s_.tokens;
    const Values q = read(inputs.make(Inputs::kQ, 0, tokens), s_.dtype);
    const Values k = read(inputs.make(Inputs::kK, 0, tokens), s_.dtype);
    const Values v = read(inputs.make(Inputs::kV, 0, tokens), s_.dtype);
    const Values d_o = read(inputs.make(Inputs::kDO, 0, tokens), s_.dtype);
    const Values beta = read(inputs.make_beta(0, tokens), LASP_FLOAT32);
    forward(inputs, q, k, v, beta, to);
    backward(inputs, q, k, beta, d_o, to);
  }

 private:
  size_t row(int64_t t, int32_t width) const { return static_cast<size_t>((t * s_.heads() + head_) * width); }
  size_t scalar(int64_t t) const { return row(t, 1); }
  // Of the state's row i.
  double decay(const Inputs &inputs, int64_t t, int32_t i) const {
    return std::exp(double(inputs.log_decay(0, t, head_, i)));
  }
  Values &state(int64_t t) { return states_[static_cast<size_t>(t)]; }

  void forward(const Inputs &inputs, const Values &q, const Values &k, const Values &v, const Values &beta,
               Known &to);
  void backward(const Inputs &inputs, const Values &q, const Values &k, const Values &beta, const Values &d_o,
                Known &to);

  const Shape &s_;
  int32_t head_, k_, v_;
  std::vector<Values> states_;  // decayed, before token t writes; [K, V]
  Values errors_, last_;        // v - S^T k of all tokens, [T, V]; the state
};

// With the delta rule a token writes beta (v - S^T k) in place of v.
void Head::forward(const Inputs &inputs, const Values &q, const Values &k, const Values &v, const Values &beta,
                   Known &to) {
  last_.assign(static_cast<size_t>(k_ * v_), 0);
  for (int64_t t = 0; t < s_.tokens; ++t) {
    const double write = s_.delta() ? beta[scalar(t)] : 1;
    for (int32_t i = 0; i < k_; ++i) {
      const double g = decay(inputs, t, i);
      for (int32_t j = 0; j < v_; ++j) last_[static_cast<size_t>(i * v_ + j)] *= g;
    }
    states_.push_back(last_);
    for (int32_t j = 0; j < v_; ++j) {
      double held = 0;
      for (int32_t i = 0; s_.delta() && i < k_; ++i)
        held += last_[static_cast<size_t>(i * v_ + j)] * k[row(t, k_) + static_cast<size_t>(i)];
      errors_.push_back(v[row(t, v_) + static_cast<size_t>(j)] - held);
      double o = 0;
      for (int32_t i = 0; i < k_; ++i) {
        double &at = last_[static_cast<size_t>(i * v_ + j)];
        at += k[row(t, k_) + static_cast<size_t>(i)] * write * errors_.back();
        o += at * q[row(t, k_) + static_cast<size_t>(i)];
      }
      to.o[row(t, v_) + static_cast<size_t>(j)] = s_.scale() * o;
    }
  }
}

void Head::backward(const Inputs &inputs, const Values &q, const Values &k, const Values &beta, const Values &d_o,
                    Known &to) {
  Values d_state(static_cast<size_t>(k_ * v_), 0.0), d_write(static_cast<size_t>(v_));
  for (int64_t t = s_.tokens - 1; t >= 0; --t) {
    const Values &before = state(t);
    const double write = s_.delta() ? beta[scalar(t)] : 1;
    const double *const error = &errors_[static_cast<size_t>(t * v_)];
    const double *const key = &k[row(t, k_)], *const query = &q[row(t, k_)], *const d_out = &d_o[row(t, v_)];
    for (int32_t j = 0; j < v_; ++j) d_write[static_cast<size_t>(j)] = 0;
    for (int32_t i = 0; i < k_; ++i) {
      double d_query = 0, d_key = 0;
      for (int32_t j = 0; j < v_; ++j) {
        const auto at = static_cast<size_t>(i * v_ + j);
        const double after = before[at] + key[i] * write * error[j];
        d_query += s_.scale() * after * d_out[j];
        d_state[at] += s_.scale() * query[i] * d_out[j];
        d_key += d_state[at] * write * error[j];
        d_write[static_cast<size_t>(j)] += d_state[at] * key[i];
      }
      to.dq[row(t, k_) + static_cast<size_t>(i)] = d_query;
      to.dk[row(t, k_) + static_cast<size_t>(i)] = d_key;
    }
    double d_beta = 0, all = 0;
    for (int32_t j = 0; j < v_; ++j) {
      const double d = d_write[static_cast<size_t>(j)];
      d_beta += d * error[j];
      to.dv[row(t, v_) + static_cast<size_t>(j)] = write * d;
    }
    for (int32_t i = 0; i < k_; ++i) {
      const double g = decay(inputs, t, i);
      double d_decay = 0;
      for (int32_t j = 0; j < v_; ++j) {
        const auto at = static_cast<size_t>(i * v_ + j);
        if (s_.delta()) {
          const double d_held = -write * d_write[static_cast<size_t>(j)];
          d_state[at] += key[i] * d_held;
          to.dk[row(t, k_) + static_cast<size_t>(i)] += before[at] * d_held;
        }
        d_decay += d_state[at] * before[at];
        d_state[at] *= g;
      }
      all += d_decay;
      if (s_.decay == LASP_DECAY_CHANNEL) to.d_decay[row(t, k_) + static_cast<size_t>(i)] = d_decay;
    }
    if (s_.decay != LASP_DECAY_CHANNEL) to.d_decay[scalar(t)] = all;
    to.d_beta[scalar(t)] = d_beta;
  }
}

Known known_of(const Shape &shape) {
  const auto keys = static_cast<size_t>(shape.tokens * shape.heads()) * static_cast<size_t>(shape.head_dim_k);
  const auto values = static_cast<size_t>(shape.tokens * shape.heads()) * static_cast<size_t>(shape.head_dim_v);
  const auto scalars = static_cast<size_t>(shape.tokens * shape.heads());
  const size_t decays = shape.decay == LASP_DECAY_CHANNEL ? keys : scalars;
  Known known{Values(values), Values(keys), Values(keys), Values(values), Values(decays), Values(scalars)};
  const Inputs inputs(shape);
  for (int32_t head = 0; head < shape.heads(); ++head) Head(shape, head).run(inputs, known);
  return known;
}

// Of a rank's part [first, first + found.size()). One whose own values are near nothing is held to their average
// size.
double error_of(const Values &found, const Values &all, size_t first) {
  double difference = 0, norm = 0, whole = 0;
  for (const double value : all) whole += value * value;
  for (size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - all[first + i]) * (found[i] - all[first + i]);
    norm += all[first + i] * all[first + i];
  }
  if (difference == 0) return 0;
  norm = std::max(norm, whole * static_cast<double>(found.size()) / static_cast<double>(all.size()));
  const double error = std::sqrt(difference / norm);
  return std::isfinite(error) ? error : HUGE_VAL;
}

void take_larger(Answer &answer, double error, const char *where) {
  if (error > answer.error || answer.where.empty())
    answer.error = std::max(error, answer.error), answer.where = where;
}

// A plan with buffers in its device's memory, for the calls that RankCase has not.
class SmallPlan {
 public:
  SmallPlan(Link &link, const Config &config) : link_(link), config_(config) {
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 1;
    options.device = config.device;
    options.device_index = link.device();
    lasp_context *context = nullptr;
    check(lasp_context_create(LASP_ABI, link.comm(), &options, &context), "lasp_context_create");
    context_.reset(context);
    const lasp_problem problem = config.problem(link.rank());
    lasp_plan *plan = nullptr;
    check(lasp_plan_create(context, &problem, &plan), "lasp_plan_create");
    plan_.reset(plan);
  }

  lasp_plan *plan() const { return plan_.get(); }
  lasp_stream stream() const { return mirror_ ? mirror_->stream() : nullptr; }
  void upload(const std::vector<const Memory *> &memories, const Memory &shared) {
    if (!config_.on_cuda()) return;
    mirror_ = std::make_unique<DeviceMirror>(link_, memories, &shared);
    for (const Memory *memory : memories) mirror_->upload(*memory);
  }
  void download(const Memory &memory) const {
    if (mirror_) mirror_->download(memory);
  }
  lasp_buffer buffer(const Memory &memory) const { return mirror_ ? mirror_->buffer(memory) : memory.buffer(); }
  lasp_const_buffer input(const Memory &memory) const {
    const lasp_buffer b = buffer(memory);
    return {b.data, b.bytes};
  }

 private:
  Link &link_;
  const Config &config_;
  ContextHandle context_;
  PlanHandle plan_;
  std::unique_ptr<DeviceMirror> mirror_;
};

Memory zeros(size_t bytes) {
  Memory memory(bytes);
  std::fill_n(static_cast<unsigned char *>(memory.data()), bytes, static_cast<unsigned char>(0));
  return memory;
}

}  // namespace

Answer ask_passes(Group &group, const Config &config) {
  const Shape &shape = config.shape;
  const Known known = known_of(shape);
  Answer answer;
  group.run(config.ranks, [&](Link &link) {
    RankCase rank_case(link, config);
    rank_case.forward();
    rank_case.backward();
    const std::vector<const Memory *> outputs = rank_case.outputs();
    const Values *const wanted[] = {&known.o, &known.dq, &known.dk, &known.dv, &known.d_decay, &known.d_beta};
    const char *const names[] = {"o", "dq", "dk", "dv", "d_decay", "d_beta"};
    const auto first = static_cast<size_t>(config.first_token(link.rank()));
    Answer mine;
    mine.most = tolerance(config, rank_case.info().chunk);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i]->bytes() == 0) continue;
      if (rank_case.device() != nullptr) rank_case.device()->download(*outputs[i]);
      const Values found = read(*outputs[i], i < 4 ? shape.dtype : int32_t{LASP_FLOAT32});
      const size_t width = wanted[i]->size() / static_cast<size_t>(shape.tokens);
      take_larger(mine, link.largest(error_of(found, *wanted[i], first * width)), names[i]);
    }
    if (link.rank() == 0) answer = mine;
  });
  return answer;
}

Answer ask_step(Group &group, const Config &config) {
  const Shape &shape = config.shape;
  const Known known = known_of(shape);
  Answer answer;
  group.run(1, [&](Link &link) {
    SmallPlan plan(link, config);
    const Inputs inputs(shape);
    const Memory q = inputs.make(Inputs::kQ, 0, shape.tokens), k = inputs.make(Inputs::kK, 0, shape.tokens);
    const Memory v = inputs.make(Inputs::kV, 0, shape.tokens), decay = inputs.make_decay(0, shape.tokens);
    const Memory beta = inputs.make_beta(0, shape.tokens), state = zeros(shape.state_bytes());
    const Memory o = zeros(known.o.size() * dtype_bytes(shape.dtype)), none(64);
    plan.upload({&q, &k, &v, &decay, &beta, &state, &o}, none);
    lasp_step_args args = LASP_STEP_ARGS_INIT;
    args.q = plan.input(q), args.k = plan.input(k), args.v = plan.input(v);
    if (decay.bytes() > 0) args.decay = plan.input(decay);
    if (beta.bytes() > 0) args.beta = plan.input(beta);
    args.state = plan.buffer(state), args.o = plan.buffer(o);
    args.tokens = shape.tokens;
    check(lasp_step(plan.plan(), &args, plan.stream()), "lasp_step");
    plan.download(o);
    answer = {error_of(read(o, shape.dtype), known.o, 0), tolerance(config, 1), "o"};
  });
  return answer;
}

// Row t of x has channels t * C + c, and what comes back is added to ones: all exact.
Answer ask_halo(Group &group, const Config &config) {
  constexpr int64_t kRows = 3, kChannels = 16;
  Answer answer;
  group.run(config.ranks, [&](Link &link) {
    SmallPlan plan(link, config);
    lasp_halo_options options = LASP_HALO_OPTIONS_INIT;
    options.rows = kRows, options.channels = kChannels;
    options.x.dtype = options.d_x.dtype = LASP_FLOAT32;
    lasp_halo *made = nullptr;
    check(lasp_halo_create(plan.plan(), &options, &made), "lasp_halo_create");
    const std::unique_ptr<lasp_halo, lasp_status (*)(lasp_halo *)> halo(made, lasp_halo_destroy);
    lasp_halo_info info = LASP_HALO_INFO_INIT;
    check(lasp_halo_get_info(made, &info), "lasp_halo_get_info");
    const int64_t first = config.first_token(link.rank()), end = config.first_token(link.rank() + 1);
    const Memory x = zeros(static_cast<size_t>((end - first) * kChannels) * sizeof(float));
    const Memory d_x = zeros(x.bytes()), before = zeros(info.before_bytes), d_before = zeros(info.d_before_bytes);
    const Memory workspace(info.workspace_bytes + 64);
    const auto floats = [](const Memory &memory) { return static_cast<float *>(memory.data()); };
    const auto row_value = [](int64_t i) { return static_cast<float>(i); };
    for (int64_t i = 0; i < (end - first) * kChannels; ++i)
      floats(x)[i] = row_value(first * kChannels + i), floats(d_x)[i] = 1;
    for (int64_t i = 0; i < kRows * kChannels; ++i) floats(d_before)[i] = row_value(i + 1);
    plan.upload({&x, &d_x, &before, &d_before}, workspace);
    lasp_halo_args args = LASP_HALO_ARGS_INIT;
    args.x = plan.input(x), args.before = plan.buffer(before), args.d_before = plan.input(d_before);
    args.d_x = plan.buffer(d_x), args.workspace = plan.buffer(workspace);
    check(lasp_halo_forward(made, &args, plan.stream()), "lasp_halo_forward");
    check(lasp_halo_backward(made, &args, plan.stream()), "lasp_halo_backward");
    plan.download(before);
    plan.download(d_x);
    double before_wrong = 0, d_x_wrong = 0;  // elements
    for (int64_t i = 0; i < kRows * kChannels; ++i) {
      const int64_t at = (first - kRows) * kChannels + i;
      before_wrong += floats(before)[i] != (at >= 0 ? row_value(at) : 0.0f);
    }
    const int64_t given = (end - first - kRows) * kChannels;  // where the rows that the next rank wants begin
    for (int64_t i = 0; i < (end - first) * kChannels; ++i) {
      const bool returns = link.rank() + 1 < link.nranks() && i >= given;
      d_x_wrong += floats(d_x)[i] != 1 + (returns ? row_value(i - given + 1) : 0.0f);
    }
    Answer mine;
    take_larger(mine, link.largest(before_wrong), "before");
    take_larger(mine, link.largest(d_x_wrong), "d_x");
    if (link.rank() == 0) answer = mine;
  });
  return answer;
}

}  // namespace bench
