// LASP_LINK, and the costs of an exchange beside its messages.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <cstdlib>
#include <string>

#include "base/status.h"
#include "engine/link_setting.h"

namespace lasp {
namespace {

class Environment {
 public:
  explicit Environment(const char *value) { setenv("LASP_LINK", value, 1); }
  ~Environment() { unsetenv("LASP_LINK"); }
  Environment(const Environment &) = delete;
  Environment &operator=(const Environment &) = delete;
};

std::string refusal(const std::string &text) {
  try {
    parse_link(text.c_str());
  } catch (const Error &error) {
    EXPECT_EQ(error.status, LASP_ERROR_INVALID_ARGUMENT);
    return error.sentence;
  }
  return "";
}

TEST(LinkSetting, TakesWhatIsGivenAndLeavesTheRest) {
  Link link{1, 2, 3, 4, 5, 6, 7};
  EXPECT_FALSE(parse_link("").replace(link));
  EXPECT_EQ(link, (Link{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_FALSE(parse_link("round_us=0,dense_tflops=2.5e1").replace(link));
  EXPECT_EQ(link, (Link{1, 2, 0, 4, 5, 6, 25}));
  EXPECT_TRUE(parse_link("bandwidth_gbs=10").replace(link));
  EXPECT_TRUE(parse_link("latency_us=7,bandwidth_gbs=6,round_us=5,fold_us=4,fold_gbs=3,dense_us=2,dense_tflops=1")
                  .replace(link));
  EXPECT_EQ(link, (Link{7, 6, 5, 4, 3, 2, 1}));
}

TEST(LinkSetting, RefusesTheRest) {
  const struct {
    const char *text, *sentence;
  } rows[] = {
      {"latency",
       "LASP_LINK = latency: \"latency\" is not name=number with one of latency_us, bandwidth_gbs, "
       "round_us, fold_us, fold_gbs, dense_us, dense_tflops"},
      {"latency_us", "\"latency_us\" is not name=number"},
      {"latency_us=1,,round_us=2", "\"\" is not name=number"},
      {" latency_us=1", "\" latency_us=1\" is not name=number"},
      {"latency=1", "\"latency=1\" is not name=number"},
      {"latency_us=", "latency_us = \"\": must be a number, finite and positive"},
      {"latency_us=0", "latency_us = \"0\": must be a number, finite and positive"},
      {"bandwidth_gbs=0", "bandwidth_gbs = \"0\": must be a number, finite and positive"},
      {"bandwidth_gbs=-1", "bandwidth_gbs = \"-1\": must be a number, finite and positive"},
      {"round_us=-1", "round_us = \"-1\": must be a number, finite and not negative"},
      {"fold_us=1us", "fold_us = \"1us\": must be"},
      {"fold_gbs=inf", "fold_gbs = \"inf\": must be"},
      {"dense_us=nan", "dense_us = \"nan\": must be"},
      {"dense_tflops=1e999", "dense_tflops = \"1e999\": must be"},
      {"latency_us=1,latency_us=1", "LASP_LINK = latency_us=1,latency_us=1: latency_us twice"},
      {"round_us=1,round_us=1", "LASP_LINK = round_us=1,round_us=1: round_us twice"},
  };
  for (const auto &row : rows)
    EXPECT_NE(refusal(row.text).find(row.sentence), std::string::npos) << refusal(row.text);
}

// On a detached comm of eight; what the plan's description says of its model.
struct Made {
  lasp_status status = LASP_OK;
  std::string sentence, description;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
};
Made plan_with(double latency_us, double bandwidth_gbs, int32_t write = LASP_WRITE_ADDITIVE) {
  Made made;
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.cpu_threads = 1, options.latency_us = latency_us, options.bandwidth_gbs = bandwidth_gbs;
  lasp_problem p = LASP_PROBLEM_INIT;
  p.tokens = 5, p.heads_q = p.heads_k = p.heads_v = 2, p.head_dim_k = 8, p.head_dim_v = 16, p.write = write;
  EXPECT_EQ(lasp_comm_create_detached(1, 8, &comm), LASP_OK);
  made.status = lasp_context_create(LASP_ABI, comm, &options, &context);
  made.sentence = lasp_last_error();
  if (made.status == LASP_OK) {
    EXPECT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_plan_get_info(plan, &made.info), LASP_OK);
    char text[4096];
    EXPECT_EQ(lasp_plan_describe(plan, text, sizeof text, nullptr), LASP_OK);
    made.description = text;
  }
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
  return made;
}

TEST(LinkSetting, AContextTakesItUnlessItsOptionsSayOther) {
  const Environment environment("latency_us=3,bandwidth_gbs=1,round_us=500,fold_us=0.5");
  const Made made = plan_with(0, 0);
  EXPECT_NE(
      made.description.find("latency 3 us, bandwidth 1 GB/s (by LASP_LINK), payload 1024 bytes per rank, 500 us "
                            "a round of both ways, 0.5 us a composition\n"),
      std::string::npos)
      << made.description;
  constexpr double kState = 2 * 8 * 16 * 4 / 1e3;
  EXPECT_DOUBLE_EQ(made.info.predicted_us[LASP_SCHEDULE_RING], 7 * (3 + kState) + 6 * 0.5);
  EXPECT_DOUBLE_EQ(made.info.predicted_us[LASP_SCHEDULE_DOUBLING], 3 * (3 + kState + 500) + 4 * 0.5);
  EXPECT_EQ(made.info.schedule, LASP_SCHEDULE_RING) << "the one that never sends and receives at once";
  const Made other = plan_with(9, 0);
  EXPECT_NE(other.description.find("latency 9 us, bandwidth 1 GB/s"), std::string::npos) << other.description;
  const Made dense = plan_with(0, 0, LASP_WRITE_DELTA);
  EXPECT_EQ(dense.description.find("a composition"), std::string::npos) << "that is the other kind's\n"
                                                                        << dense.description;
}

TEST(LinkSetting, AContextRefusesAWrongOne) {
  const Environment environment("latency=3");
  const Made made = plan_with(0, 0);
  EXPECT_EQ(made.status, LASP_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(made.sentence.find("LASP_LINK = latency=3: \"latency=3\" is not name=number"), 0u) << made.sentence;
}

}  // namespace
}  // namespace lasp
