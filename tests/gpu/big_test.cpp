// Tensors of more than 2^31 elements. With a decay of exp(-1/4) per token nothing older than 150 tokens reaches
// float32's last bit, so that any one token's results follow from its neighbours alone: sampled tokens, those at
// and beyond element 2^31 among them, are held to float64 sums over 160 tokens. About 60 GiB of device memory; runs
// when LASP_TEST_BIG is in the environment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "support/device.h"
#include "support/dtype.h"
#include "support/group.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

constexpr int64_t kHeads = 32, kDim = 128, kRow = kHeads * kDim;
constexpr int64_t kTokens = (int64_t{1} << 31) / kRow + 4099, kWindow = 160;
constexpr int64_t kPeriod = 8191;  // tokens after which inputs repeat; a prime, so that no chunk or run fits it
constexpr double kLogDecay = -0.25;

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes), data_(gpu::allocate(bytes)) {
    gpu::fill(data_, 0xff, bytes_, nullptr);
  }
  ~DeviceMemory() { gpu::release(data_, bytes_); }
  DeviceMemory(const DeviceMemory &) = delete;
  DeviceMemory &operator=(const DeviceMemory &) = delete;
  char *data() const { return static_cast<char *>(data_); }
  lasp_buffer buffer() const { return {data_, bytes_}; }
  lasp_const_buffer const_buffer() const { return {data_, bytes_}; }

 private:
  size_t bytes_;
  void *data_;
};

// A bfloat16 tensor [1, T, H, 128], or room for one.
class Tensor {
 public:
  Tensor() : memory_(kTokens * kRow * 2) {}
  explicit Tensor(uint32_t seed) : Tensor() {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    period_.resize(kPeriod * kRow);
    for (uint16_t &x : period_) x = encode_16(normal(random), LASP_BFLOAT16);
    const size_t all = kTokens * kRow * 2;
    gpu::copy(memory_.data(), period_.data(), period_.size() * 2, nullptr);
    for (size_t filled = period_.size() * 2; filled < all; filled *= 2)
      gpu::copy(memory_.data() + filled, memory_.data(), std::min(filled, all - filled), nullptr);
    gpu::wait(nullptr);
  }
  const DeviceMemory &memory() const { return memory_; }
  // Element d of an input.
  double at(int64_t t, int64_t h, int64_t d) const {
    return decode_16(period_[(t % kPeriod * kHeads + h) * kDim + d], LASP_BFLOAT16);
  }
  double dot(int64_t t, const Tensor &other, int64_t u, int64_t h) const {
    double sum = 0;
    for (int64_t d = 0; d < kDim; ++d) sum += at(t, h, d) * other.at(u, h, d);
    return sum;
  }
  // The elements of a result.
  void append_row(int64_t t, int64_t h, std::vector<double> &to) const {
    uint16_t row[kDim];
    gpu::copy(row, memory_.data() + (t * kHeads + h) * kDim * 2, sizeof row, nullptr);
    gpu::wait(nullptr);
    for (const uint16_t x : row) to.push_back(decode_16(x, LASP_BFLOAT16));
  }

 private:
  DeviceMemory memory_;
  std::vector<uint16_t> period_;
};

// sum over u of scale exp(g |t-u|) (a_t . b_u) c_u, u from t back or from t on.
void append_sum(const Tensor &a, const Tensor &b, const Tensor &c, int64_t t, int64_t h, int step,
                std::vector<double> &to) {
  std::vector<double> sum(kDim, 0.0);
  for (int64_t u = t; u >= 0 && u < kTokens && std::abs(u - t) < kWindow; u += step) {
    const double weight = std::exp(kLogDecay * static_cast<double>(std::abs(u - t))) * a.dot(t, b, u, h);
    for (int64_t d = 0; d < kDim; ++d) sum[d] += weight / std::sqrt(double{kDim}) * c.at(u, h, d);
  }
  to.insert(to.end(), sum.begin(), sum.end());
}

TEST(Big, MoreThanTwoToTheThirtyFirstElements) {
  if (std::getenv("LASP_TEST_BIG") == nullptr) GTEST_SKIP() << "LASP_TEST_BIG is not set (tests/gpu/run --big)";
  if (gpu::free_memory() < size_t{62} << 30) GTEST_SKIP() << "needs 62 GiB of free device memory";
  const auto ok = [](lasp_status status) { return status == LASP_OK; };
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  const lasp_context_options options = test_context_options(Case{});
  ASSERT_TRUE(ok(lasp_comm_create_self(&comm))) << lasp_last_error();
  ASSERT_TRUE(ok(lasp_context_create(LASP_ABI, comm, &options, &context))) << lasp_last_error();
  lasp_problem p = LASP_PROBLEM_INIT;
  p.tokens = kTokens, p.heads_q = p.heads_k = p.heads_v = kHeads, p.head_dim_k = p.head_dim_v = kDim;
  p.dtype = LASP_BFLOAT16, p.decay = LASP_DECAY_HEAD, p.cache = LASP_CACHE_INCOMING;
  ASSERT_TRUE(ok(lasp_plan_create(context, &p, &plan))) << lasp_last_error();
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  ASSERT_TRUE(ok(lasp_plan_get_info(plan, &info))) << lasp_last_error();
  {
    const Tensor q(1), k(2), v(3), d_o(4), o, dq, dk, dv;
    const std::vector<float> g(kHeads, static_cast<float>(kLogDecay));
    const DeviceMemory decay(kHeads * 4), cache(info.state_cache_bytes),
        workspace(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
    gpu::copy(decay.data(), g.data(), kHeads * 4, nullptr);
    lasp_forward_args forward = LASP_FORWARD_ARGS_INIT;
    forward.q = q.memory().const_buffer(), forward.k = k.memory().const_buffer();
    forward.v = v.memory().const_buffer(), forward.decay = decay.const_buffer();
    forward.o = o.memory().buffer(), forward.state_cache = cache.buffer(), forward.workspace = workspace.buffer();
    EXPECT_TRUE(ok(lasp_forward(plan, &forward, nullptr))) << lasp_last_error();
    lasp_backward_args backward = LASP_BACKWARD_ARGS_INIT;
    backward.q = forward.q, backward.k = forward.k, backward.v = forward.v, backward.decay = forward.decay;
    backward.d_o = d_o.memory().const_buffer(), backward.state_cache = cache.const_buffer();
    backward.dq = dq.memory().buffer(), backward.dk = dk.memory().buffer(), backward.dv = dv.memory().buffer();
    backward.workspace = workspace.buffer();
    EXPECT_TRUE(ok(lasp_backward(plan, &backward, nullptr))) << lasp_last_error();
    gpu::wait(nullptr);

    std::array<std::vector<double>, 4> expected, found;
    constexpr int64_t kBeyond = (int64_t{1} << 31) / kRow;
    for (const int64_t t :
         {int64_t{0}, int64_t{77}, kTokens / 2, kBeyond - 1, kBeyond, kTokens - 70, kTokens - 1}) {
      for (const int64_t h : {int64_t{0}, int64_t{13}, kHeads - 1}) {
        append_sum(q, k, v, t, h, -1, expected[0]), o.append_row(t, h, found[0]);
        append_sum(d_o, v, k, t, h, -1, expected[1]), dq.append_row(t, h, found[1]);
        append_sum(v, d_o, q, t, h, 1, expected[2]), dk.append_row(t, h, found[2]);
        append_sum(k, q, d_o, t, h, 1, expected[3]), dv.append_row(t, h, found[3]);
      }
    }
    Case wide;
    wide.dtype = LASP_BFLOAT16;
    constexpr const char *kNames[] = {"o", "dq", "dk", "dv"};
    for (int i = 0; i < 4; ++i)
      EXPECT_LE(relative_error(expected[i], found[i]), error_bound(wide, kO, true)) << kNames[i];
  }
  EXPECT_TRUE(ok(lasp_plan_destroy(plan))) << lasp_last_error();
  EXPECT_TRUE(ok(lasp_context_destroy(context))) << lasp_last_error();
  EXPECT_TRUE(ok(lasp_comm_destroy(comm))) << lasp_last_error();
}

}  // namespace
}  // namespace lasp_test
