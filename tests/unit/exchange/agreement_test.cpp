// The second round of plan creation, in which a rank tells what it learned only once the problem was known: by a
// gather of the test's own.
#include "exchange/agreement.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/checksum.h"
#include "unit/scripted_transport.h"

namespace lasp {
namespace {

// What a rank's record says: its status, and a checksum of the record with 0 in the checksum's place.
struct Said {
  uint64_t checksum = 0;
  int64_t status;
};

class SecondRound : public testing::Test {
 protected:
  SecondRound() { comm.enter("lasp_plan_create"); }
  // Rank 1 is this one; the others say what they are told to.
  Error run(const std::optional<Error> &own, int64_t first, int64_t last) {
    return run(own, [&](const void *mine, void *all, size_t bytes) {
      ASSERT_EQ(bytes, sizeof(Said));
      auto *const records = static_cast<Said *>(all);
      std::memcpy(&records[1], mine, bytes);
      for (const auto &[rank, status] : {std::pair(0, first), {2, last}}) {
        records[rank] = {0, status};
        records[rank].checksum = checksum(&records[rank], sizeof(Said), 0);
      }
      told = records[1].status;
    });
  }
  Error run(const std::optional<Error> &own, Gather gather) {
    try {
      agree_on_refusal(comm, own, gather);
    } catch (const Error &error) {
      return error;
    }
    return {LASP_OK, ""};
  }

  ScriptedTransport transport;
  Comm comm{transport.table(true), &transport};
  int64_t told = -1;
};

TEST_F(SecondRound, OfRanksThatAllGoOnIsSilent) { EXPECT_EQ(run(std::nullopt, LASP_OK, LASP_OK).status, LASP_OK); }

TEST_F(SecondRound, TellsThisRanksRefusalAndThrowsIt) {
  for (const lasp_status status : {LASP_ERROR_UNSUPPORTED, LASP_ERROR_OUT_OF_MEMORY, LASP_ERROR_INTERNAL}) {
    const Error error = run(Error{status, "mine"}, LASP_OK, LASP_OK);
    EXPECT_EQ(told, status);
    EXPECT_EQ(error.status, status);
    EXPECT_EQ(error.sentence, "mine");
  }
}

TEST_F(SecondRound, ARankThatRefusedLivesOn) {
  const Error error = run(std::nullopt, LASP_OK, LASP_ERROR_UNSUPPORTED);
  EXPECT_EQ(error.status, LASP_ERROR_PEER_REFUSED);
  EXPECT_EQ(error.sentence, "rank 2 refused its problem with LASP_ERROR_UNSUPPORTED; its own sentence says why");
  EXPECT_EQ(comm.async_status(), LASP_OK);
}

TEST_F(SecondRound, ARankThatFailedIsLost) {
  const Error error = run(std::nullopt, LASP_ERROR_OUT_OF_MEMORY, LASP_OK);
  EXPECT_EQ(error.status, LASP_ERROR_PEER_LOST);
  EXPECT_EQ(
      error.sentence,
      "rank 0 did not come, its own lasp_plan_create failed with LASP_ERROR_OUT_OF_MEMORY: rank 1 was comparing "
      "problems");
  EXPECT_EQ(comm.async_status(), LASP_ERROR_PEER_LOST);
  EXPECT_EQ(transport.aborted_with, 0) << "the others are told";
}

// On a device that failed, the messages that would tell of it fail too: the cause is what the caller hears.
TEST_F(SecondRound, AFailureThatCannotBeToldIsNotHiddenByThat) {
  const auto broken = [](const void *, void *, size_t) { throw Error{LASP_ERROR_TRANSPORT, "no message leaves"}; };
  EXPECT_EQ(run(Error{LASP_ERROR_DEVICE, "the cause"}, broken).sentence, "the cause");
  EXPECT_EQ(run(Error{LASP_ERROR_UNSUPPORTED, "not the cause"}, broken).sentence, "no message leaves");
  EXPECT_EQ(run(std::nullopt, broken).sentence, "no message leaves");
}

}  // namespace
}  // namespace lasp
