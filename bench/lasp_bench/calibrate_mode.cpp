#include <algorithm>
#include <string>
#include <vector>

#include "common/environment.h"
#include "failure.h"
#include "fold_speed.h"
#include "link_speed.h"
#include "modes.h"
#include "support/device.h"
#include "table.h"

namespace bench {
namespace {

constexpr int32_t kFewForARound = 3, kMostForARound = 4;

struct Number {
  const char *name, *unit, *what;
  double value;
};

}  // namespace

int run_calibrate(Group &group, const Options &options, int cpus, FILE *out) {
  if (group.most_ranks() < 2) throw UsageError("--calibrate: needs two ranks to measure a link");
  const bool on_gpu = options.device == LASP_DEVICE_CUDA;
  const int32_t threads =
      options.threads.empty() ? std::max(1, cpus / 2) : static_cast<int32_t>(options.threads.front());
  FoldSpeed fold, dense;
  if (group.is_speaker()) {
    fold = measure_fold(options.device, threads, false);
    dense = measure_fold(options.device, threads, true);
  }
  const LinkSpeed link = measure_link(group, options.device);
  const int32_t ranks = std::min(group.most_ranks(), kMostForARound);
  const double gather = ranks >= kFewForARound ? measure_gather_us(group, ranks, options.device) : 0;
  if (!group.is_speaker()) return 0;

  std::vector<Number> numbers = {{"latency_us", "us", "a message between two ranks", link.latency_us},
                                 {"bandwidth_gbs", "GB/s", "its bytes", link.bandwidth_gbs}};
  if (ranks >= kFewForARound)
    numbers.push_back({"round_us", "us", "a round in which a rank sends and receives, beyond a message",
                       std::max(gather - link.latency_us - fold.launch_us, 0.0)});
  numbers.push_back({"fold_us", "us", "composing two small maps", fold.launch_us});
  numbers.push_back({"fold_gbs", "GB/s", "composing two maps, bytes of one", fold.rate / 1e3});
  numbers.push_back({"dense_us", "us", "a product of two small dense maps", dense.launch_us});
  numbers.push_back({"dense_tflops", "TFLOP/s", "products of dense maps of 128 x 128", dense.rate / 1e6});
  std::fprintf(out, "What the automatic schedule needs to know, by %s%s%s:\n\n", group.name(), on_gpu ? " on " : "",
               on_gpu ? gpu::device_name(0).c_str() : "");
  std::string line;
  for (const Number &number : numbers) {
    std::fprintf(out, "  %-14s %10.4g %-8s %s\n", number.name, number.value, number.unit, number.what);
    line += (line.empty() ? "" : ",") + std::string(number.name) + "=" + format("%.4g", number.value);
  }
  if (ranks < kFewForARound)
    std::fprintf(out, "  round_us       not measured, which takes %d ranks: what the library has stays\n",
                 kFewForARound);
  std::fprintf(
      out, "\nTo use them, in the environment of each rank (what counts is rank 0's):\n\n  export LASP_LINK=%s\n",
      line.c_str());
  return 0;
}

}  // namespace bench
