// lasp_backward_args.add: gradients join what is there, in float32 and with one rounding, on any number of ranks.
// The cases are exact: every sum of them is a float32, so that the order in which it is formed does not show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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

// The largest difference that is allowed of a sum with this gradient. On the CPU none: the cases are exact. So they
// are on a GPU in float32; 16-bit tensors go by tensor cores there, with states of 16 bits and kernels that depend
// on what is asked for: what is compared are two results that are each within a few of the type's units of the
// tensor's largest.
double tolerance(const std::vector<double> &gradients, int32_t id, const Case &c, bool same_kernels) {
  if (!on_cuda()) return 0;
  double largest = 0;
  for (const double x : gradients) largest = std::max(largest, std::abs(x));
  const bool of_sums = id == kDDecay || id == kDInitialState || id == kDBeta;  // by other kernels, in another order
  if (c.dtype == LASP_FLOAT32) return of_sums ? 1e-6 * (1 + largest) : 0;
  if (same_kernels && !of_sums) return 0;
  const double unit = c.dtype == LASP_BFLOAT16 ? 0x1p-8 : 0x1p-11;
  return 4 * unit * largest;
}

// Of each element what was there, plus the gradient, rounded once.
void expect_sums(const Case &c, const Outputs &gradients, const Outputs &sums, int32_t nranks, bool wide) {
  for (const int id : {kDq, kDk, kDv, kDDecay, kDInitialState, kDBeta}) {
    const std::vector<double> &each = gradients.tensors[id], &sum = sums.tensors[id];
    ASSERT_EQ(each.size(), sum.size()) << kTensorNames[id];
    const bool of_head = id == kDDecay && c.decay == LASP_DECAY_HEAD;  // each rank has a share, and adds it
    const int32_t own = id == kDDecay ? c.decay_dtype : id == kDBeta ? c.beta_dtype : c.dtype;
    const int32_t dtype = wide || of_head || id == kDInitialState ? LASP_FLOAT32 : own;
    const double bound = tolerance(each, id, c, wide);
    for (size_t i = 0; i < each.size(); ++i) {
      const double there = (of_head ? nranks : 1) * double(already_there(static_cast<int64_t>(i)));
      const double expected = double(round_to_dtype(each[i] + there, dtype));
      const double of_sum = bound == 0 || dtype == LASP_FLOAT32 ? 0 : std::abs(expected) * 0x1p-7;
      ASSERT_LE(std::abs(sum[i] - expected), bound + of_sum) << kTensorNames[id] << "[" << i << "]";
    }
  }
}

void add_everywhere(const Case &c) {
  const CaseData data = make_data(c);
  for (const int32_t nranks : quick_run() ? std::vector<int32_t>{1, 2, 3} : std::vector<int32_t>{1, 2, 3, 5}) {
    SCOPED_TRACE(c.name + ", " + std::to_string(nranks) + " ranks");
    RunOptions options;
    if (nranks == 2 && serves(LASP_SCHEDULE_RELAY, c)) options.schedule = LASP_SCHEDULE_RELAY;
    options.wide_gradients = true;  // what is summed, before it is rounded
    const Outputs gradients = run_case(c, data, Transport::threads, nranks, options);
    if (on_cuda() && c.segment > 0) {
      EXPECT_NE(gradients.complaints.find("on the CPU only"), std::string::npos) << gradients.complaints;
      return;
    }
    ASSERT_EQ(gradients.complaints, "");
    for (const bool wide : {true, false}) {
      options.wide_gradients = wide;
      options.add = bits_of(c);
      const Outputs sums = run_case(c, data, Transport::threads, nranks, options);
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

// What the fastest kernels of a GPU add to themselves: they give the bits that they give without, and one rounding
// more where d_decay has 16 bits, for what it is compared with was rounded, too.
TEST(Add, DecayAndInitialStateAlone) {
  for (const int32_t decay : {LASP_DECAY_HEAD, LASP_DECAY_SCALAR})
    for (const int32_t dtype : {LASP_BFLOAT16, LASP_FLOAT16})
      for (const int32_t heads_k : {4, 2}) {
        Case c = exact_case(decay, dtype, Layout::contiguous);
        c.exact = false, c.scale = 0, c.heads_k = c.heads_v = heads_k;
        if (on_cuda()) c.tokens = 300, c.head_dim_k = c.head_dim_v = heads_k == 4 ? 64 : 128;
        SCOPED_TRACE(c.name + ", " + std::to_string(heads_k) + " heads of k");
        const CaseData data = make_data(c);
        const Outputs plain = run_case(c, data, Transport::threads, 2, {});
        RunOptions options;
        options.add = LASP_ADD_D_DECAY | LASP_ADD_D_INITIAL_STATE;
        const Outputs sums = run_case(c, data, Transport::threads, 2, options);
        ASSERT_EQ(sums.complaints, "");
        for (const int id : {kDq, kDk, kDv}) EXPECT_EQ(sums.tensors[id], plain.tensors[id]) << kTensorNames[id];
        for (const int id : {kDDecay, kDInitialState}) {
          const bool rounded = id == kDDecay && decay == LASP_DECAY_SCALAR;
          const double unit = !rounded ? 0x1p-23 : dtype == LASP_BFLOAT16 ? 0x1p-8 : 0x1p-11;
          const double there_by = id == kDDecay && decay == LASP_DECAY_HEAD ? 2 : 1;  // each rank has a share
          for (size_t i = 0; i < plain.tensors[id].size(); ++i) {
            const double there = there_by * double(already_there(static_cast<int64_t>(i))),
                         each = plain.tensors[id][i];
            EXPECT_LE(std::abs(sums.tensors[id][i] - (each + there)),
                      unit * (2 * std::abs(each) + 2 * std::abs(there)))
                << kTensorNames[id] << "[" << i << "]";
          }
        }
      }
}

// Of the dimensions that a GPU has its fastest kernels for: passes that add to more go by others, and so do wide
// gradients.
TEST(Add, WideHeads) {
  if (!on_cuda()) GTEST_SKIP() << "on a GPU";
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL})
    for (const int32_t dtype : {LASP_BFLOAT16, LASP_FLOAT16})
      for (const int32_t heads_k : {4, 2}) {
        Case c = exact_case(decay, dtype, Layout::contiguous);
        c.exact = false, c.scale = 0;
        c.name += "_wide_" + std::to_string(heads_k);
        c.batch = 1, c.tokens = decay == LASP_DECAY_HEAD ? 256 : 600;
        c.head_dim_k = c.head_dim_v = 128, c.heads_k = c.heads_v = heads_k;
        c.decay_dtype = dtype == LASP_FLOAT16 ? LASP_FLOAT32 : dtype;
        add_everywhere(c);
        c.name += "_delta", c.delta = true, c.beta_dtype = dtype;
        add_everywhere(c);
      }
}

// Float32 gradients of 16-bit inputs are not rounded on their way: next to the same problem in float32 they are off
// by what states of 16 bits cost, and not by a rounding to 16 bits of each, which would leave their low bits zero.
TEST(WideGradients, HaveTheBitsOfFloat32) {
  for (const bool delta : {false, true})
    for (const int32_t heads_k : {4, 2}) {
      Case c = exact_case(LASP_DECAY_SCALAR, LASP_BFLOAT16, Layout::contiguous);
      c.exact = false, c.scale = 0, c.delta = delta, c.beta_dtype = LASP_BFLOAT16;
      c.name += "_bits_" + std::to_string(heads_k) + (delta ? "_delta" : "");
      c.head_dim_k = c.head_dim_v = 128, c.heads_q = 4, c.heads_k = c.heads_v = heads_k;
      SCOPED_TRACE(c.name);
      RunOptions options;
      options.wide_gradients = true;
      const CaseData data = make_data(c);
      const Outputs out = run_case(c, data, Transport::threads, 2, options);
      ASSERT_EQ(out.complaints, "");
      const TensorSet expected = expected_of(c, data).tensors;
      for (const int id : {kDq, kDk, kDv, kDDecay}) {
        const std::vector<double> &values = out.tensors[id];
        const auto rounded = std::count_if(
            values.begin(), values.end(), [](double x) { return x != 0 && round_to_dtype(x, LASP_BFLOAT16) == x; });
        EXPECT_LT(rounded, static_cast<int64_t>(values.size() / 10)) << kTensorNames[id];
        EXPECT_LE(relative_error(expected[id], values), error_bound(c, static_cast<TensorId>(id), out.tensor_cores))
            << kTensorNames[id];
      }
    }
}

}  // namespace
}  // namespace lasp_test
