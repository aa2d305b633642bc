// The limits of lasp_problem, from both sides: the last value that is accepted and the first that is refused. (That
// each refusal names its argument is in tests/abi/bad_input_problem.cpp.)
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <cmath>
#include <limits>

#include "base/status.h"
#include "core/problem.h"
#include "support/strided_layout.h"

namespace lasp {
namespace {

using lasp_test::strided;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

lasp_problem valid() {
  lasp_problem p = LASP_PROBLEM_INIT;
  p.tokens = 24;
  p.head_dim_k = p.head_dim_v = 8;
  return p;
}

// LASP_OK or the status of the refusal.
template <class Change>
lasp_status verdict(Change change, int32_t nranks = 1) {
  lasp_problem p = valid();
  change(p);
  try {
    validate(p, nranks);
    return LASP_OK;
  } catch (const Error &error) {
    return error.status;
  }
}
lasp_status packed(int64_t most, int64_t tokens = 24) {
  return verdict([&](lasp_problem &p) { p.max_sequences = most, p.tokens = tokens, p.chunk = 16; });
}

TEST(Validate, AtMostTwoToThe24Sequences) {
  EXPECT_EQ(packed(1), LASP_OK);
  EXPECT_EQ(packed(int64_t{1} << 24), LASP_OK);
  EXPECT_EQ(packed((int64_t{1} << 24) + 1), LASP_ERROR_UNSUPPORTED);
  EXPECT_EQ(packed(-1), LASP_ERROR_INVALID_ARGUMENT);
}

// A sequence may end a chunk, but not where there is no token.
TEST(Validate, ShortChunksCountToo) {
  const int64_t most = int64_t{1} << 24, half = most / 2;
  EXPECT_EQ(packed(half - 1, 16 * half), LASP_OK);
  EXPECT_EQ(packed(half, 16 * half), LASP_ERROR_UNSUPPORTED);
  EXPECT_EQ(packed(most, 1 << 20), LASP_OK);
}

// Rows of 2^22 chunks: tokens / chunk + 1.
lasp_status with_chunks(int64_t batch, int32_t heads, int64_t per_row = int64_t{1} << 22) {
  return verdict([&](lasp_problem &p) {
    p.batch = batch, p.chunk = 16, p.tokens = 16 * (per_row - 1);
    p.heads_q = p.heads_k = p.heads_v = heads;
  });
}

TEST(Validate, AtMostTwoToThe24ChunksOnARank) {
  EXPECT_EQ(with_chunks(4, 1), LASP_OK);
  EXPECT_EQ(with_chunks(5, 1), LASP_ERROR_UNSUPPORTED);
  EXPECT_EQ(with_chunks(1, 1, int64_t{1} << 24), LASP_OK);
  EXPECT_EQ(with_chunks(1, 1, (int64_t{1} << 24) + 1), LASP_ERROR_UNSUPPORTED);
}

TEST(Validate, AtMostTwoToThe28ChunksOverAllHeads) {
  EXPECT_EQ(with_chunks(1, 64), LASP_OK);
  EXPECT_EQ(with_chunks(1, 65), LASP_ERROR_UNSUPPORTED);
  EXPECT_EQ(with_chunks(4, 16), LASP_OK);
  EXPECT_EQ(with_chunks(4, 17), LASP_ERROR_UNSUPPORTED);
}

TEST(Validate, HeadDimensionsAndPieces) {
  const auto dims = [](int32_t k, int32_t v) {
    return verdict([&](lasp_problem &p) { p.head_dim_k = k, p.head_dim_v = v; });
  };
  EXPECT_EQ(dims(512, 8), LASP_OK);
  EXPECT_EQ(dims(8, 512), LASP_OK);
  EXPECT_EQ(dims(520, 8), LASP_ERROR_UNSUPPORTED);
  EXPECT_EQ(dims(8, 520), LASP_ERROR_UNSUPPORTED);
  EXPECT_EQ(verdict([](lasp_problem &p) { p.pieces = 65536; }), LASP_OK);
  EXPECT_EQ(verdict([](lasp_problem &p) { p.pieces = 65537; }), LASP_ERROR_INVALID_ARGUMENT);
}

// Three axes, each in turn the one whose stride is as small as its inner axes allow, and one smaller.
TEST(Validate, StridesLeaveEachElementAPlaceOfItsOwn) {
  const auto with_q = [](int64_t batch, int64_t token, int64_t head) {
    return verdict([&](lasp_problem &p) {
      p.batch = 2, p.tokens = 3, p.heads_q = p.heads_k = p.heads_v = 4;
      p.q = strided(batch, token, head);
    });
  };
  EXPECT_EQ(with_q(96, 32, 8), LASP_OK);
  EXPECT_EQ(with_q(95, 32, 8), LASP_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(with_q(96, 31, 8), LASP_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(with_q(96, 32, 7), LASP_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(with_q(96, 8, 24), LASP_OK);
  EXPECT_EQ(with_q(96, 8, 23), LASP_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(with_q(8, 16, 48), LASP_OK);
  EXPECT_EQ(with_q(8, 15, 48), LASP_ERROR_INVALID_ARGUMENT);
  // A stride that no second element needs may be anything that is not negative.
  const auto one_token = [](lasp_layout q) { return verdict([&](lasp_problem &p) { p.tokens = 1, p.q = q; }); };
  EXPECT_EQ(one_token(strided(kMost, kMost, 1)), LASP_OK);
  EXPECT_EQ(one_token(strided(0, -1, 8)), LASP_ERROR_INVALID_ARGUMENT);
}

// One element of an input may serve many; those of an output have places of their own.
TEST(Validate, StrideZeroIsForInputs) {
  const auto with = [](lasp_layout lasp_problem::*tensor, lasp_layout layout) {
    return verdict([&](lasp_problem &p) {
      p.batch = 2, p.tokens = 3, p.heads_q = p.heads_k = p.heads_v = 4, p.decay = LASP_DECAY_CHANNEL;
      p.*tensor = layout;
    });
  };
  for (const auto tensor :
       {&lasp_problem::q, &lasp_problem::k, &lasp_problem::v, &lasp_problem::d_o, &lasp_problem::decay_layout}) {
    for (const lasp_layout &layout : {strided(0, 32, 8), strided(96, 0, 8), strided(24, 8, 0), strided(0, 0, 0)})
      EXPECT_EQ(with(tensor, layout), LASP_OK);
    EXPECT_EQ(with(tensor, strided(0, 7, 24)), LASP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(with(tensor, strided(0, 8, 16)), LASP_ERROR_INVALID_ARGUMENT);
  }
  for (const auto tensor :
       {&lasp_problem::o, &lasp_problem::dq, &lasp_problem::dk, &lasp_problem::dv, &lasp_problem::d_decay_layout})
    for (const lasp_layout &layout : {strided(0, 32, 8), strided(96, 0, 8), strided(24, 8, 0)})
      EXPECT_EQ(with(tensor, layout), LASP_ERROR_INVALID_ARGUMENT);
}

TEST(Validate, TensorsAndStatesAreAddressable) {
  // 2^60 float32 from the first element to the last are 2^62 bytes.
  const auto span = [](int64_t token) {
    return verdict([&](lasp_problem &p) { p.tokens = 2, p.q = strided(0, token, 8); });
  };
  EXPECT_EQ(span((int64_t{1} << 60) - 8), LASP_OK);
  EXPECT_EQ(span((int64_t{1} << 60) - 7), LASP_ERROR_INVALID_ARGUMENT);
  // So are the states of 2^16 ranks with 2^26 heads of 2^20 bytes each.
  const auto heads = [](int32_t count) {
    return verdict(
        [&](lasp_problem &p) {
          p.tokens = 0, p.head_dim_k = p.head_dim_v = 512, p.heads_q = p.heads_k = p.heads_v = count;
        },
        1 << 16);
  };
  EXPECT_EQ(heads(1 << 26), LASP_OK);
  EXPECT_EQ(heads((1 << 26) + 1), LASP_ERROR_INVALID_ARGUMENT);
}

TEST(Validate, FillsInWhatIsLeftAtZero) {
  lasp_problem given = valid();
  given.head_dim_k = 32;
  const Problem p = validate(given, 1);
  EXPECT_EQ(p.scale, static_cast<float>(1.0 / std::sqrt(32.0)));
  EXPECT_EQ(p.chunk, 128);
  EXPECT_EQ(p.q.token, 32);
  EXPECT_EQ(p.q.batch, 24 * 32);
  EXPECT_EQ(p.v.token, 8);
  given.scale_given = 1, given.scale = -0.25f, given.chunk = 256;
  EXPECT_EQ(validate(given, 1).scale, -0.25f);
  EXPECT_EQ(validate(given, 1).chunk, 256);
}

}  // namespace
}  // namespace lasp
