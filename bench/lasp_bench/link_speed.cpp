#include "link_speed.h"

#include <algorithm>
#include <chrono>

#include "failure.h"
#include "rank_case.h"
#include "statistics.h"

namespace bench {
namespace {

struct Probe {
  int32_t heads, head_dim;
  int batches, rounds;  // the least of so many means of so many round trips
};
constexpr Probe kSmall = {1, 8, 40, 50};
constexpr Probe kLarge = {16, 256, 20, 4};

Config probe_config(const Probe &probe, int32_t ranks, int32_t device, int32_t schedule = LASP_SCHEDULE_RING) {
  Config config;
  config.device = device;
  config.shape.heads_q = config.shape.heads_k = config.shape.heads_v = probe.heads;
  config.shape.head_dim_k = config.shape.head_dim_v = probe.head_dim;
  config.schedule = schedule;
  config.ranks = ranks;
  return config;
}

// Microseconds of a forward and a backward pass together.
double round_trip_us(Group &group, const Probe &probe, int32_t ranks, int32_t device,
                     int32_t schedule = LASP_SCHEDULE_RING) {
  double least = 0;
  group.run(ranks, [&](Link &link) {
    RankCase rank_case(link, probe_config(probe, ranks, device, schedule));
    if (ranks > 1 && link.largest(static_cast<double>(rank_case.info().forward_bytes_sent)) == 0)
      throw Failure("the link cannot be measured: ranks without tokens send nothing");
    std::vector<double> means;
    for (int batch = 0; batch < probe.batches; ++batch) {
      link.barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (int round = 0; round < probe.rounds; ++round) {
        rank_case.forward();
        rank_case.backward();
      }
      if (rank_case.device() != nullptr) gpu::wait(rank_case.device()->stream());
      const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
      means.push_back(spent.count() / probe.rounds);
    }
    if (link.rank() == 0) least = summarize(means).minimum;
  });
  return least;
}

double one_way_us(Group &group, const Probe &probe, int32_t device) {
  return std::max((round_trip_us(group, probe, 2, device) - round_trip_us(group, probe, 1, device)) / 2, 1e-3);
}

}  // namespace

LinkSpeed measure_link(Group &group, int32_t device) {
  LinkSpeed link;
  link.small_bytes = probe_config(kSmall, 2, device).shape.state_bytes();
  link.large_bytes = probe_config(kLarge, 2, device).shape.state_bytes();
  link.small_us = one_way_us(group, kSmall, device);
  link.large_us = one_way_us(group, kLarge, device);
  const double us_per_byte =
      std::max(link.large_us - link.small_us, 1e-3) / static_cast<double>(link.large_bytes - link.small_bytes);
  link.bandwidth_gbs = 1e-3 / us_per_byte;
  link.latency_us = std::max(link.small_us - us_per_byte * static_cast<double>(link.small_bytes), 1e-3);
  return link;
}

double measure_gather_us(Group &group, int32_t ranks, int32_t device) {
  const double all = round_trip_us(group, kSmall, ranks, device, LASP_SCHEDULE_ALL_GATHER);
  return std::max((all - round_trip_us(group, kSmall, 1, device)) / 2, 0.0);
}

}  // namespace bench
