// Traces of a GPU: when the device did what the host enqueued, work that is not done yet, passes in a graph.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "support/device.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

struct Span {
  double begin = 0, end = 0;  // microseconds
};

double host_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class GpuTrace : public testing::Test {
 protected:
  GpuTrace() : memory_(case_named("head_batch"), cached_data(case_named("head_batch")), 0, 1, options_) {
    EXPECT_EQ(lasp_comm_create_self(&comm_), LASP_OK);
    lasp_context_options settings = LASP_CONTEXT_OPTIONS_INIT;
    settings.device = LASP_DEVICE_CUDA;
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm_, &settings, &context_), LASP_OK) << lasp_last_error();
    const lasp_problem problem = problem_of(case_named("head_batch"), 0, 1, options_);
    EXPECT_EQ(lasp_plan_create(context_, &problem, &plan_), LASP_OK) << lasp_last_error();
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    EXPECT_EQ(lasp_plan_get_info(plan_, &info), LASP_OK);
    memory_.make_for(info);
    stream_ = gpu::make_stream();
    memory_.upload(stream_);
    gpu::wait(stream_);
    started_us_ = host_us();
    EXPECT_EQ(lasp_trace_start(context_, nullptr), LASP_OK) << lasp_last_error();
  }
  ~GpuTrace() override {
    gpu::wait(stream_);
    gpu::destroy_stream(stream_);
    lasp_plan_destroy(plan_);
    lasp_context_destroy(context_);
    lasp_comm_destroy(comm_);
    std::remove(path().c_str());
  }
  std::string path() const { return testing::TempDir() + "lasp_gpu_trace.json"; }
  void forward() {
    const lasp_forward_args args = memory_.forward_args();
    EXPECT_EQ(lasp_forward(plan_, &args, stream_), LASP_OK) << lasp_last_error();
  }
  std::string written() {
    EXPECT_EQ(lasp_trace_write(context_, path().c_str()), LASP_OK) << lasp_last_error();
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }
  // How well the device's clock is known beside the host's, in microseconds: the host looked at it twice since the
  // trace began, and it is known to half of the time between these looks.
  double uncertainty(const std::string &text) const {
    const std::string name = "\"device_clock_uncertainty_us\":";
    const size_t at = text.find(name);
    EXPECT_NE(at, std::string::npos) << text;
    const double us = at == std::string::npos ? 0 : std::stod(text.substr(at + name.size()));
    EXPECT_LE(2 * us, host_us() - started_us_);
    return us;
  }
  static std::vector<Span> spans(const std::string &text, const std::string &name) {
    const std::regex pattern("\"ts\":([0-9.]+),\"dur\":([0-9.]+),\"cat\":\"[a-z]+\",\"name\":\"" + name + "\"");
    std::vector<Span> found;
    for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at)
      found.push_back({std::stod((*at)[1]), std::stod((*at)[1]) + std::stod((*at)[2])});
    return found;
  }

  double started_us_ = 0;
  RunOptions options_;
  RankMemory memory_;
  lasp_comm *comm_ = nullptr;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  lasp_stream stream_ = nullptr;
};

TEST_F(GpuTrace, TheDeviceWorksBetweenTheCallAndTheEndOfTheWait) {
  forward();
  gpu::wait(stream_);
  const double begin = host_us();
  forward();
  gpu::wait(stream_);
  const double end = host_us();
  const std::string text = written();
  const std::vector<Span> calls = spans(text, "lasp_forward"), passes = spans(text, "lasp forward");
  ASSERT_EQ(calls.size(), 2u) << text;
  ASSERT_EQ(passes.size(), 2u) << text;
  // The file says how well the clock is known: some microseconds, more on a busy host. Events have their own doubt.
  const double doubt_us = 200 + uncertainty(text);
  EXPECT_GT(passes[1].begin, begin - doubt_us);
  EXPECT_LT(passes[1].end, end + doubt_us);
  EXPECT_GT(passes[1].end, passes[1].begin);
  EXPECT_GT(passes[1].begin, calls[1].begin - doubt_us);
}

TEST_F(GpuTrace, WorkThatIsNotDoneIsCountedAndComesLater) {
  std::promise<void> read;
  std::future<void> held = read.get_future();
  gpu::call(
      stream_, [](void *until) { static_cast<std::future<void> *>(until)->wait(); }, &held);
  forward();
  std::string text = written();
  EXPECT_NE(text.find("\"device_unfinished\":1,"), std::string::npos) << text;
  EXPECT_TRUE(spans(text, "lasp forward").empty());
  read.set_value();
  gpu::wait(stream_);
  text = written();
  EXPECT_NE(text.find("\"device_unfinished\":0,"), std::string::npos) << text;
  EXPECT_EQ(spans(text, "lasp forward").size(), 1u);
}

// More than there are events for, of a device that is far behind.
TEST_F(GpuTrace, WhatTheEventsDoNotReachForIsCounted) {
  constexpr int kPasses = 1500, kEvents = 1024;
  gpu::wait(stream_);
  gpu::delay(stream_);
  for (int i = 0; i < kPasses; ++i) forward();
  gpu::wait(stream_);
  const std::string text = written();
  const size_t timed = spans(text, "lasp forward").size();
  EXPECT_EQ(spans(text, "lasp_forward").size(), size_t{kPasses});
  EXPECT_GE(timed, size_t{kEvents});
  EXPECT_NE(text.find("\"device_left_out\":" + std::to_string(kPasses - timed) + ","), std::string::npos);
}

TEST_F(GpuTrace, OfACapturedPassThereIsTheCallAlone) {
  ASSERT_EQ(lasp_plan_prepare(plan_, stream_), LASP_OK) << lasp_last_error();
  gpu::Graph graph;
  graph.begin(stream_);
  forward();
  graph.end(stream_);
  graph.launch(stream_);
  gpu::wait(stream_);
  const std::string text = written();
  EXPECT_EQ(spans(text, "lasp_forward").size(), 1u);
  EXPECT_TRUE(spans(text, "lasp forward").empty());
  EXPECT_NE(text.find("\"captured\":true"), std::string::npos) << text;
}

}  // namespace
}  // namespace lasp_test
