// The steps of one rank, in the order of the header.
#include "support/rank_run.h"

#include <cstring>
#include <numeric>

#include "support/strided_tensor.h"

namespace lasp_test {

lasp_context_options test_context_options(const Case &c) {
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.time_limit_ms = 20000;
  options.cpu_threads = c.cpu_threads;
  return options;
}

lasp_problem problem_of(const Case &c, int32_t rank, int32_t nranks, const RunOptions &options) {
  const std::vector<int64_t> tokens = tokens_of_ranks(c, nranks);
  lasp_problem p = LASP_PROBLEM_INIT;
  p.batch = c.batch;
  p.tokens = tokens[rank];
  if (c.explicit_begin) p.token_begin = std::accumulate(tokens.begin(), tokens.begin() + rank, int64_t{0});
  p.heads_q = c.heads_q, p.heads_k = c.heads_k, p.heads_v = c.heads_v;
  p.head_dim_k = c.head_dim_k, p.head_dim_v = c.head_dim_v;
  p.dtype = c.dtype, p.decay = c.decay, p.decay_dtype = c.decay_dtype, p.mask = c.mask;
  p.write = c.delta ? LASP_WRITE_DELTA : LASP_WRITE_ADDITIVE;
  p.scale = c.scale;
  if (!c.cu_seqlens.empty()) {
    p.cu_seqlens = c.cu_seqlens.data();
    p.num_sequences = c.num_sequences();
  }
  p.schedule = options.schedule, p.pieces = c.pieces, p.cache = c.cache, p.chunk = c.chunk;
  p.backward = options.backward ? 1 : 0;
  p.broadcast_final_state = c.broadcast ? 1 : 0;
  return p;
}

namespace {

class RankRun {
 public:
  RankRun(const Case &c, const CaseData &data, lasp_comm *comm, const RunOptions &options)
      : case_(c), data_(data), comm_(comm), options_(options) {}
  ~RankRun() {
    lasp_plan_destroy(plan_);
    lasp_context_destroy(context_);
  }

  RankResult run() {
    if (!ok(lasp_comm_get_rank(comm_, &rank_, &nranks_), "lasp_comm_get_rank")) return result_;
    owners_ = sequence_owners(case_, nranks_);
    make_tensors();
    if (!make_plan()) return result_;
    check_plan();
    make_buffers();
    for (int32_t i = 0; i < options_.repeats; ++i) {
      if (!forward(i) || (options_.recompute && !recompute()) || (options_.backward && !backward(i))) {
        lasp_context_abort(context_);  // the other ranks need not wait for this one
        break;
      }
      keep_results(i);
    }
    destroy();
    return result_;
  }

 private:
  void complain(const std::string &what) { result_.complaints += what + "\n"; }
  void require(bool right, const std::string &what) {
    if (!right) complain(what);
  }
  bool ok(lasp_status status, const char *call) {
    if (status != LASP_OK) complain(std::string(call) + ": " + lasp_status_name(status) + ": " + lasp_last_error());
    return status == LASP_OK;
  }

  void make_tensors() {
    const std::vector<int64_t> tokens = tokens_of_ranks(case_, nranks_);
    tokens_ = tokens[rank_];
    begin_ = std::accumulate(tokens.begin(), tokens.begin() + rank_, int64_t{0});
    const Layout layout = case_.layout == Layout::packed_qkv ? Layout::contiguous : case_.layout;
    const Extent values = {case_.batch, tokens_, case_.heads(), case_.head_dim_v};
    qkv_ = make_qkv(case_, tokens_);
    dqkv_ = make_qkv(case_, tokens_);
    o_ = StridedTensor(values, layout, case_.dtype);
    d_o_ = StridedTensor(values, layout, case_.dtype);
    if (case_.decay == LASP_DECAY_HEAD) {
      decay_ = StridedTensor({1, 1, 1, case_.heads()}, Layout::contiguous, LASP_FLOAT32);
      d_decay_ = StridedTensor({1, 1, 1, case_.heads()}, Layout::contiguous, LASP_FLOAT32);
      decay_.load(data_.g, 1, 0);
    } else if (case_.decay != LASP_DECAY_NONE) {
      const Extent decays = {case_.batch, tokens_, case_.heads(),
                             case_.decay == LASP_DECAY_SCALAR ? 1 : case_.head_dim_k};
      decay_ = StridedTensor(decays, layout, case_.decay_dtype);
      d_decay_ = StridedTensor(decays, layout, case_.decay_dtype);
      decay_.load(data_.g, case_.tokens, begin_);
    }
    const std::vector<float> *const qkv[] = {&data_.q, &data_.k, &data_.v};
    for (int i = 0; i < 3; ++i) qkv_[i].load(*qkv[i], case_.tokens, begin_);
    d_o_.load(data_.d_o, case_.tokens, begin_);
  }

  bool make_plan() {
    const lasp_context_options context_options = test_context_options(case_);
    if (!ok(lasp_context_create(LASP_ABI, comm_, &context_options, &context_), "lasp_context_create")) return false;
    lasp_problem p = problem_of(case_, rank_, nranks_, options_);
    p.q = qkv_[0].strides(), p.k = qkv_[1].strides(), p.v = qkv_[2].strides(), p.o = o_.strides();
    p.dq = dqkv_[0].strides(), p.dk = dqkv_[1].strides(), p.dv = dqkv_[2].strides(), p.d_o = d_o_.strides();
    if (case_.decay != LASP_DECAY_HEAD && decay_.present()) {
      p.decay_layout = decay_.strides(), p.d_decay_layout = d_decay_.strides();
    }
    result_.plan_status = lasp_plan_create(context_, &p, &plan_);
    return ok(result_.plan_status, "lasp_plan_create") &&
           ok(lasp_plan_get_info(plan_, &result_.info), "lasp_plan_get_info");
  }

  void check_plan() {
    const lasp_plan_info &info = result_.info;
    require(info.rank == rank_ && info.nranks == nranks_, "plan_info: rank or nranks");
    require(info.token_begin == begin_, "plan_info.token_begin = " + std::to_string(info.token_begin));
    require(info.total_tokens == case_.tokens, "plan_info.total_tokens");
    require(info.num_sequences == case_.num_sequences(), "plan_info.num_sequences");
    require(info.heads == case_.heads(), "plan_info.heads");
    require(case_.chunk == 0 || info.chunk == case_.chunk, "plan_info.chunk");
    require(options_.schedule == LASP_SCHEDULE_AUTO ? info.schedule != LASP_SCHEDULE_AUTO
                                                    : info.schedule == options_.schedule,
            "plan_info.schedule = " + std::to_string(info.schedule));
    require(info.alignment != 0 && (info.alignment & (info.alignment - 1)) == 0, "plan_info.alignment");
    const uint64_t cache =
        case_.cache == LASP_CACHE_CHUNKS ? info.state_cache_chunks_bytes : info.state_cache_incoming_bytes;
    require(info.state_cache_bytes == (options_.backward ? cache : 0), "plan_info.state_cache_bytes");
    for (size_t n = 0; n < owners_.size(); ++n) {
      lasp_sequence_info s = LASP_SEQUENCE_INFO_INIT;
      if (!ok(lasp_plan_get_sequence(plan_, static_cast<int64_t>(n), &s), "lasp_plan_get_sequence")) continue;
      const SequenceOwner &owner = owners_[n];
      require(s.begin == owner.begin && s.end == owner.end, "sequence " + std::to_string(n) + ": range");
      require(s.first_rank == owner.first_rank && s.last_rank == owner.last_rank,
              "sequence " + std::to_string(n) + ": ranks " + std::to_string(s.first_rank) + ".." +
                  std::to_string(s.last_rank) + ", expected " + std::to_string(owner.first_rank) + ".." +
                  std::to_string(owner.last_rank));
    }
  }

  size_t state_elements() const { return case_.heads() * case_.head_dim_k * case_.head_dim_v; }

  std::shared_ptr<TensorBlock> state_block() const {
    return std::make_shared<TensorBlock>(case_.num_sequences() * state_elements(), LASP_FLOAT32);
  }

  // A state buffer for reading: NaN for the sequences that are another rank's to read.
  std::shared_ptr<TensorBlock> state_input(const std::vector<float> &states, int32_t SequenceOwner::*owner) const {
    if (states.empty()) return nullptr;
    auto block = state_block();
    for (size_t n = 0; n < owners_.size(); ++n) {
      if (owners_[n].*owner != rank_) continue;
      const size_t at = n * state_elements();
      std::memcpy(block->buffer().data() + 4 * at, &states[at], 4 * state_elements());
    }
    block->remember();
    return block;
  }

  void make_buffers() {
    initial_state_ = state_input(data_.initial_state, &SequenceOwner::first_rank);
    d_final_state_ = state_input(data_.d_final_state, &SequenceOwner::last_rank);
    if (options_.optional_outputs) {
      final_state_ = state_block();
      d_initial_state_ = state_block();
    }
    const size_t alignment = result_.info.alignment;
    state_cache_ = std::make_unique<GuardedBuffer>(result_.info.state_cache_bytes, alignment);
    workspace_forward_ = std::make_unique<GuardedBuffer>(result_.info.workspace_forward_bytes, alignment);
    workspace_backward_ = std::make_unique<GuardedBuffer>(result_.info.workspace_backward_bytes, alignment);
  }

  lasp_buffer given(const StridedTensor &tensor) const {
    return tokens_ == 0 && options_.null_when_empty ? lasp_buffer LASP_BUFFER_INIT : tensor.buffer();
  }
  lasp_const_buffer given_const(const StridedTensor &tensor) const {
    const lasp_buffer b = given(tensor);
    return {b.data, b.bytes};
  }
  static lasp_buffer given(const std::shared_ptr<TensorBlock> &block) {
    if (!block) return LASP_BUFFER_INIT;
    return {block->buffer().data(), block->buffer().bytes()};
  }
  static lasp_const_buffer given_const(const std::shared_ptr<TensorBlock> &block) {
    const lasp_buffer b = given(block);
    return {b.data, b.bytes};
  }
  static lasp_buffer scratch(const std::unique_ptr<GuardedBuffer> &buffer) {
    return buffer->bytes() == 0 ? lasp_buffer LASP_BUFFER_INIT : lasp_buffer{buffer->data(), buffer->bytes()};
  }

  lasp_traffic traffic() {
    lasp_traffic t = LASP_TRAFFIC_INIT;
    ok(lasp_comm_get_traffic(comm_, &t), "lasp_comm_get_traffic");
    return t;
  }
  void check_traffic(const char *pass, const lasp_traffic &before, uint64_t bytes, uint64_t messages, bool first) {
    const lasp_traffic after = traffic();
    const uint64_t sent = after.bytes_sent - before.bytes_sent;
    const uint64_t sent_messages = after.messages_sent - before.messages_sent;
    require(sent == bytes,
            std::string(pass) + " sent " + std::to_string(sent) + " bytes, the plan said " + std::to_string(bytes));
    require(sent_messages == messages, std::string(pass) + " sent " + std::to_string(sent_messages) +
                                           " messages, the plan said " + std::to_string(messages));
    if (!first) return;
    result_.bytes_sent += sent;
    result_.bytes_received += after.bytes_received - before.bytes_received;
  }

  lasp_forward_args forward_args() const {
    lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
    args.q = given_const(qkv_[0]), args.k = given_const(qkv_[1]), args.v = given_const(qkv_[2]);
    args.decay = case_.decay == LASP_DECAY_HEAD ? decay_.const_buffer() : given_const(decay_);
    args.initial_state = given_const(initial_state_);
    args.o = given(o_);
    args.final_state = given(final_state_);
    args.state_cache = scratch(state_cache_);
    args.workspace = scratch(workspace_forward_);
    return args;
  }

  bool forward(int32_t repeat) {
    o_.block()->poison();
    if (final_state_) final_state_->poison();
    state_cache_->poison();
    workspace_forward_->poison(repeat % 2 == 0 ? kPoison : 0);
    const lasp_forward_args args = forward_args();
    const lasp_traffic before = traffic();
    if (!ok(lasp_forward(plan_, &args, nullptr), "lasp_forward")) return false;
    check_traffic("lasp_forward", before, result_.info.forward_bytes_sent, result_.info.forward_messages_sent,
                  repeat == 0);
    check_memory("lasp_forward");
    check_untouched(final_state_, &SequenceOwner::last_rank, case_.broadcast, "final_state");
    return true;
  }

  bool recompute() {
    const std::vector<float> before_values = o_.values();
    o_.block()->poison();
    workspace_forward_->poison();
    lasp_forward_args args = forward_args();
    args.reuse_state_cache = 1;
    const lasp_traffic before = traffic();
    if (!ok(lasp_forward(plan_, &args, nullptr), "lasp_forward from the state cache")) return false;
    check_traffic("lasp_forward from the state cache", before, 0, 0, false);
    require(same_bits(before_values, o_.values()), "lasp_forward from the state cache: o has other bits");
    check_memory("lasp_forward from the state cache");
    return true;
  }

  bool backward(int32_t repeat) {
    for (const StridedTensor &tensor : dqkv_) tensor.block()->poison();
    if (d_decay_.present()) d_decay_.block()->poison();
    if (d_initial_state_) d_initial_state_->poison();
    workspace_backward_->poison(repeat % 2 == 0 ? kPoison : 0);
    lasp_backward_args args = LASP_BACKWARD_ARGS_INIT;
    args.q = given_const(qkv_[0]), args.k = given_const(qkv_[1]), args.v = given_const(qkv_[2]);
    args.decay = case_.decay == LASP_DECAY_HEAD ? decay_.const_buffer() : given_const(decay_);
    args.initial_state = given_const(initial_state_);
    args.d_o = given_const(d_o_);
    args.d_final_state = given_const(d_final_state_);
    const lasp_buffer cache = scratch(state_cache_);
    args.state_cache = {cache.data, cache.bytes};
    args.dq = given(dqkv_[0]), args.dk = given(dqkv_[1]), args.dv = given(dqkv_[2]);
    if (options_.optional_outputs && d_decay_.present()) {
      args.d_decay = case_.decay == LASP_DECAY_HEAD ? d_decay_.buffer() : given(d_decay_);
    }
    args.d_initial_state = given(d_initial_state_);
    args.workspace = scratch(workspace_backward_);
    const lasp_traffic before = traffic();
    if (!ok(lasp_backward(plan_, &args, nullptr), "lasp_backward")) return false;
    check_traffic("lasp_backward", before, result_.info.backward_bytes_sent, result_.info.backward_messages_sent,
                  repeat == 0);
    check_memory("lasp_backward");
    check_untouched(d_initial_state_, &SequenceOwner::first_rank, false, "d_initial_state");
    return true;
  }

  void check_memory(const std::string &call) {
    for (const StridedTensor *t : {&qkv_[0], &qkv_[1], &qkv_[2], &decay_, &d_o_}) {
      if (t->present()) require(t->block()->as_remembered(), call + " changed an input or memory around it");
    }
    for (const auto &block : {initial_state_, d_final_state_}) {
      if (block) require(block->as_remembered(), call + " changed a state it only reads");
    }
    for (const StridedTensor *t : {&dqkv_[0], &dqkv_[1], &dqkv_[2], &d_decay_, &o_}) {
      if (t->present()) require(t->block()->gaps_intact(), call + " wrote outside an output");
    }
    for (const auto &block : {final_state_, d_initial_state_}) {
      if (block) require(block->buffer().canaries_intact(), call + " wrote outside a state");
    }
    for (const auto *buffer : {&state_cache_, &workspace_forward_, &workspace_backward_}) {
      require((*buffer)->canaries_intact(), call + " wrote outside workspace or state cache");
    }
  }

  void check_untouched(const std::shared_ptr<TensorBlock> &states, int32_t SequenceOwner::*owner, bool all_mine,
                       const char *name) {
    if (!states || all_mine) return;
    for (size_t n = 0; n < owners_.size(); ++n) {
      if (owners_[n].*owner == rank_) continue;
      const size_t at = 4 * n * state_elements();
      require(states->buffer().poisoned(at, at + 4 * state_elements()),
              std::string(name) + " of sequence " + std::to_string(n) + " is another rank's to write");
    }
  }

  static std::vector<float> floats(const std::shared_ptr<TensorBlock> &block) {
    std::vector<float> values(block ? block->buffer().bytes() / 4 : 0);
    if (!values.empty()) std::memcpy(values.data(), block->buffer().data(), 4 * values.size());
    return values;
  }
  static bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
  }

  void keep_results(int32_t repeat) {
    std::array<std::vector<float>, kTensors> now;
    now[kO] = o_.values();
    now[kFinalState] = floats(final_state_);
    if (options_.backward) {
      for (int i = 0; i < 3; ++i) now[kDq + i] = dqkv_[i].values();
      if (d_decay_.present() && options_.optional_outputs) now[kDDecay] = d_decay_.values();
      now[kDInitialState] = floats(d_initial_state_);
    }
    for (int i = 0; repeat > 0 && i < kTensors; ++i) {
      require(same_bits(now[i], result_.tensors[i]),
              std::string(kTensorNames[i]) + " has other bits when repeated");
    }
    result_.tensors = std::move(now);
  }

  void destroy() {
    ok(lasp_plan_destroy(plan_), "lasp_plan_destroy");
    ok(lasp_context_destroy(context_), "lasp_context_destroy");
    plan_ = nullptr;
    context_ = nullptr;
  }

  const Case &case_;
  const CaseData &data_;
  lasp_comm *const comm_;
  const RunOptions options_;
  int32_t rank_ = 0, nranks_ = 1;
  int64_t tokens_ = 0, begin_ = 0;
  std::vector<SequenceOwner> owners_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  std::array<StridedTensor, 3> qkv_, dqkv_;
  StridedTensor decay_, d_decay_, o_, d_o_;
  std::shared_ptr<TensorBlock> initial_state_, final_state_, d_initial_state_, d_final_state_;
  std::unique_ptr<GuardedBuffer> state_cache_, workspace_forward_, workspace_backward_;
  RankResult result_;
};

}  // namespace

RankResult run_rank(const Case &c, const CaseData &data, lasp_comm *comm, const RunOptions &options) {
  return RankRun(c, data, comm, options).run();
}

}  // namespace lasp_test
