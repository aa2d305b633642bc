// What the automatic schedule takes on GPUs, beside the exchanges that were measured (bench/results/exchanges.csv).
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "core/schedules.h"
#include "engine/device.h"
#include "exchange/cost_model.h"

namespace lasp {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
const Among kOnGpus{.head_scatter = false};

struct Row {
  std::string run, schedule;
  int32_t ranks;
  int64_t tokens;
  double state_bytes, us;  // forward and backward together
};

std::vector<Row> measured() {
  std::ifstream file(LASP_SOURCE_DIR "/bench/results/exchanges.csv");
  std::vector<Row> rows;
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "run,date,commit,device,ranks,tokens,state_mib,schedule,forward_ms,backward_ms");
  while (std::getline(file, line)) {
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    if (cells.size() < 10) continue;  // NCCL's own, which go one way
    rows.push_back({cells[0], cells[7], std::stoi(cells[4]), std::stoll(cells[5]), std::stod(cells[6]) * kMiB,
                    1e3 * (std::stod(cells[8]) + std::stod(cells[9]))});
  }
  return rows;
}

int32_t schedule_named(const std::string &name) {
  for (const ScheduleEntry &each : kSchedules)
    if (each.short_name == name) return each.value;
  ADD_FAILURE() << "no schedule is called " << name;
  return 0;
}

int32_t taken(int32_t ranks, double state_bytes, const Link &link) {
  return best_schedule(ranks, state_bytes, best_pieces(ranks, state_bytes, 256, link), link, kOnGpus);
}

// A pass by the schedule that is taken is at most 5% slower than by the best, at each length that was measured with
// all schedules.
TEST(MeasuredExchange, TheBestOfEightOrNearIt) {
  std::map<int64_t, std::map<int32_t, double>> times;
  for (const Row &row : measured())
    if (row.ranks == 8) times[row.tokens][schedule_named(row.schedule)] = row.us;
  ASSERT_EQ(times.size(), 3u);
  for (const auto &[tokens, by_schedule] : times) {
    ASSERT_EQ(by_schedule.size(), 4u);
    const int32_t chosen = taken(8, 2 * kMiB, kNvlink);
    double best = by_schedule.begin()->second;
    for (const auto &[schedule, us] : by_schedule) best = std::min(best, us);
    EXPECT_LE(by_schedule.at(chosen), 1.05 * best)
        << tokens << " tokens of a rank: " << find_schedule(chosen)->short_name << " is taken";
  }
}

// The difference of two schedules over a pair of passes has four residuals of the fit, each of which is at most 21
// us. Beyond that a new fit is due (bench/fit_exchanges.py).
TEST(MeasuredExchange, DifferencesOfSchedulesAreThoseMeasured) {
  std::map<int64_t, std::map<int32_t, double>> times;
  for (const Row &row : measured())
    if (row.ranks == 8) times[row.tokens][schedule_named(row.schedule)] = row.us;
  for (const auto &[tokens, by_schedule] : times)
    for (const auto &[schedule, us] : by_schedule) {
      // The all-scan was cut in two by the model of that time.
      const auto predicted = [&](int32_t which) { return 2 * predict_exchange_us(which, 8, 2 * kMiB, 2, kNvlink); };
      const double more = us - by_schedule.at(LASP_SCHEDULE_ALL_GATHER);
      EXPECT_NEAR(predicted(schedule) - predicted(LASP_SCHEDULE_ALL_GATHER), more, 4 * 21)
          << tokens << " tokens of a rank, " << find_schedule(schedule)->short_name;
    }
}

// The slowest of the table was taken before rounds had a cost.
TEST(MeasuredExchange, WithoutRoundsTheSlowestWouldBeTaken) {
  EXPECT_EQ(taken(8, 2 * kMiB, {15, 250}), LASP_SCHEDULE_DOUBLING);
  EXPECT_NE(taken(8, 2 * kMiB, kNvlink), LASP_SCHEDULE_DOUBLING);
}

}  // namespace
}  // namespace lasp
