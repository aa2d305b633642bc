// lasp_backward_args.add: gradients join what is there, in float32 and with one rounding, on any number of ranks.
// The cases are exact: every sum of them is a float32, so that the order in which it is formed does not show.
#include <gtest/gtest.h>

#include "support/dtype.h"
#include "support/group_params.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

constexpr int32_t kAll = LASP_ADD_DQ | LASP_ADD_DK | LASP_ADD_DV | LASP_ADD_D_DECAY | LASP_ADD_D_INITIAL_STATE;

int32_t bits_of(const Case &c) {
  const int32_t bits = c.decay == LASP_DECAY_NONE ? kAll & ~LASP_ADD_D_DECAY : kAll;
  return c.delta ? bits | LASP_ADD_D_BETA : bits;
}

// Of each element what was there, plus the gradient, rounded once.
void expect_sums(const Case &c, const Outputs &gradients, const Outputs &sums, int32_t nranks, bool wide) {
  for (const int id : {kDq, kDk, kDv, kDDecay, kDInitialState, kDBeta}) {
    const std::vector<double> &each = gradients.tensors[id], &sum = sums.tensors[id];
    ASSERT_EQ(each.size(), sum.size()) << kTensorNames[id];
    const bool of_head = id == kDDecay && c.decay == LASP_DECAY_HEAD;  // each rank has a share, and adds it
    const int32_t own = id == kDDecay ? c.decay_dtype : id == kDBeta ? c.beta_dtype : c.dtype;
    const int32_t dtype = wide || of_head || id == kDInitialState ? LASP_FLOAT32 : own;
    for (size_t i = 0; i < each.size(); ++i) {
      const double there = (of_head ? nranks : 1) * double(already_there(static_cast<int64_t>(i)));
      ASSERT_EQ(sum[i], double(round_to_dtype(each[i] + there, dtype))) << kTensorNames[id] << "[" << i << "]";
    }
  }
}

void add_everywhere(const Case &c) {
  const CaseData data = make_data(c);
  for (const int32_t nranks : quick_run() ? std::vector<int32_t>{1, 3} : std::vector<int32_t>{1, 2, 3, 5}) {
    SCOPED_TRACE(c.name + ", " + std::to_string(nranks) + " ranks");
    RunOptions options;
    options.wide_gradients = true;  // what is summed, before it is rounded
    const Outputs gradients = run_case(c, data, Transport::threads, nranks, options);
    if (on_cuda() && (c.dtype != LASP_FLOAT32 || c.segment > 0)) {
      EXPECT_NE(gradients.complaints.find("on the CPU only"), std::string::npos) << gradients.complaints;
      return;
    }
    ASSERT_EQ(gradients.complaints, "");
    for (const bool wide : {true, false}) {
      options.wide_gradients = wide;
      options.add = bits_of(c);
      const Outputs sums = run_case(c, data, Transport::threads, nranks, options);
      if (on_cuda()) {
        EXPECT_NE(sums.complaints.find("gradients are added on the CPU only"), std::string::npos)
            << sums.complaints;
        return;
      }
      ASSERT_EQ(sums.complaints, "");
      expect_sums(c, gradients, sums, nranks, wide);
    }
  }
}

Case exact_case(int32_t decay, int32_t dtype, Layout layout) {
  Case c;
  c.name = "add_" + std::to_string(decay) + "_" + std::to_string(dtype) + "_" + std::to_string(int(layout));
  c.batch = 2, c.tokens = 70, c.heads_q = 4, c.heads_k = 2, c.heads_v = 2, c.head_dim_v = 24, c.chunk = 16;
  c.decay = decay, c.dtype = c.decay_dtype = dtype, c.layout = layout;
  c.exact = true, c.scale = 1.0f;
  if (decay == LASP_DECAY_HEAD) c.tokens = 16;  // a decay of 1/2 leaves more bits than a float32 has of longer ones
  return c;
}

TEST(Add, EveryGradientInEveryType) {
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL})
    for (const int32_t dtype : {LASP_FLOAT32, LASP_BFLOAT16, LASP_FLOAT16})
      add_everywhere(exact_case(decay, dtype, Layout::contiguous));
}

TEST(Add, StridedAndPackedGradients) {
  for (const Layout layout : {Layout::mixed, Layout::packed_qkv, Layout::head_major}) {
    add_everywhere(exact_case(LASP_DECAY_CHANNEL, LASP_FLOAT32, layout));
    add_everywhere(exact_case(LASP_DECAY_SCALAR, LASP_BFLOAT16, layout));
  }
}

TEST(Add, DeltaRule) {
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_CHANNEL}) {
    for (const int32_t dtype : {LASP_FLOAT32, LASP_BFLOAT16}) {
      Case c = exact_case(decay, dtype, Layout::contiguous);
      c.name += "_delta", c.delta = true, c.beta_dtype = dtype;
      add_everywhere(c);
      c.name += "_walk", c.heads_q = c.heads_k = c.heads_v = 2, c.layout = Layout::mixed;
      add_everywhere(c);
    }
  }
}

// Equal heads alone are walked, and a sequence without tokens hands its gradient on.
TEST(Add, WalksEmptySequencesAndSegments) {
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    Case c = exact_case(decay, LASP_FLOAT32, Layout::contiguous);
    c.heads_q = c.heads_k = c.heads_v = 2;
    add_everywhere(c);
    c.name += "_packed", c.batch = 1, c.cu_seqlens = {0, 0, 20, 20, 55, 70};
    add_everywhere(c);
    c.name += "_segment", c.cu_seqlens = {}, c.segment = 16;
    add_everywhere(c);
  }
}

TEST(Add, Bidirectional) {
  for (const int32_t dtype : {LASP_FLOAT32, LASP_BFLOAT16}) {
    Case c = exact_case(LASP_DECAY_NONE, dtype, Layout::contiguous);
    c.name += "_bidirectional", c.mask = LASP_MASK_BIDIRECTIONAL;
    add_everywhere(c);
  }
}

// Those that are not asked for are written over.
TEST(Add, OnlyWhatIsAskedFor) {
  if (on_cuda()) GTEST_SKIP() << "gradients are added on the CPU only";
  const Case c = exact_case(LASP_DECAY_SCALAR, LASP_BFLOAT16, Layout::contiguous);
  const CaseData data = make_data(c);
  const Outputs plain = run_case(c, data, Transport::threads, 2, {});
  RunOptions options;
  options.add = LASP_ADD_DK;
  const Outputs out = run_case(c, data, Transport::threads, 2, options);
  ASSERT_EQ(out.complaints, "");
  EXPECT_EQ(out.tensors[kDq], plain.tensors[kDq]);
  EXPECT_NE(out.tensors[kDk], plain.tensors[kDk]);
  EXPECT_EQ(out.tensors[kDv], plain.tensors[kDv]);
  EXPECT_EQ(out.tensors[kDDecay], plain.tensors[kDDecay]);
  EXPECT_EQ(out.tensors[kDInitialState], plain.tensors[kDInitialState]);
}

}  // namespace
}  // namespace lasp_test
