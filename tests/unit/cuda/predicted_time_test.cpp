// The predicted times of a plan's passes, beside what lasp-bench measured.
#include "cuda/choice/predicted_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "unit/cuda/fitting_kernels.h"

namespace lasp::cuda {
namespace {

constexpr double kCopy = 4.24e6;  // bytes in a microsecond, of an H200

PredictedTime predicted(Case &plan, bool backward, double copy = kCopy, int32_t capability = 90) {
  TokenRanges ranges;
  ranges.begin = {0, plan.problem.tokens};
  const TokenPartition partition = make_token_partition(plan.problem, ranges, 0);
  const PlanInputs inputs(plan.problem, partition);
  const FittingKernels kernels(plan.problem, capability);
  return predict(inputs, make_choices(inputs, kernels, kMultiprocessors), kernels, backward, copy);
}

using Row = std::map<std::string, std::string>;

// Rows of one run of bench/results/lasp-bench.csv; that of a GPU has no cell with a comma in it.
std::vector<Row> rows_of(const std::string &run) {
  std::ifstream file(LASP_SOURCE_DIR "/bench/results/lasp-bench.csv");
  const auto cells = [](const std::string &line) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
    return words;
  };
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = cells(line);
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    const std::vector<std::string> words = cells(line);
    if (words.empty() || words[0] != run) continue;
    Row row;
    for (size_t i = 0; i < words.size() && i < names.size(); ++i) row[names[i]] = words[i];
    rows.push_back(row);
  }
  return rows;
}

// The model knows nothing of how many tokens fill the device. On these rows it was at most 40% off; backward of V
// or K of 64 and widths that are not multiples of 64 have had other kernels since they were measured, and so has
// decay per channel, whose rows are of other runs.
TEST(PredictedTime, IsNearWhatWasMeasured) {
  const std::map<std::string, Decay> decays = {
      {"none", Decay::kNone}, {"head", Decay::kHead}, {"scalar", Decay::kScalar}, {"channel", Decay::kChannel}};
  int compared = 0;
  std::vector<Row> rows = rows_of("channel-walks-one-run-h200");
  for (Row &row : rows_of("channel-turns-h200"))
    if (row["pass"] == "forward" || (row["head_dim_k"] == "64" && row["head_dim_v"] == "128")) rows.push_back(row);
  for (Row &row : rows_of("h200-models-before"))
    if (row["decay"] != "channel") rows.push_back(row);
  for (Row &row : rows) {
    const bool backward = row["pass"] == "backward", channel = row["decay"] == "channel";
    const int32_t k = std::stoi(row["head_dim_k"]), v = std::stoi(row["head_dim_v"]);
    if (row["heads"] == "1" || k % 64 != 0) continue;
    if (backward && !channel && (std::min(k, v) == 64 || row["d_decay"] == "0")) continue;
    if (k == 192 || k * v > 256 * 256) continue;  // were not measured for the model
    Case plan(decays.at(row["decay"]), std::stoll(row["tokens"]));
    Problem &p = plan.problem;
    p.batch = std::stoll(row["batch"]);
    p.heads = p.heads_q = p.heads_k = p.heads_v = std::stoi(row["heads"]);
    p.head_dim_k = k, p.head_dim_v = v;
    const std::string copy = row["copy_gbs"];
    const PredictedTime time = predicted(plan, backward, copy.empty() ? kCopy : 1e3 * std::stod(copy));
    const double measured = 1e3 * std::stod(row["median_ms"]);
    EXPECT_LE(std::abs(std::log(time.us / measured)), std::log(1.4))
        << row["pass"] << ' ' << row["decay"] << ' ' << k << " x " << v << ": " << time.us << " us predicted, "
        << measured << " measured";
    ++compared;
  }
  EXPECT_GE(compared, 30);
}

TEST(PredictedTime, CountsEachTensorOnce) {
  Case plan(Decay::kNone, 16384);
  const double unit = 16384.0 * 32 * 128 * 2;
  EXPECT_DOUBLE_EQ(predicted(plan, false).floor_us, 4 * unit / kCopy);
  EXPECT_DOUBLE_EQ(predicted(plan, true).floor_us, 7 * unit / kCopy);
}

TEST(PredictedTime, OfNothingThatWasNotMeasured) {
  Case wide(Decay::kHead, 4096, DType::kFloat32), large(Decay::kHead, 4096), half(Decay::kHead, 4096);
  EXPECT_EQ(predicted(wide, false).us, 0);
  large.problem.head_dim_k = large.problem.head_dim_v = 512;
  EXPECT_EQ(predicted(large, true).us, 0);
  EXPECT_EQ(predicted(half, true, 0).us, 0) << "the device's rate is not known";
  EXPECT_GT(predicted(half, true).us, 0);
  half.problem.heads_q = half.problem.heads_k = 1;
  EXPECT_EQ(predicted(half, true).us, 0) << "heads are shared";
  half.problem.heads_q = half.problem.heads_k = 32;
  half.problem.head_dim_k = half.problem.head_dim_v = 96;
  EXPECT_EQ(predicted(half, false).us, 0) << "a width between those that were measured";
  Case channel(Decay::kChannel, 16384);
  for (const bool backward : {false, true}) {
    EXPECT_GT(predicted(channel, backward).us, 0);
    EXPECT_EQ(predicted(channel, backward, kCopy, 80).us, 0) << "per channel 8.0 was not measured";
  }
  channel.problem.head_dim_v = 512, channel.problem.head_dim_k = 256;
  for (const bool backward : {false, true}) EXPECT_EQ(predicted(channel, backward).us, 0) << "nor such states";
}

TEST(PredictedTime, InWords) {
  Case plan(Decay::kNone, 16384);
  TokenRanges ranges;
  ranges.begin = {0, plan.problem.tokens};
  const TokenPartition partition = make_token_partition(plan.problem, ranges, 0);
  const PlanInputs inputs(plan.problem, partition);
  const FittingKernels kernels(plan.problem, 90);
  const Choices choices = make_choices(inputs, kernels, kMultiprocessors);
  const std::string text = predicted_times(inputs, choices, kernels, kCopy);
  EXPECT_EQ(text.find("; predicted forward 0."), 0) << text;
  EXPECT_NE(text.find(" of the copy floor, backward 0."), std::string::npos) << text;
  EXPECT_EQ(predicted_times(inputs, choices, kernels, 0), "");
}

}  // namespace
}  // namespace lasp::cuda
