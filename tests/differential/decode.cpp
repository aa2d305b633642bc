// A group of one steps runs of tokens; its tensors lie as the case says, between canaries.
#include "differential/decode.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "support/strided_tensor.h"

namespace lasp_test {
namespace {

class Stepper {
 public:
  Stepper(const Case &c, const CaseData &data, const std::vector<double> &state, std::string &complaints)
      : case_(c), data_(data), complaints_(complaints) {
    const lasp_context_options options = test_context_options(c);
    ok(lasp_comm_create_self(&comm_));
    ok(lasp_context_create(LASP_ABI, comm_, &options, &context_));
    state_ = std::make_unique<TensorBlock>(static_cast<int64_t>(state.size()), LASP_FLOAT32);
    for (size_t i = 0; i < state.size(); ++i) {
      const float x = static_cast<float>(state[i]);
      std::memcpy(state_->buffer().data() + 4 * i, &x, 4);
    }
  }
  ~Stepper() {
    ok(lasp_context_destroy(context_));
    ok(lasp_comm_destroy(comm_));
  }
  Stepper(const Stepper &) = delete;
  Stepper &operator=(const Stepper &) = delete;

  // o of tokens [begin, begin + count).
  std::vector<float> step(int64_t begin, int64_t count) {
    std::array<StridedTensor, 3> qkv = make_qkv(case_, count, Operand::q);
    const std::vector<float> *const inputs[] = {&data_.q, &data_.k, &data_.v};
    for (int i = 0; i < 3; ++i) qkv[i].load(*inputs[i], case_.tokens, begin);
    StridedTensor o({case_.batch, count, case_.heads(), case_.head_dim_v}, case_.layout, Operand::o, case_.dtype);
    o.block()->poison();
    StridedTensor decay = decay_of(begin, count), beta;
    if (case_.delta) {
      beta = StridedTensor({case_.batch, count, case_.heads(), 1}, case_.layout, Operand::beta, case_.beta_dtype);
      beta.load(data_.beta, case_.tokens, begin);
    }

    RunOptions options;
    options.backward = false;
    lasp_problem p = problem_of(case_, 0, 1, options);
    p.tokens = count;
    p.q = qkv[0].strides(), p.k = qkv[1].strides(), p.v = qkv[2].strides(), p.o = o.strides();
    if (decay.present() && case_.decay != LASP_DECAY_HEAD) p.decay_layout = decay.strides();
    if (beta.present()) p.beta_layout = beta.strides();
    lasp_plan *plan = nullptr;
    ok(lasp_plan_create(context_, &p, &plan));
    lasp_step_args args = LASP_STEP_ARGS_INIT;
    args.q = qkv[0].const_buffer(), args.k = qkv[1].const_buffer(), args.v = qkv[2].const_buffer();
    args.decay = decay.const_buffer();
    if (beta.present()) args.beta = beta.const_buffer();
    args.state = {state_->buffer().call_data(), state_->buffer().bytes()};
    args.o = o.buffer();
    ok(lasp_step(plan, &args, nullptr));
    ok(lasp_plan_destroy(plan));
    require(o.block()->gaps_intact(), "lasp_step wrote outside o\n");
    require(state_->buffer().canaries_intact(), "lasp_step wrote outside the state\n");
    for (const StridedTensor &input : qkv) require(input.block()->as_remembered(), "lasp_step changed an input\n");
    if (beta.present()) require(beta.block()->as_remembered(), "lasp_step changed beta\n");
    if (decay.present()) require(decay.block()->as_remembered(), "lasp_step changed the decay\n");
    return o.values();
  }

  std::vector<double> state() const {
    std::vector<float> values(state_->buffer().bytes() / 4);
    if (!values.empty()) std::memcpy(values.data(), state_->buffer().data(), state_->buffer().bytes());
    return {values.begin(), values.end()};
  }

 private:
  void ok(lasp_status status) { require(status == LASP_OK, std::string("step: ") + lasp_last_error() + "\n"); }
  void require(bool right, const std::string &complaint) {
    if (!right) complaints_ += complaint;
  }

  StridedTensor decay_of(int64_t begin, int64_t count) const {
    if (case_.decay == LASP_DECAY_NONE) return {};
    const bool per_head = case_.decay == LASP_DECAY_HEAD;
    const int64_t width = case_.decay == LASP_DECAY_CHANNEL ? case_.head_dim_k : 1;
    StridedTensor decay =
        per_head ? StridedTensor({1, 1, 1, case_.heads()}, Layout::contiguous, Operand::decay, LASP_FLOAT32)
                 : StridedTensor({case_.batch, count, case_.heads(), width}, case_.layout, Operand::decay,
                                 case_.decay_dtype);
    decay.load(data_.g, per_head ? 1 : case_.tokens, per_head ? 0 : begin);
    return decay;
  }

  const Case &case_;
  const CaseData &data_;
  std::string &complaints_;
  lasp_comm *comm_ = nullptr;
  lasp_context *context_ = nullptr;
  std::unique_ptr<TensorBlock> state_;
};

// The state that stepping starts from: the initial one, or what a forward pass over ranks leaves of `prefill`
// tokens.
std::vector<double> prefilled(const Drawn &d, const CaseData &data, std::string &complaints) {
  const Case &c = d.problem;
  if (d.prefill == 0) {
    const size_t elements = static_cast<size_t>(c.num_sequences() * c.heads() * c.head_dim_k * c.head_dim_v);
    if (data.initial_state.empty()) return std::vector<double>(elements, 0.0);
    return {data.initial_state.begin(), data.initial_state.end()};
  }
  Case head = c;
  head.tokens = d.prefill;
  CaseData head_data = data;
  for (auto tensor : {&CaseData::q, &CaseData::k, &CaseData::v, &CaseData::d_o, &CaseData::beta})
    head_data.*tensor = part_of_rows(data.*tensor, c, 0, d.prefill);
  if (c.decay != LASP_DECAY_HEAD) head_data.g = part_of_rows(data.g, c, 0, d.prefill);
  RunOptions options;
  options.backward = false;
  options.schedule = d.options.schedule;
  Outputs out = run_case(head, head_data, d.transport, d.nranks, options);
  complaints += out.complaints;
  return std::move(out.tensors[kFinalState]);
}

}  // namespace

Decoded prefill_and_decode(const Drawn &d, const CaseData &data) {
  const Case &c = d.problem;
  Decoded decoded;
  const std::vector<double> state = prefilled(d, data, decoded.complaints);
  if (!decoded.complaints.empty()) return decoded;
  const int64_t width = c.heads() * c.head_dim_v, rest = c.tokens - d.prefill;
  decoded.o.resize(static_cast<size_t>(c.batch * rest * width));
  Stepper stepper(c, data, state, decoded.complaints);
  size_t turn = 0;
  for (int64_t at = 0; at < rest && decoded.complaints.empty();) {
    const int64_t count = std::min(d.runs[turn++ % d.runs.size()], rest - at);
    const std::vector<float> o = stepper.step(d.prefill + at, count);
    for (int64_t b = 0; b < c.batch; ++b)
      std::copy_n(o.begin() + b * count * width, count * width, decoded.o.begin() + (b * rest + at) * width);
    at += count;
  }
  decoded.state = stepper.state();
  return decoded;
}

}  // namespace lasp_test
