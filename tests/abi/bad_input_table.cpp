// Runs every row of the tables of wrong calls (bad_input.h), and shows that the same rig succeeds when nothing is
// wrong.
#include <regex>

#include "bad_input.h"

TEST_P(WrongCalls, RefusedWithReasonAndNoEffect) {
  const WrongCall &row = GetParam();
  Rig rig;
  const std::vector<unsigned char> arena_before = rig.arena.bytes();
  unsigned char outs_before[sizeof(Outs)];
  std::memcpy(outs_before, &rig.outs, sizeof(Outs));

  const lasp_status status = row.call(rig);
  const std::string sentence = lasp_last_error();

  EXPECT_EQ(status, row.status) << lasp_status_name(status) << ", expected " << lasp_status_name(row.status)
                                << ": \"" << sentence << "\"";
  if (status != LASP_OK) {
    EXPECT_TRUE(std::regex_search(sentence, std::regex(row.sentence)))
        << "\"" << sentence << "\" does not match " << row.sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
  }
  EXPECT_TRUE(arena_before == rig.arena.bytes()) << "a buffer was written";
  EXPECT_EQ(std::memcmp(outs_before, &rig.outs, sizeof(Outs)), 0) << "an out-parameter was written";
  // "Everything lives on": the rig still works.
  const lasp_forward_args args = rig.forward_args();
  EXPECT_EQ(lasp_forward(rig.plan, &args, nullptr), LASP_OK) << lasp_last_error();
}

TEST(RightCalls, WriteEveryOutput) {
  Rig rig;
  const lasp_forward_args forward = rig.forward_args();
  ASSERT_EQ(lasp_forward(rig.plan, &forward, nullptr), LASP_OK) << lasp_last_error();
  EXPECT_FALSE(Arena::all_canary(rig.o));
  EXPECT_FALSE(Arena::all_canary(rig.final_state));
  EXPECT_FALSE(Arena::all_canary(rig.state_cache));
  EXPECT_TRUE(Arena::all_canary(rig.dq));
  const lasp_backward_args backward = rig.backward_args();
  ASSERT_EQ(lasp_backward(rig.plan, &backward, nullptr), LASP_OK) << lasp_last_error();
  for (const lasp_buffer &written : {rig.dq, rig.dk, rig.dv, rig.d_decay, rig.d_initial_state}) {
    EXPECT_FALSE(Arena::all_canary(written));
  }
  std::memset(rig.state.data, 0, rig.state.bytes);
  const lasp_step_args step = rig.step_args();
  ASSERT_EQ(lasp_step(rig.plan, &step, nullptr), LASP_OK) << lasp_last_error();
}
