// Halos over threads: drawn splits against the formula, byte for byte, and the shapes that matter by name.
#include <gtest/gtest.h>

#include <sstream>

#include "support/case.h"
#include "support/guarded_buffer.h"
#include "support/halo_run.h"

namespace lasp_test {
namespace {

std::string text_of(const HaloCase &c) {
  std::ostringstream out;
  out << c;
  return out.str();
}

class HaloDrawn : public testing::TestWithParam<int32_t> {};

TEST_P(HaloDrawn, IsTheFormula) {
  const uint32_t cases = quick_run() ? 10 : 60;
  for (uint32_t seed = 0; seed < cases; ++seed) {
    const HaloCase c = drawn_halo(100 * seed + GetParam(), GetParam());
    ASSERT_EQ(run_halo_on_threads(c), "") << "seed " << seed << ": " << text_of(c);
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, HaloDrawn, testing::Range(1, 7));

// Each rank has fewer tokens than there are rows, so that rows of one rank go to several, and their gradients are
// summed there in float32 before the one rounding.
TEST(Halo, GradientsOfSeveralRanksAreRoundedOnce) {
  for (const int32_t dtype : {LASP_BFLOAT16, LASP_FLOAT16}) {
    HaloCase c;
    c.tokens = {4, 1, 1, 0, 1, 2};
    c.rows = 6, c.channels = 40, c.batch = 2, c.dtype = c.d_dtype = dtype;
    EXPECT_EQ(run_halo_on_threads(c), "");
  }
}

TEST(Halo, EndsAtTheBeginningOfItsSequence) {
  HaloCase c;
  c.tokens = {5, 5, 5};
  c.cu_seqlens = {0, 3, 3, 9, 10, 15};  // rank 1 begins inside of a sequence of 6, rank 2 begins one
  EXPECT_EQ(run_halo_on_threads(c), "");
  c.cu_seqlens = {0, 5, 9, 15};  // rank 1 begins one, rank 2 has one row of its own before it
  EXPECT_EQ(run_halo_on_threads(c), "");
  c.cu_seqlens = {0, 6, 7};  // rank 2 has padding alone
  EXPECT_EQ(run_halo_on_threads(c), "");
}

TEST(Halo, OfASequenceOfNoTokensSendsNothing) {
  HaloCase c;
  c.tokens = {0, 0, 0, 0};
  c.cu_seqlens = {0, 0};
  c.rows = 64, c.channels = 2, c.each = true;
  EXPECT_EQ(run_halo_on_threads(c), "");
}

TEST(Halo, ServesAGroupOfOne) {
  HaloCase c;
  c.tokens = {7};
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  EXPECT_EQ(run_halo(c, comm), "");
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
}

// Where all rows come from far: no rank but the first and the last has a token.
TEST(Halo, ReachesOverRanksWithoutTokens) {
  HaloCase c;
  c.tokens = {9, 0, 0, 0, 2};
  c.batch = 2;
  EXPECT_EQ(run_halo_on_threads(c), "");
  c.tokens = {0, 0, 0, 0, 0};
  EXPECT_EQ(run_halo_on_threads(c), "");
}

TEST(Halo, WithVerifiedMessages) {
  if (on_cuda()) GTEST_SKIP() << "messages are verified on the CPU only";
  HaloCase c;
  c.tokens = {4, 1, 6};
  c.dtype = LASP_BFLOAT16;
  HaloRunOptions options;
  options.verify_messages = true;
  EXPECT_EQ(run_halo_on_threads(c, options), "");
}

}  // namespace
}  // namespace lasp_test
