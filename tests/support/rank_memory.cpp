#include "support/rank_memory.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lasp_test {
namespace {

lasp_buffer given(const std::shared_ptr<TensorBlock> &block) {
  if (!block) return LASP_BUFFER_INIT;
  return {block->buffer().call_data(), block->buffer().bytes()};
}
lasp_buffer given(const std::unique_ptr<GuardedBuffer> &buffer) {
  return buffer->bytes() == 0 ? lasp_buffer LASP_BUFFER_INIT : lasp_buffer{buffer->call_data(), buffer->bytes()};
}
lasp_const_buffer as_const(const lasp_buffer &b) { return {b.data, b.bytes}; }

std::vector<float> floats(const std::shared_ptr<TensorBlock> &block) {
  std::vector<float> values(block ? block->buffer().bytes() / 4 : 0);
  if (!values.empty()) std::memcpy(values.data(), block->buffer().data(), 4 * values.size());
  return values;
}

// Where its size was worked out wrongly a workspace is overrun by as much again: into canaries, not into the heap.
std::unique_ptr<GuardedBuffer> workspace(uint64_t bytes, uint64_t alignment) {
  return std::make_unique<GuardedBuffer>(bytes, alignment, 0, std::clamp<size_t>(bytes, 16 << 10, 1 << 20));
}

CaseData by_ranks(const Case &c, int32_t nranks, const CaseData &data) {
  const auto moved = [&](const std::vector<float> &x) { return in_order_of_ranks(c, nranks, x); };
  return {
      moved(data.q),    moved(data.k),      moved(data.v),   c.decay == LASP_DECAY_HEAD ? data.g : moved(data.g),
      moved(data.beta), data.initial_state, moved(data.d_o), data.d_final_state};
}

uint8_t workspace_content(int32_t repeat) { return repeat % 2 == 0 ? kPoison : 0; }

}  // namespace

RankMemory::RankMemory(const Case &c, const CaseData &data, int32_t rank, int32_t nranks, const RunOptions &options)
    : case_(c),
      data_(by_ranks(c, nranks, data)),
      options_(options),
      rank_(rank),
      nranks_(nranks),
      owners_(sequence_owners(c, nranks)),
      // Ranks may differ in the type, and in the memory that they are in.
      packing_(c.cu_seqlens, rank % 2 == 1, on_cuda() && (static_cast<size_t>(rank) + c.name.size()) % 2 == 0) {
  const std::vector<int64_t> tokens = tokens_of_ranks(case_, nranks);
  tokens_ = tokens[rank_];
  begin_ = std::accumulate(tokens.begin(), tokens.begin() + rank_, int64_t{0});
  const std::vector<TokenRun> runs = runs_of_rank(case_, rank_, nranks);
  first_token_ = runs.empty() ? case_.tokens : runs[0].begin;
  if (case_.ownership == LASP_OWN_ZIGZAG_EACH) first_token_ = rank_ * (tokens_ / 2);  // of one sequence
  const Layout layout = case_.layout == Layout::packed_qkv ? Layout::contiguous : case_.layout;
  const Extent values = {case_.batch, tokens_, case_.heads(), case_.head_dim_v};
  qkv_ = make_qkv(case_, tokens_, Operand::q);
  dqkv_ = make_qkv(case_, tokens_, Operand::dq, options.wide_gradients ? int32_t{LASP_FLOAT32} : case_.dtype);
  o_ = StridedTensor(values, layout, Operand::o, case_.dtype, case_.aligned);
  d_o_ = StridedTensor(values, layout, Operand::d_o, case_.dtype, case_.aligned);
  if (case_.decay == LASP_DECAY_HEAD) {
    decay_ = StridedTensor({1, 1, 1, case_.heads()}, Layout::contiguous, Operand::decay, LASP_FLOAT32);
    d_decay_ = StridedTensor({1, 1, 1, case_.heads()}, Layout::contiguous, Operand::d_decay, LASP_FLOAT32);
    decay_.load(data_.g, 1, 0);
  } else if (case_.decay != LASP_DECAY_NONE) {
    const Extent decays = {case_.batch, tokens_, case_.heads(),
                           case_.decay == LASP_DECAY_SCALAR ? 1 : case_.head_dim_k};
    decay_ = StridedTensor(decays, layout, Operand::decay, case_.decay_dtype, case_.aligned);
    d_decay_ = StridedTensor(decays, layout, Operand::d_decay,
                             options.wide_gradients ? int32_t{LASP_FLOAT32} : case_.decay_dtype, case_.aligned);
    decay_.load(data_.g, case_.tokens, begin_);
  }
  if (case_.delta) {
    const Extent betas = {case_.batch, tokens_, case_.heads(), 1};
    beta_ = StridedTensor(betas, layout, Operand::beta, case_.beta_dtype, case_.aligned);
    d_beta_ = StridedTensor(betas, layout, Operand::d_beta,
                            options.wide_gradients ? int32_t{LASP_FLOAT32} : case_.beta_dtype, case_.aligned);
    beta_.load(data_.beta, case_.tokens, begin_);
  }
  const std::vector<float> *const qkv[] = {&data_.q, &data_.k, &data_.v};
  for (int i = 0; i < 3; ++i) qkv_[i].load(*qkv[i], case_.tokens, begin_);
  d_o_.load(data_.d_o, case_.tokens, begin_);
}

std::shared_ptr<TensorBlock> RankMemory::state_block() const {
  return std::make_shared<TensorBlock>(case_.num_sequences() * state_elements(), LASP_FLOAT32);
}

// A state buffer for reading: NaN for the sequences that are another rank's to read.
std::shared_ptr<TensorBlock> RankMemory::state_input(const std::vector<float> &states,
                                                     int32_t SequenceOwner::*owner) const {
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

void RankMemory::make_for(const lasp_plan_info &info) {
  initial_state_ = state_input(data_.initial_state, &SequenceOwner::first_rank);
  d_final_state_ = state_input(data_.d_final_state, &SequenceOwner::last_rank);
  if (options_.optional_outputs) {
    final_state_ = state_block();
    d_initial_state_ = state_block();
  }
  state_cache_ = std::make_unique<GuardedBuffer>(info.state_cache_bytes, info.alignment);
  workspace_forward_ = workspace(info.workspace_forward_bytes, info.alignment);
  const bool adds = (options_.add & LASP_ADD_DV) != 0;
  workspace_backward_ = workspace(adds ? info.workspace_add_bytes : info.workspace_backward_bytes, info.alignment);
}

void RankMemory::set_strides(lasp_problem &p) const {
  p.q = qkv_[0].strides(), p.k = qkv_[1].strides(), p.v = qkv_[2].strides(), p.o = o_.strides();
  p.dq = dqkv_[0].strides(), p.dk = dqkv_[1].strides(), p.dv = dqkv_[2].strides(), p.d_o = d_o_.strides();
  if (case_.decay != LASP_DECAY_HEAD && decay_.present()) {
    p.decay_layout = decay_.strides(), p.d_decay_layout = d_decay_.strides();
  }
  if (beta_.present()) p.beta_layout = beta_.strides(), p.d_beta_layout = d_beta_.strides();
}

lasp_buffer RankMemory::given(const StridedTensor &tensor) const {
  return tokens_ == 0 && options_.null_when_empty ? lasp_buffer LASP_BUFFER_INIT : tensor.buffer();
}
lasp_const_buffer RankMemory::given_const(const StridedTensor &tensor) const { return as_const(given(tensor)); }
lasp_const_buffer RankMemory::given_decay() const {
  return case_.decay == LASP_DECAY_HEAD ? decay_.const_buffer() : given_const(decay_);
}

lasp_forward_args RankMemory::forward_args() const {
  lasp_forward_args args = LASP_FORWARD_ARGS_INIT;
  args.q = given_const(qkv_[0]), args.k = given_const(qkv_[1]), args.v = given_const(qkv_[2]);
  args.decay = given_decay();
  if (beta_.present()) args.beta = given_const(beta_);
  args.initial_state = as_const(lasp_test::given(initial_state_));
  args.o = given(o_);
  args.final_state = lasp_test::given(final_state_);
  args.state_cache = lasp_test::given(state_cache_);
  args.workspace = lasp_test::given(workspace_forward_);
  args.packing = packing_.get();
  return args;
}

lasp_backward_args RankMemory::backward_args() const {
  lasp_backward_args args = LASP_BACKWARD_ARGS_INIT;
  args.q = given_const(qkv_[0]), args.k = given_const(qkv_[1]), args.v = given_const(qkv_[2]);
  args.decay = given_decay();
  if (beta_.present()) args.beta = given_const(beta_);
  args.initial_state = as_const(lasp_test::given(initial_state_));
  args.d_o = given_const(d_o_);
  args.d_final_state = as_const(lasp_test::given(d_final_state_));
  args.state_cache = as_const(lasp_test::given(state_cache_));
  args.dq = given(dqkv_[0]), args.dk = given(dqkv_[1]), args.dv = given(dqkv_[2]);
  if (options_.optional_outputs && d_decay_.present()) {
    args.d_decay = case_.decay == LASP_DECAY_HEAD ? d_decay_.buffer() : given(d_decay_);
  }
  if (d_beta_.present()) args.d_beta = given(d_beta_);
  args.d_initial_state = lasp_test::given(d_initial_state_);
  args.workspace = lasp_test::given(workspace_backward_);
  args.add = options_.add;
  args.packing = packing_.get();
  return args;
}

void RankMemory::poison_forward(int32_t repeat) {
  o_.block()->poison();
  if (final_state_) final_state_->poison();
  state_cache_->poison();
  workspace_forward_->poison(workspace_content(repeat));
}

void RankMemory::poison_recompute() {
  o_.block()->poison();
  workspace_forward_->poison();
}

void RankMemory::poison_backward(int32_t repeat) {
  for (const StridedTensor &tensor : dqkv_) tensor.block()->poison();
  for (const StridedTensor *tensor : {&d_decay_, &d_beta_})
    if (tensor->present()) tensor->block()->poison();
  if (d_initial_state_) d_initial_state_->poison();
  put_what_is_there();
  workspace_backward_->poison(workspace_content(repeat));
}

void RankMemory::put_what_is_there() {
  const auto put = [&](StridedTensor &tensor, int32_t bit, int64_t heads, int64_t dim) {
    if ((options_.add & bit) == 0 || !tensor.present()) return;
    const bool of_head = heads == 0;
    std::vector<float> all(of_head ? dim : case_.batch * case_.tokens * heads * dim);
    for (size_t i = 0; i < all.size(); ++i) all[i] = already_there(static_cast<int64_t>(i));
    if (!of_head) all = in_order_of_ranks(case_, nranks_, all);
    tensor.load(all, of_head ? 1 : case_.tokens, of_head ? 0 : begin_);
  };
  put(dqkv_[0], LASP_ADD_DQ, case_.heads_q, case_.head_dim_k);
  put(dqkv_[1], LASP_ADD_DK, case_.heads_k, case_.head_dim_k);
  put(dqkv_[2], LASP_ADD_DV, case_.heads_v, case_.head_dim_v);
  if (case_.decay == LASP_DECAY_HEAD) put(d_decay_, LASP_ADD_D_DECAY, 0, case_.heads());
  if (case_.decay == LASP_DECAY_SCALAR) put(d_decay_, LASP_ADD_D_DECAY, case_.heads(), 1);
  if (case_.decay == LASP_DECAY_CHANNEL) put(d_decay_, LASP_ADD_D_DECAY, case_.heads(), case_.head_dim_k);
  put(d_beta_, LASP_ADD_D_BETA, case_.heads(), 1);
  if ((options_.add & LASP_ADD_D_INITIAL_STATE) == 0 || !d_initial_state_) return;
  for (size_t n = 0; n < owners_.size(); ++n) {
    for (size_t i = n * state_elements(); owners_[n].first_rank == rank_ && i < (n + 1) * state_elements(); ++i) {
      const float x = already_there(static_cast<int64_t>(i));
      std::memcpy(d_initial_state_->buffer().data() + 4 * i, &x, 4);
    }
  }
}

template <class Visit>
void RankMemory::each_buffer(Visit visit) const {
  for (const StridedTensor *tensor : {&qkv_[0], &qkv_[1], &qkv_[2], &dqkv_[0], &dqkv_[1], &dqkv_[2], &decay_,
                                      &d_decay_, &beta_, &d_beta_, &o_, &d_o_}) {
    if (tensor->present()) visit(tensor->block()->buffer());
  }
  for (const auto &block : {initial_state_, final_state_, d_initial_state_, d_final_state_}) {
    if (block) visit(block->buffer());
  }
  for (const auto *buffer : {&state_cache_, &workspace_forward_, &workspace_backward_}) visit(**buffer);
}

void RankMemory::stage() const {
  each_buffer([](GuardedBuffer &buffer) { buffer.stage(); });
}
void RankMemory::upload(lasp_stream stream) const {
  each_buffer([stream](GuardedBuffer &buffer) { buffer.upload(stream); });
}
void RankMemory::download(lasp_stream stream) const {
  each_buffer([stream](GuardedBuffer &buffer) { buffer.download(stream); });
}

std::string RankMemory::misdeeds(const std::string &call) const {
  std::string found;
  const auto require = [&](bool right, const char *what) {
    if (!right) found += call + what + "\n";
  };
  for (const StridedTensor *t : {&qkv_[0], &qkv_[1], &qkv_[2], &decay_, &beta_, &d_o_}) {
    if (t->present()) require(t->block()->as_remembered(), " changed an input or memory around it");
  }
  for (const auto &block : {initial_state_, d_final_state_}) {
    if (block) require(block->as_remembered(), " changed a state it only reads");
  }
  for (const StridedTensor *t : {&dqkv_[0], &dqkv_[1], &dqkv_[2], &d_decay_, &d_beta_, &o_}) {
    if (t->present()) require(t->block()->gaps_intact(), " wrote outside an output");
  }
  for (const auto &block : {final_state_, d_initial_state_}) {
    if (block) require(block->buffer().canaries_intact(), " wrote outside a state");
  }
  for (const auto *buffer : {&state_cache_, &workspace_forward_, &workspace_backward_}) {
    require((*buffer)->canaries_intact(), " wrote outside workspace or state cache");
  }
  return found;
}

std::string RankMemory::foreign_states(const std::shared_ptr<TensorBlock> &states, int32_t SequenceOwner::*owner,
                                       const char *name) const {
  std::string found;
  for (size_t n = 0; states && n < owners_.size(); ++n) {
    const size_t at = 4 * n * state_elements();
    if (owners_[n].*owner == rank_ || states->buffer().poisoned(at, at + 4 * state_elements())) continue;
    found += std::string(name) + " of sequence " + std::to_string(n) + " is another rank's to write\n";
  }
  return found;
}
std::string RankMemory::foreign_final_states() const {
  return case_.broadcast ? "" : foreign_states(final_state_, &SequenceOwner::last_rank, "final_state");
}
std::string RankMemory::foreign_initial_gradients() const {
  return foreign_states(d_initial_state_, &SequenceOwner::first_rank, "d_initial_state");
}

std::array<std::vector<float>, kTensors> RankMemory::results() const {
  std::array<std::vector<float>, kTensors> now;
  now[kO] = o_.values();
  now[kFinalState] = floats(final_state_);
  if (options_.backward) {
    for (int i = 0; i < 3; ++i) now[kDq + i] = dqkv_[i].values();
    if (d_decay_.present() && options_.optional_outputs) now[kDDecay] = d_decay_.values();
    now[kDInitialState] = floats(d_initial_state_);
    if (d_beta_.present()) now[kDBeta] = d_beta_.values();
  }
  return now;
}

}  // namespace lasp_test
