#include "support/pass_rank.h"

#include <cmath>

#include "support/measure.h"

namespace lasp_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void ok(lasp_status status) { EXPECT_EQ(status, LASP_OK) << lasp_last_error(); }
lasp_const_buffer in(const std::vector<float> &x) {
  return {x.empty() ? nullptr : x.data(), x.size() * sizeof(float)};
}
int64_t used_tokens(const Case &c) { return c.cu_seqlens.empty() ? c.tokens : c.cu_seqlens.back(); }
bool of_states(int id) { return id == kFinalState || id == kDInitialState; }
bool of_heads(const Case &c, int id) { return id == kDDecay && c.decay == LASP_DECAY_HEAD; }

}  // namespace

Pass make_pass(Case c, std::vector<int64_t> offsets, uint64_t seed) {
  c.cu_seqlens = std::move(offsets);
  Pass pass;
  pass.data = make_data(c, seed);
  pass.expected = expected_of(c, pass.data);
  pass.c = std::move(c);
  return pass;
}

PassRank::PassRank(const Case &c, lasp_comm *comm, const Options &options) : options_(options), comm_(comm) {
  ok(lasp_comm_get_rank(comm, &rank, &nranks));
  runs = runs_of_rank(c, rank, nranks);
  lasp_context_options context = test_context_options(c);
  context.verify_messages = options.verify, context.cpu_threads = options.threads;
  ok(lasp_context_create(LASP_ABI, comm, &context, &context_));
  RunOptions run;
  run.schedule = options.schedule;
  lasp_problem p = problem_of(c, rank, nranks, run);
  p.max_sequences = options.max_sequences;
  ok(lasp_plan_create(context_, &p, &plan_));
  ok(lasp_plan_get_info(plan_, &info));
  cache_ = std::make_unique<GuardedBuffer>(info.state_cache_bytes, 64);
  work_ =
      std::make_unique<GuardedBuffer>(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes), 64);
}

PassRank::~PassRank() {
  ok(lasp_plan_destroy(plan_));
  ok(lasp_context_destroy(context_));
  ok(lasp_comm_destroy(comm_));
}

// This rank's tokens, and NaN for padding.
std::vector<float> PassRank::mine(const Case &c, const std::vector<float> &whole) const {
  std::vector<float> part;
  if (whole.empty() || c.tokens == 0) return part;
  const auto width = static_cast<int64_t>(whole.size()) / c.batch / c.tokens;
  for (int64_t b = 0; b < c.batch; ++b)
    for (const TokenRun &run : runs)
      for (int64_t t = run.begin; t < run.begin + run.count; ++t)
        for (int64_t i = 0; i < width; ++i)
          part.push_back(t < used_tokens(c) ? whole[static_cast<size_t>((b * c.tokens + t) * width + i)] : kNan);
  return part;
}

lasp_buffer PassRank::to(TensorId id) {
  return {out[id].empty() ? nullptr : out[id].data(), out[id].size() * sizeof(float)};
}

lasp_status PassRank::run(const Pass &pass, bool narrow) {
  const Case &c = pass.c;
  runs = runs_of_rank(c, rank, nranks);
  q_ = mine(c, pass.data.q), k_ = mine(c, pass.data.k), v_ = mine(c, pass.data.v), d_o_ = mine(c, pass.data.d_o);
  g_ = c.decay == LASP_DECAY_HEAD ? pass.data.g : mine(c, pass.data.g), beta_ = mine(c, pass.data.beta);
  const auto states = static_cast<size_t>(info.num_sequences * c.heads() * c.head_dim_k * c.head_dim_v);
  initial_ = pass.data.initial_state, d_final_ = pass.data.d_final_state;
  initial_.resize(states, kNan), d_final_.resize(states, kNan);
  const auto fresh = [&](TensorId id, size_t size) { out[id].assign(size, kNan); };
  fresh(kO, d_o_.size()), fresh(kDq, q_.size()), fresh(kDk, k_.size()), fresh(kDv, v_.size());
  fresh(kDDecay, g_.size()), fresh(kDBeta, beta_.size()), fresh(kFinalState, states), fresh(kDInitialState, states);
  const PackingOf packing(c.cu_seqlens, narrow);
  complaints_.clear();
  cache_->poison(), work_->poison();
  lasp_forward_args f = LASP_FORWARD_ARGS_INIT;
  f.q = in(q_), f.k = in(k_), f.v = in(v_), f.decay = in(g_), f.beta = in(beta_), f.initial_state = in(initial_);
  f.o = to(kO), f.final_state = to(kFinalState), f.packing = packing.get();
  f.state_cache = {cache_->data(), info.state_cache_bytes};
  f.workspace = {work_->data(), info.workspace_forward_bytes};
  lasp_status status = lasp_forward(plan_, &f, nullptr);
  if (status != LASP_OK) return status;
  const std::vector<float> o = out[kO];
  fresh(kO, o.size()), work_->poison();
  f.reuse_state_cache = 1;
  status = lasp_forward(plan_, &f, nullptr);
  if (status != LASP_OK) return status;
  if (o != out[kO]) complaints_ += "o from the state cache has other bits\n";
  work_->poison();
  lasp_backward_args b = LASP_BACKWARD_ARGS_INIT;
  b.q = f.q, b.k = f.k, b.v = f.v, b.decay = f.decay, b.beta = f.beta, b.initial_state = f.initial_state;
  b.d_o = in(d_o_), b.d_final_state = in(d_final_), b.state_cache = {cache_->data(), info.state_cache_bytes};
  b.dq = to(kDq), b.dk = to(kDk), b.dv = to(kDv), b.d_decay = to(kDDecay), b.d_beta = to(kDBeta);
  b.d_initial_state = to(kDInitialState), b.packing = packing.get();
  b.workspace = {work_->data(), info.workspace_backward_bytes};
  lasp_traffic before = LASP_TRAFFIC_INIT, after = LASP_TRAFFIC_INIT;
  lasp_comm_get_traffic(comm_, &before);
  status = lasp_backward(plan_, &b, nullptr);
  lasp_comm_get_traffic(comm_, &after);
  if (status == LASP_OK && (after.bytes_sent - before.bytes_sent != info.backward_bytes_sent ||
                            after.messages_sent - before.messages_sent != info.backward_messages_sent))
    complaints_ += "lasp_backward sent other bytes or messages than the plan says\n";
  return status;
}

void put_together(const Pass &pass, const PassRank &rank, TensorSet &whole) {
  const Case &c = pass.c;
  const std::vector<TokenRun> runs = runs_of_rank(c, rank.rank, rank.nranks);  // those of this packing
  const auto state = static_cast<size_t>(c.heads() * c.head_dim_k * c.head_dim_v);
  for (int id = 0; id < kTensors; ++id) {
    const std::vector<float> &part = rank.out[id];
    std::vector<double> &to = whole[id];
    to.resize(pass.expected.tensors[id].size(), of_heads(c, id) ? 0.0 : kNan);
    if (of_heads(c, id)) {
      for (size_t i = 0; i < part.size(); ++i) to[i] += part[i];
    } else if (of_states(id)) {
      const size_t count = to.size() / state;
      for (size_t i = 0; i < part.size(); ++i) {
        const size_t n = i / state;
        if (n >= count) {
          ASSERT_TRUE(std::isnan(part[i])) << kTensorNames[id] << " of sequence " << n << ", which is not there";
        } else if (!std::isnan(part[i])) {
          ASSERT_TRUE(std::isnan(to[i])) << kTensorNames[id] << " of sequence " << n << " written by two ranks";
          to[i] = part[i];
        }
      }
    } else if (!part.empty() && c.tokens > 0) {
      const auto width = static_cast<int64_t>(to.size()) / c.batch / c.tokens;
      size_t from = 0;
      for (int64_t b = 0; b < c.batch; ++b)
        for (const TokenRun &run : runs)
          for (int64_t i = (b * c.tokens + run.begin) * width; i < (b * c.tokens + run.begin + run.count) * width;
               ++i)
            to[static_cast<size_t>(i)] = part[from++];
    }
  }
}

std::string compare_pass(const Pass &pass, const TensorSet &found) {
  std::string wrong;
  for (int i = 0; i < kTensors; ++i) {
    const auto id = static_cast<TensorId>(i);
    const std::vector<double> &expected = pass.expected.tensors[id];
    const std::string name = kTensorNames[id];
    if (found[id].size() != expected.size()) {
      wrong += name + " has another size\n";
      continue;
    }
    const double error = relative_error(expected, found[id], id == kDDecay ? pass.expected.d_decay_size : 0.0);
    if (!(error <= error_bound(pass.c, id))) wrong += name + ": error " + std::to_string(error) + "\n";
    if (of_states(id) || of_heads(pass.c, id) || pass.c.tokens == 0 || pass.c.cu_seqlens.empty()) continue;
    const auto width = expected.size() / static_cast<size_t>(pass.c.tokens);
    for (size_t at = static_cast<size_t>(used_tokens(pass.c)) * width; at < expected.size(); ++at)
      if (found[id][at] != 0.0) {
        wrong += name + " of padding is not zero\n";
        break;
      }
  }
  return wrong;
}

}  // namespace lasp_test
