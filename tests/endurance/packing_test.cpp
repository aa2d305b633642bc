// A pass allocates nothing because its packing is another one than the last pass's: any allocation inside would
// fail.
#include <gtest/gtest.h>

#include <memory>

#include "support/kinds.h"
#include "support/packing.h"
#include "worker.h"

namespace {

using namespace endurance;

constexpr int64_t kTokens = 40;

// Of sequences in any number, short and long, with padding and without.
const std::vector<std::vector<int64_t>> &packings() {
  static const std::vector<std::vector<int64_t>> all = {
      {0, kTokens}, {0, 1, 2, 3, 4, kTokens}, {0}, {0, 17, 17, 33}, {0, 0, 0, 0, 0, 0}, {0, 8, 16, 24, 32, 40}};
  return all;
}

void expect_no_allocation(const Shape &shape, int32_t threads) {
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  Worker worker(comm);
  ASSERT_EQ(worker.open(20'000, threads).status, LASP_OK);
  ASSERT_EQ(worker.plan(shape).status, LASP_OK);
  for (const bool narrow : {false, true})
    for (const std::vector<int64_t> &offsets : packings()) {
      const lasp_test::PackingOf packing(offsets, narrow);
      worker.packing = packing.get();
      allocation::fail_at(1, true);
      const Answer forward = worker.forward(), backward = worker.backward();
      const int64_t failed = allocation::failed(), quietly = allocation::failed_quietly();
      allocation::fail_at(0);
      EXPECT_EQ(forward.status, LASP_OK) << forward.sentence;
      EXPECT_EQ(backward.status, LASP_OK) << backward.sentence;
      EXPECT_EQ(failed + quietly, 0);
    }
  EXPECT_EQ(worker.close().status, LASP_OK);
}

TEST(Allocation, NoneInAPassWithAnotherPacking) {
  for (const int32_t decay : lasp_test::kDecays)
    for (const int64_t segment : {int64_t{0}, int64_t{16}})
      for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING})
        for (const int32_t threads : {1, 2}) {
          Shape shape;
          shape.tokens = kTokens, shape.max_sequences = 5, shape.decay = decay, shape.segment = segment;
          shape.cache = cache;
          SCOPED_TRACE(testing::Message() << "decay " << decay << ", segment " << segment << ", " << threads);
          expect_no_allocation(shape, threads);
        }
}

}  // namespace
