// lasp_step: decoding after a sequence-parallel prefill gives what one forward pass over everything gives.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "support/group.h"
#include "support/guarded_buffer.h"
#include "support/kinds.h"
#include "support/measure.h"
#include "support/strided_tensor.h"

namespace lasp_test {
namespace {

// A group of one that steps runs of tokens of a case on a state. It has one plan for each length of a run.
class Decoder {
 public:
  Decoder(const Case &c, const CaseData &data, const std::vector<double> &state) : case_(c) {
    const lasp_context_options options = test_context_options(c);
    ok(lasp_comm_create_self(&comm_));
    ok(lasp_context_create(LASP_ABI, comm_, &options, &context_));
    take(data, state);
  }
  ~Decoder() {
    for (const auto &[count, plan] : plans_) ok(lasp_plan_destroy(plan));
    ok(lasp_context_destroy(context_));
    ok(lasp_comm_destroy(comm_));
  }

  // From here on another sequence's tokens, and its state.
  void take(const CaseData &data, const std::vector<double> &state) {
    data_ = &data;
    state_ = std::make_unique<TensorBlock>(static_cast<int64_t>(state.size()), LASP_FLOAT32);
    for (size_t i = 0; i < state.size(); ++i) {
      const float x = static_cast<float>(state[i]);
      std::memcpy(state_->buffer().data() + 4 * i, &x, 4);
    }
  }

  // o of tokens [begin, begin + count), contiguous.
  std::vector<float> step(int64_t begin, int64_t count) {
    std::array<StridedTensor, 3> qkv = make_qkv(case_, count, Operand::q);
    const std::vector<float> *const inputs[] = {&data_->q, &data_->k, &data_->v};
    for (int i = 0; i < 3; ++i) qkv[i].load(*inputs[i], case_.tokens, begin);
    StridedTensor o({case_.batch, count, case_.heads(), case_.head_dim_v}, case_.layout, Operand::o, case_.dtype);
    StridedTensor decay = decay_of(begin, count), beta = beta_of(begin, count);

    lasp_problem p = problem_of(case_, 0, 1, {.backward = false});
    p.tokens = count;
    p.q = qkv[0].strides(), p.k = qkv[1].strides(), p.v = qkv[2].strides(), p.o = o.strides();
    if (decay.present() && case_.decay != LASP_DECAY_HEAD) p.decay_layout = decay.strides();
    if (beta.present()) p.beta_layout = beta.strides();
    lasp_plan *&plan = plans_[count];
    if (plan == nullptr) ok(lasp_plan_create(context_, &p, &plan));
    lasp_step_args args = LASP_STEP_ARGS_INIT;
    args.q = qkv[0].const_buffer(), args.k = qkv[1].const_buffer(), args.v = qkv[2].const_buffer();
    args.decay = decay.const_buffer();
    if (beta.present()) args.beta = beta.const_buffer();
    args.state = {state_->buffer().call_data(), state_->buffer().bytes()};
    args.o = o.buffer();
    std::vector<GuardedBuffer *> buffers = {&o.block()->buffer(), &state_->buffer()};
    for (const StridedTensor &input : qkv) buffers.push_back(&input.block()->buffer());
    for (const StridedTensor *given : {&decay, &beta})
      if (given->present()) buffers.push_back(&given->block()->buffer());
    for (GuardedBuffer *buffer : buffers) buffer->upload(nullptr);
    ok(lasp_step(plan, &args, nullptr));
    for (GuardedBuffer *buffer : buffers) buffer->download(nullptr);
    EXPECT_TRUE(o.block()->gaps_intact());
    EXPECT_TRUE(state_->buffer().canaries_intact());
    for (const StridedTensor &input : qkv) EXPECT_TRUE(input.block()->as_remembered());
    return o.values();
  }

  std::vector<double> state() const {
    std::vector<float> values(state_->buffer().bytes() / 4);
    std::memcpy(values.data(), state_->buffer().data(), state_->buffer().bytes());
    return std::vector<double>(values.begin(), values.end());
  }

 private:
  static void ok(lasp_status status) { EXPECT_EQ(status, LASP_OK) << lasp_last_error(); }

  StridedTensor decay_of(int64_t begin, int64_t count) const {
    if (case_.decay == LASP_DECAY_NONE) return {};
    const bool per_head = case_.decay == LASP_DECAY_HEAD;
    const int64_t width = case_.decay == LASP_DECAY_CHANNEL ? case_.head_dim_k : 1;
    StridedTensor decay =
        per_head ? StridedTensor({1, 1, 1, case_.heads()}, Layout::contiguous, Operand::decay, LASP_FLOAT32)
                 : StridedTensor({case_.batch, count, case_.heads(), width}, case_.layout, Operand::decay,
                                 case_.decay_dtype);
    decay.load(data_->g, per_head ? 1 : case_.tokens, per_head ? 0 : begin);
    return decay;
  }

  StridedTensor beta_of(int64_t begin, int64_t count) const {
    if (!case_.delta) return {};
    StridedTensor beta({case_.batch, count, case_.heads(), 1}, case_.layout, Operand::beta, case_.beta_dtype);
    beta.load(data_->beta, case_.tokens, begin);
    return beta;
  }

  const Case &case_;
  const CaseData *data_ = nullptr;
  lasp_comm *comm_ = nullptr;
  lasp_context *context_ = nullptr;
  std::map<int64_t, lasp_plan *> plans_;
  std::unique_ptr<TensorBlock> state_;
};

// The first `count` tokens of each row of a [B, T, width] tensor.
std::vector<float> prefix(const std::vector<float> &x, const Case &c, int64_t count) {
  if (x.empty()) return x;
  const int64_t row = static_cast<int64_t>(x.size()) / c.batch, kept = row / c.tokens * count;
  std::vector<float> result;
  for (int64_t b = 0; b < c.batch; ++b)
    result.insert(result.end(), x.begin() + b * row, x.begin() + b * row + kept);
  return result;
}

void prefill_and_decode(const Case &c) {
  constexpr int64_t kPrefix = 37;
  const CaseData data = make_data(c);
  Case head = c;
  head.tokens = kPrefix;
  CaseData head_data = data;
  for (auto tensor : {&CaseData::q, &CaseData::k, &CaseData::v, &CaseData::d_o, &CaseData::beta}) {
    head_data.*tensor = prefix(data.*tensor, c, kPrefix);
  }
  if (c.decay != LASP_DECAY_HEAD) head_data.g = prefix(data.g, c, kPrefix);
  RunOptions options;
  options.backward = false;
  const Outputs prefill = run_case(head, head_data, Transport::threads, 3, options);
  ASSERT_EQ(prefill.complaints, "");

  const TensorSet expected = expected_of(c, data).tensors;
  std::vector<double> tail, expected_tail;  // the prefix is the conformance cases' to check
  Decoder decoder(c, data, prefill.tensors[kFinalState]);
  const int64_t width = c.heads() * c.head_dim_v;
  int64_t begin = kPrefix;
  for (const int64_t count : {1, 1, 3, 1, 7}) {
    const std::vector<float> o = decoder.step(begin, count);
    for (int64_t b = 0; b < c.batch; ++b) {
      const auto from = expected[kO].begin() + (b * c.tokens + begin) * width;
      expected_tail.insert(expected_tail.end(), from, from + count * width);
    }
    tail.insert(tail.end(), o.begin(), o.end());
    begin += count;
  }
  ASSERT_EQ(begin, c.tokens);
  EXPECT_LE(relative_error(expected_tail, tail), error_bound(c, kO)) << c.name;
  EXPECT_LE(relative_error(expected[kFinalState], decoder.state()), error_bound(c, kFinalState)) << c.name;
}

Case step_case(int32_t decay, bool delta = false) {
  Case c;
  c.name = "step";
  c.delta = delta;
  c.batch = 2, c.tokens = 50, c.heads_q = 4, c.head_dim_k = 24, c.decay = decay;
  return c;
}

TEST(Step, AfterPrefillEqualsFullForward) {
  for (const int32_t decay : kDecays) prefill_and_decode(step_case(decay));
}

TEST(Step, DeltaRule) {
  for (const int32_t decay : kDecays) {
    for (const Layout layout : {Layout::contiguous, Layout::mixed}) {
      for (const int32_t dtype : {LASP_FLOAT32, LASP_BFLOAT16}) {
        Case c = step_case(decay, true);
        c.layout = layout, c.dtype = c.decay_dtype = c.beta_dtype = dtype;
        prefill_and_decode(c);
      }
    }
    Case strong = step_case(decay, true);
    strong.mean_decay = 12.0, strong.most_beta = 2.0;
    prefill_and_decode(strong);
  }
}

TEST(Step, LayoutsOfEveryKind) {
  for (const int32_t decay : kDecays) {
    for (const Layout layout : {Layout::head_major, Layout::packed_qkv, Layout::padded, Layout::mixed}) {
      Case c = step_case(decay);
      c.layout = layout;
      prefill_and_decode(c);
    }
  }
}

TEST(Step, SixteenBitTensors) {
  for (const int32_t decay : kDecays) {
    for (const int32_t dtype : {LASP_BFLOAT16, LASP_FLOAT16}) {
      Case c = step_case(decay);
      c.dtype = c.decay_dtype = dtype;
      prefill_and_decode(c);
    }
  }
}

TEST(Step, StrongDecay) {
  for (const int32_t decay : {LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    Case c = step_case(decay);
    c.constant_decay = -60.0;
    prefill_and_decode(c);
  }
}

// A plan of more tokens serves calls of fewer: its rows begin with them. What is behind them is left alone.
TEST(Step, TakesFewerTokensThanThePlan) {
  constexpr int64_t kRoom = 7, kWidth = 2 * 16;
  for (const int32_t decay : kDecays)
    for (const bool delta : {false, true}) {
      Case c;
      c.name = "step_of_fewer", c.batch = 2, c.tokens = kRoom, c.decay = decay, c.delta = delta;
      const CaseData data = make_data(c);
      const TensorSet expected = expected_of(c, data).tensors;
      const lasp_context_options options = test_context_options(c);
      lasp_comm *comm = nullptr;
      lasp_context *context = nullptr;
      lasp_plan *plan = nullptr;
      const lasp_problem p = problem_of(c, 0, 1, {.backward = false});
      ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
      ASSERT_EQ(lasp_context_create(LASP_ABI, comm, &options, &context), LASP_OK) << lasp_last_error();
      ASSERT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
      GuardedBuffer state(data.initial_state.size() * 4, 64);
      std::memcpy(state.data(), data.initial_state.data(), state.bytes());
      state.upload(nullptr);
      int64_t begin = 0;
      for (const int64_t count : {1, 4, 2}) {
        // Rows of kRoom tokens, NaN behind the first ones.
        std::vector<std::unique_ptr<GuardedBuffer>> given;
        const auto rows = [&](const std::vector<float> &x, bool per_head) -> lasp_const_buffer {
          if (x.empty()) return {nullptr, 0};
          given.push_back(std::make_unique<GuardedBuffer>(x.size() * 4, 64));
          GuardedBuffer &buffer = *given.back();
          buffer.poison();
          const size_t width = x.size() / static_cast<size_t>(c.batch * kRoom);
          if (per_head) std::memcpy(buffer.data(), x.data(), buffer.bytes());
          for (int64_t b = 0; !per_head && b < c.batch; ++b)
            std::memcpy(buffer.data() + static_cast<size_t>(b * kRoom) * width * 4,
                        x.data() + static_cast<size_t>(b * kRoom + begin) * width,
                        static_cast<size_t>(count) * width * 4);
          buffer.upload(nullptr);
          return {buffer.call_data(), buffer.bytes()};
        };
        GuardedBuffer o(static_cast<size_t>(c.batch * kRoom * kWidth) * 4, 64);
        o.poison();
        o.upload(nullptr);
        lasp_step_args args = LASP_STEP_ARGS_INIT;
        args.q = rows(data.q, false), args.k = rows(data.k, false), args.v = rows(data.v, false);
        args.decay = rows(data.g, decay == LASP_DECAY_HEAD), args.beta = rows(data.beta, false);
        args.state = {state.call_data(), state.bytes()}, args.o = {o.call_data(), o.bytes()};
        args.tokens = count;
        ASSERT_EQ(lasp_step(plan, &args, nullptr), LASP_OK) << lasp_last_error();
        o.download(nullptr), state.download(nullptr);
        std::vector<float> found(o.bytes() / 4);
        std::memcpy(found.data(), o.data(), o.bytes());
        std::vector<double> wanted, got;
        for (int64_t b = 0; b < c.batch; ++b)
          for (int64_t t = 0; t < kRoom; ++t)
            for (int64_t i = 0; i < kWidth; ++i) {
              const auto at = static_cast<size_t>((b * kRoom + t) * kWidth + i);
              if (t < count) {
                wanted.push_back(expected[kO][at + static_cast<size_t>(begin * kWidth)]), got.push_back(found[at]);
              } else {
                ASSERT_TRUE(o.poisoned(4 * at, 4 * at + 4)) << "token " << t << " of " << count;
              }
            }
        EXPECT_LE(relative_error(wanted, got), error_bound(c, kO)) << decay << " " << delta << " " << begin;
        begin += count;
      }
      std::vector<float> last(data.initial_state.size());
      std::memcpy(last.data(), state.data(), state.bytes());
      EXPECT_LE(relative_error(expected[kFinalState], std::vector<double>(last.begin(), last.end())),
                error_bound(c, kFinalState));
      EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
      EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
      EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
    }
}

// Two sequences take turns, with decays that differ in one head: what the plan keeps of one is not the other's.
TEST(Step, OnePlanTakesEachCallsOwnDecay) {
  for (const int32_t decay : {LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    for (int64_t head = 0; head < 3; ++head) {
      Case c;
      c.name = "step_in_turn";
      c.tokens = 6, c.heads_q = c.heads_k = c.heads_v = 3, c.head_dim_k = 8, c.decay = decay;
      CaseData data[2] = {make_data(c), make_data(c)};
      const int64_t width = decay == LASP_DECAY_CHANNEL ? c.head_dim_k : 1;
      for (size_t i = 0; i < data[1].g.size(); ++i) {
        if (static_cast<int64_t>(i) / width % 3 == head) data[1].g[i] *= 0.5f;
      }
      std::vector<double> states[2], o[2];
      for (std::vector<double> &state : states)
        state.assign(data[0].initial_state.begin(), data[0].initial_state.end());
      Decoder decoder(c, data[0], states[0]);
      for (int64_t token = 0; token < c.tokens; ++token) {
        for (int turn = 0; turn < 2; ++turn) {
          decoder.take(data[turn], states[turn]);
          const std::vector<float> values = decoder.step(token, 1);
          o[turn].insert(o[turn].end(), values.begin(), values.end());
          states[turn] = decoder.state();
        }
      }
      for (int turn = 0; turn < 2; ++turn) {
        const TensorSet expected = expected_of(c, data[turn]).tensors;
        EXPECT_LE(relative_error(expected[kO], o[turn]), error_bound(c, kO)) << decay << " " << head;
        EXPECT_LE(relative_error(expected[kFinalState], states[turn]), error_bound(c, kFinalState))
            << decay << " " << head;
      }
    }
  }
}

}  // namespace
}  // namespace lasp_test
