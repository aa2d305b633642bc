// Tags: legal for MPI, different wherever calls are out of step, and readable by another rank.
#include "comm/tags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lasp {
namespace {

constexpr OperationKind kForward = OperationKind::kForward, kBackward = OperationKind::kBackward,
                        kFinalState = OperationKind::kFinalState, kHaloForward = OperationKind::kHaloForward,
                        kHaloBackward = OperationKind::kHaloBackward;

const char *call_of(OperationKind kind) {
  switch (kind) {
    case kBackward: return "lasp_backward";
    case kHaloForward: return "lasp_halo_forward";
    case kHaloBackward: return "lasp_halo_backward";
    default: return "lasp_forward";
  }
}

TEST(Tags, StayWithinWhatMpiPromisesAndSayTheirCall) {
  OperationNumbers numbers;
  uint32_t random = 1;
  for (int i = 0; i < 20'000; ++i) {
    random = random * 1664525 + 1013904223;
    const auto kind = static_cast<OperationKind>(1 + (random >> 16) % 5);
    const int32_t operation = numbers.next(kind);
    for (const TagKind message : {kTagLeft, kTagRight, kTagFinalState, kTagReceipt}) {
      const int32_t tag = tag_of(operation, message);
      ASSERT_GT(tag, kAgreementTag);
      ASSERT_LE(tag, 32767);
      ASSERT_STREQ(call_of_tag(tag), call_of(kind));
    }
  }
  EXPECT_EQ(numbers.count(), 20'000u);
  EXPECT_STREQ(call_of_tag(kAgreementTag), "lasp_plan_create or lasp_halo_create");
  for (const int32_t no_tag : {-1, 0, 6, kFirstOperationTag, INT32_MIN})
    EXPECT_EQ(call_of_tag(no_tag), nullptr) << no_tag;
}

std::vector<int32_t> numbers_of(const std::vector<OperationKind> &calls) {
  OperationNumbers numbers;
  std::vector<int32_t> all;
  for (const OperationKind kind : calls) all.push_back(numbers.next(kind));
  return all;
}

// Ranks whose calls are alike but for one, however long ago: their numbers differ, or one would take the other's
// message. For the traces differ by 1 to 4 times a power of two, of which none is a multiple of 13.
TEST(Tags, RememberThatEarlierCallsDiffered) {
  for (size_t at = 0; at < 6; ++at)
    for (const OperationKind other : {kForward, kBackward, kFinalState, kHaloForward, kHaloBackward}) {
      std::vector<OperationKind> calls(6, kForward);
      calls[at] = other;
      EXPECT_EQ(numbers_of(calls).back() == numbers_of(std::vector<OperationKind>(6, kForward)).back(),
                other == kForward)
          << "call " << at;
    }
}

TEST(Tags, OfNeighbouringOperationsDiffer) {
  const auto numbers = numbers_of(std::vector<OperationKind>(200, kForward));
  for (size_t i = 0; i < numbers.size(); ++i)
    for (size_t j = i + 1; j < numbers.size() && j < i + 64; ++j) EXPECT_NE(numbers[i], numbers[j]);
}

}  // namespace
}  // namespace lasp
