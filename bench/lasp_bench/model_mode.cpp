#include <algorithm>

#include "common/environment.h"
#include "failure.h"
#include "link_speed.h"
#include "measure.h"
#include "modes.h"
#include "table.h"

namespace bench {
namespace {

constexpr int32_t kMostRanks = 1024;
constexpr int64_t kSampleTokens = 4096;  // enough for the rate of one rank's arithmetic

double predict(int32_t schedule, int32_t ranks, uint64_t bytes, const LinkSpeed &link) {
  double us = 0;
  check(lasp_predict_exchange(schedule, ranks, bytes, 0, link.latency_us, link.bandwidth_gbs, &us),
        "lasp_predict_exchange");
  return us;
}

// One rank's arithmetic of a forward and a backward pass, microseconds per token of each batch row.
struct Arithmetic {
  double total = 0;
  // The part that needs no state from another rank, and can be done while states travel: the products inside
  // chunks, by their share of the FLOP counted.
  double free = 0;
};

Arithmetic measure_arithmetic(Group &group, const Options &options, Config config) {
  config.ranks = 1;
  config.shape.tokens = std::min(config.shape.tokens, kSampleTokens);
  config.passes = Passes::kBoth;
  MeasureSettings settings = options.settings;
  settings.check = settings.sgemm = false;
  const Result result = measure(group, config, settings);
  if (!result.refused.empty()) throw Failure(result.refused);
  Shape without_chunks = config.shape;
  without_chunks.mask = LASP_MASK_BIDIRECTIONAL;  // counts the products with states alone
  Arithmetic sum;
  for (const PassResult &pass : result.passes) {
    const double us = pass.statistics.median * 1e6 / static_cast<double>(config.shape.tokens);
    sum.total += us;
    sum.free +=
        us * (1 - count_flop(without_chunks, result.info.chunk, pass.timed == Timed::kBackward) / pass.flop);
  }
  return sum;
}

void explain(FILE *out, const LinkSpeed &link, bool given, const Group &group) {
  if (given) {
    std::fprintf(out, "Link, as given: latency a = %.3g us, bandwidth 1/b = %.3g GB/s.\n", link.latency_us,
                 link.bandwidth_gbs);
  } else {
    std::fprintf(
        out,
        "Link, between two ranks by %s on this machine: a state of %s takes %.1f us one way, one of %s %.1f us\n"
        "(half of a forward and a backward pass of ranks without tokens, less the same on one rank; the least of "
        "many).\n"
        "Latency a = %.3g us, bandwidth 1/b = %.3g GB/s.\n",
        group.name(), tools::human_bytes(static_cast<double>(link.small_bytes)).c_str(), link.small_us,
        tools::human_bytes(static_cast<double>(link.large_bytes)).c_str(), link.large_us, link.latency_us,
        link.bandwidth_gbs);
  }
  std::fprintf(out,
               "Model, of one exchange of P bytes per rank among W ranks (lasp_predict_exchange):\n"
               "  ring        (W-1) (a + P b)\n"
               "  all-gather  a + (W-1) P b\n"
               "  all-scan    (W-2+n) (a + P b / n), with the number of pieces n that is best\n"
               "  doubling    ceil(log2 W) (a + P b)\n"
               "  head-scatter  2 (a + (W-1) P b / W)\n");
}

}  // namespace

int run_model(Group &group, const Options &options, int cpus, FILE *out) {
  const Config config = make_configs(options, cpus, 1).front();
  const Shape &shape = config.shape;
  const bool given = options.bandwidth_gbs > 0;
  LinkSpeed link;
  if (given) {
    link.latency_us = options.latency_us;
    link.bandwidth_gbs = options.bandwidth_gbs;
  } else if (group.most_ranks() < 2) {
    throw UsageError("--model: needs two ranks to measure a link, or --latency-us and --bandwidth-gbs");
  } else {
    link = measure_link(group);
  }
  const Arithmetic token = measure_arithmetic(group, options, config);
  if (!group.is_speaker()) return 0;

  const uint64_t bytes = shape.state_bytes();
  explain(out, link, given, group);
  std::fprintf(
      out,
      "P = 4 B H K V = %llu bytes (batch %lld, heads %d, K %d, V %d). A training step has two exchanges, one in\n"
      "each direction, beside the arithmetic of a forward and a backward pass: decay %s, %d thread(s),\n"
      "%.3g us a token as measured here on one rank, of which %.3g us (products inside chunks) need no state from\n"
      "another rank. Sequence: %lld tokens.\n"
      "Times in microseconds. ring to head-scatter: the two exchanges; share: of the best of them in the "
      "arithmetic;\n"
      "hidden: the best takes no longer than the arithmetic that needs no state from another rank.\n\n",
      static_cast<unsigned long long>(bytes), static_cast<long long>(shape.batch), shape.heads(), shape.head_dim_k,
      shape.head_dim_v, name_of(kDecays, shape.decay).c_str(), config.threads, token.total, token.free,
      static_cast<long long>(shape.tokens));
  const Table table(out, {{"ranks", 5},
                          {"ring", 10},
                          {"all-gather", 10},
                          {"all-scan", 10},
                          {"doubling", 10},
                          {"head-scatter", 12},
                          {"best", 10},
                          {"tokens/rank", 11},
                          {"arithmetic", 11},
                          {"of it free", 11},
                          {"share", 7},
                          {"hidden", 6}});
  table.header();
  for (int32_t ranks = 2; ranks <= kMostRanks; ranks *= 2) {
    std::vector<std::string> cells = {std::to_string(ranks)};
    double best = 0;
    std::string best_name;
    for (const int32_t schedule : {LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_GATHER, LASP_SCHEDULE_ALL_SCAN,
                                   LASP_SCHEDULE_DOUBLING, LASP_SCHEDULE_HEAD_SCATTER}) {
      const double us = 2 * predict(schedule, ranks, bytes, link);
      cells.push_back(format("%.1f", us));
      if (best_name.empty() || us < best) {
        best = us;
        best_name = name_of(kSchedules, schedule);
      }
    }
    const double tokens = static_cast<double>(shape.tokens) / ranks;
    const double arithmetic = tokens * token.total, free = tokens * token.free;
    cells.push_back(best_name);
    cells.push_back(format("%.0f", tokens));
    cells.push_back(format("%.1f", arithmetic));
    cells.push_back(format("%.1f", free));
    cells.push_back(format("%.1f%%", best / arithmetic * 100));
    cells.push_back(best <= free ? "yes" : "no");
    table.row(cells);
  }
  return 0;
}

}  // namespace bench
