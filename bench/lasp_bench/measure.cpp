#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "failure.h"
#include "sgemm.h"

namespace bench {
namespace {

constexpr int kMostCalls = 10000;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The reference depends on the shape alone: a sweep over ranks and schedules makes it once.
const Reference &reference_for(const Config &config, int threads) {
  struct Cached {
    Shape shape;
    bool backward;
    Reference reference;
  };
  static std::unique_ptr<Cached> cached;
  if (!cached || cached->shape != config.shape || (config.has_backward() && !cached->backward))
    cached.reset(new Cached{config.shape, config.has_backward(),
                            make_reference(config.shape, config.has_backward(), threads)});
  return cached->reference;
}

// All ranks' products together use as many threads as the ranks do, but no more than there are CPUs. Ranks that
// share a process share one product; processes run one each at the same time, and their rates are added.
void sample_sgemm(Link &link, const Config &config, int cpus, Result &result) {
  std::vector<double> rates;
  const int threads = std::min(config.threads * config.ranks, cpus);
  link.barrier();
  if (!link.one_process())
    rates = sgemm_rates(config.threads);
  else if (link.rank() == 0)
    rates = sgemm_rates(threads);
  if (!link.one_process()) {
    const std::vector<double> all = link.all_gather({summarize(rates).median});
    rates = {std::accumulate(all.begin(), all.end(), 0.0)};
  }
  link.barrier();
  if (link.rank() != 0) return;
  result.sgemm_threads = link.one_process() ? threads : config.threads * config.ranks;
  result.sgemm_gflops.insert(result.sgemm_gflops.end(), rates.begin(), rates.end());
}

struct Times {
  std::vector<double> begin, end;
  double own() const {
    double sum = 0;
    for (size_t i = 0; i < begin.size(); ++i) sum += end[i] - begin[i];
    return sum;
  }
};

// Of the slowest rank: from the first rank's begin to the last one's end where clocks agree (a rank that the system
// starts late then counts), else the longest that any rank took.
std::vector<double> slowest(Link &link, const Times &mine) {
  const std::vector<double> begins = link.all_gather(mine.begin), ends = link.all_gather(mine.end);
  const size_t n = mine.begin.size();
  std::vector<double> seconds(n, 0.0);
  for (size_t i = 0; i < n; ++i) {
    double first = begins[i], last = ends[i], longest = 0;
    for (size_t at = i; at < begins.size(); at += n) {
      first = std::min(first, begins[at]);
      last = std::max(last, ends[at]);
      longest = std::max(longest, ends[at] - begins[at]);
    }
    seconds[i] = link.one_clock() ? last - first : longest;
  }
  return seconds;
}

template <class Integer>
std::vector<Integer> gather(Link &link, Integer mine) {
  const std::vector<double> all = link.all_gather({static_cast<double>(mine)});  // exact up to 2^53
  return {all.begin(), all.end()};
}

// On a GPU: calls are enqueued one after another, each on the next set of buffers, between events.
template <class Call>
Times device_times(DeviceMirror &device, int calls, const Call &call) {
  std::vector<gpu::Event> begin(static_cast<size_t>(calls)), end(static_cast<size_t>(calls));
  for (size_t i = 0; i < begin.size(); ++i) {
    begin[i].record(device.stream());
    call();
    end[i].record(device.stream());
    device.next();
  }
  gpu::wait(device.stream());
  Times times;
  for (size_t i = 0; i < begin.size(); ++i) {
    times.begin.push_back(0);
    times.end.push_back(end[i].milliseconds_since(begin[i]) * 1e-3);
  }
  return times;
}

template <class Call>
Times host_times(Link &link, int calls, const Call &call) {
  Times times;
  for (int i = 0; i < calls; ++i) {
    link.barrier();
    times.begin.push_back(now());
    call();
    times.end.push_back(now());
  }
  return times;
}

// A graph of one call for every set of buffers, launched in turn.
class Replay {
 public:
  template <class Call>
  Replay(DeviceMirror &device, const Call &call) : device_(device), graphs_(static_cast<size_t>(device.sets())) {
    for (gpu::Graph &graph : graphs_) {
      graph.begin(device.stream());
      call();
      graph.end(device.stream());
      device.next();
    }
  }
  void operator()() { graphs_[next_++ % graphs_.size()].launch(device_.stream()); }

 private:
  DeviceMirror &device_;
  std::vector<gpu::Graph> graphs_;
  size_t next_ = 0;
};

// What the ranks' counts have become, of each of so many passes.
void count_traffic(Link &link, const RankCase &rank_case, const lasp_traffic &from, const lasp_traffic &to,
                   int passes, PassResult &pass) {
  // Bytes per pass come out whole; a remainder shows as a difference from the formula.
  const auto each = [passes](uint64_t all) {
    const auto n = static_cast<uint64_t>(passes);
    return all / n + (all % n != 0 ? 1 : 0);
  };
  const lasp_plan_info &info = rank_case.info();
  const auto of_passes = [&](uint64_t forward, uint64_t backward) {
    return (pass.timed != Timed::kBackward ? forward : 0) + (pass.timed != Timed::kForward ? backward : 0);
  };
  Traffic &traffic = pass.traffic;
  traffic.bytes = gather(link, each(to.bytes_sent - from.bytes_sent));
  traffic.messages = gather(link, each(to.messages_sent - from.messages_sent));
  traffic.formula_bytes = gather(link, of_passes(info.forward_bytes_sent, info.backward_bytes_sent));
  traffic.formula_messages = gather(link, of_passes(info.forward_messages_sent, info.backward_messages_sent));
}

void count_floor(Link &link, const RankCase &rank_case, PassResult &pass) {
  // Virtual ranks share GPU 0 and its bandwidth.
  double floor = 0;
  for (const bool backward : {false, true})
    if (pass.timed == Timed::kLayer || backward == (pass.timed == Timed::kBackward))
      floor += static_cast<double>(rank_case.floor_bytes(backward));
  const std::vector<double> bytes = gather(link, floor);
  const std::vector<double> outputs = gather(link, static_cast<double>(rank_case.output_bytes()));
  const bool shared = link.largest(link.device()) == 0;
  const auto busiest = std::max_element(bytes.begin(), bytes.end());
  pass.floor_bytes = shared ? std::accumulate(bytes.begin(), bytes.end(), 0.0) : *busiest;
  pass.floor_units = pass.floor_bytes / (shared ? std::accumulate(outputs.begin(), outputs.end(), 0.0)
                                                : outputs[static_cast<size_t>(busiest - bytes.begin())]);
}

int calls_for(Link &link, const MeasureSettings &settings, double seconds_of_one) {
  const double one = link.largest(seconds_of_one);
  const double wanted = std::min(std::ceil(settings.min_time / std::max(one, 1e-9)), double{kMostCalls});
  return std::max(settings.repeats, static_cast<int>(wanted));
}

// A step as training makes it: the forward passes of all layers, then their backward passes. Ranks begin together,
// and it ends when the last has ended: a rank that waits for another at the beginning waits once.
PassResult measure_step(Link &link, RankCase &rank_case, const MeasureSettings &settings) {
  DeviceMirror *const device = rank_case.device();
  const auto step = [&] {
    for (const bool backward : {false, true})
      for (int i = 0; i < settings.layers; ++i) {
        backward ? rank_case.backward() : rank_case.forward();
        if (device != nullptr) device->next();
      }
    if (device != nullptr) gpu::wait(device->stream());
  };
  const Times warm = host_times(link, std::max(settings.warmup, 1), step);
  const int calls = calls_for(link, settings, warm.end.back() - warm.begin.back());
  const lasp_traffic before = rank_case.traffic();
  Times times = host_times(link, calls, step);
  PassResult pass;
  pass.timed = Timed::kLayer;
  pass.seconds = slowest(link, times);
  for (double &seconds : pass.seconds) seconds /= settings.layers;
  pass.statistics = summarize(pass.seconds);
  const lasp_traffic after = rank_case.traffic();
  count_traffic(link, rank_case, before, after, calls * settings.layers, pass);
  pass.traffic.wait_share = gather(link, (after.wait_seconds - before.wait_seconds) / std::max(times.own(), 1e-9));
  if (device != nullptr) count_floor(link, rank_case, pass);
  return pass;
}

template <class Call>
PassResult measure_pass(Link &link, RankCase &rank_case, const MeasureSettings &settings, Timed timed,
                        const Call &given_call) {
  DeviceMirror *const device = rank_case.device();
  std::function<void()> call = given_call;
  const lasp_traffic first = rank_case.traffic();
  for (int i = 0; device != nullptr && i < device->sets(); ++i, device->next()) given_call();  // warms every set
  const lasp_traffic warmed = rank_case.traffic();
  const bool graph = device != nullptr && rank_case.config().graph;
  if (graph) call = [replay = std::make_shared<Replay>(*device, given_call)] { (*replay)(); };
  double warm = 0;
  for (int i = 0; i < std::max(settings.warmup, 1); ++i) {
    link.barrier();
    const double begin = now();
    call();
    if (device != nullptr) {
      gpu::wait(device->stream());
      device->next();
    }
    warm = now() - begin;
  }
  const int calls = calls_for(link, settings, warm);

  const lasp_traffic before = rank_case.traffic();
  link.barrier();
  const Times times = device != nullptr ? device_times(*device, calls, call) : host_times(link, calls, call);
  const lasp_traffic after = rank_case.traffic();
  // What a graph sends is not the library's to count: then the eager calls before it are.
  const int counted = graph ? device->sets() : calls;
  const lasp_traffic &from = graph ? first : before, &to = graph ? warmed : after;

  PassResult pass;
  pass.timed = timed;
  pass.seconds = slowest(link, times);
  pass.statistics = summarize(pass.seconds);
  count_traffic(link, rank_case, from, to, counted, pass);
  pass.traffic.wait_share = gather(link, (after.wait_seconds - before.wait_seconds) / std::max(times.own(), 1e-9));
  if (device != nullptr) count_floor(link, rank_case, pass);
  return pass;
}

// What backward needs: on a GPU every set of buffers has a state cache of its own.
void forward_everywhere(RankCase &rank_case) {
  rank_case.forward();
  DeviceMirror *const device = rank_case.device();
  for (int i = 0; device != nullptr && i < device->sets(); ++i, device->next()) rank_case.forward();
}

void sample_copy(Link &link, const RankCase &rank_case, Result &result) {
  link.barrier();
  if (link.rank() == 0) {
    const std::vector<double> rates = copy_rates(rank_case.device()->stream());
    result.copy_gbs.insert(result.copy_gbs.end(), rates.begin(), rates.end());
  }
  link.barrier();
}

void measure_rank(Link &link, const Config &config, const MeasureSettings &settings, const Reference *reference,
                  Result &result) {
  RankCase rank_case(link, config);
  Result mine;  // every rank works it out; rank 0's is kept
  const bool sgemm = settings.sgemm && !config.on_cuda();
  if (sgemm) sample_sgemm(link, config, settings.cpus, mine);
  const bool copy = settings.copy && config.on_cuda();
  if (copy) sample_copy(link, rank_case, mine);
  if (config.on_cuda()) {
    mine.gpu = gpu::device_name(link.device());
    mine.kernels = rank_case.kernels();
  }
  const bool forward = config.passes != Passes::kBackward;
  if (forward)
    mine.passes.push_back(measure_pass(link, rank_case, settings, Timed::kForward, [&] { rank_case.forward(); }));
  else
    forward_everywhere(rank_case);
  if (config.has_backward())
    mine.passes.push_back(measure_pass(link, rank_case, settings, Timed::kBackward, [&] { rank_case.backward(); }));
  if (settings.layers > 0) mine.passes.push_back(measure_step(link, rank_case, settings));
  if (sgemm) sample_sgemm(link, config, settings.cpus, mine);
  if (copy) sample_copy(link, rank_case, mine);

  if (reference != nullptr) {
    // One more run of each pass into spoiled outputs, so that every output read here was written by this plan.
    rank_case.spoil_outputs();
    link.barrier();
    rank_case.forward();
    if (config.has_backward()) rank_case.backward();
    mine.errors = rank_case.compare(*reference);
    for (double &error : mine.errors) error = link.largest(error);
    mine.not_checked = reference->left_out;
  }
  mine.info = rank_case.info();
  mine.tolerance = tolerance(config, mine.info.chunk);
  mine.workspace_forward_bytes =
      static_cast<uint64_t>(link.largest(static_cast<double>(mine.info.workspace_forward_bytes)));
  mine.workspace_backward_bytes =
      static_cast<uint64_t>(link.largest(static_cast<double>(mine.info.workspace_backward_bytes)));
  mine.state_cache_bytes = static_cast<uint64_t>(link.largest(static_cast<double>(mine.info.state_cache_bytes)));
  for (PassResult &pass : mine.passes)
    for (const bool backward : {false, true})
      if (pass.timed == Timed::kLayer || backward == (pass.timed == Timed::kBackward))
        pass.flop += count_flop(config.shape, mine.info.chunk, backward);
  mine.config = config;
  if (link.rank() == 0) result = std::move(mine);
}

}  // namespace

const char *name_of(Timed timed) {
  return timed == Timed::kForward ? "forward" : timed == Timed::kBackward ? "backward" : "layer";
}

uint64_t Result::workspace_bytes(Timed timed) const {
  if (timed == Timed::kForward) return workspace_forward_bytes;
  return timed == Timed::kBackward ? workspace_backward_bytes
                                   : std::max(workspace_forward_bytes, workspace_backward_bytes);
}

uint64_t Traffic::most_bytes() const { return *std::max_element(bytes.begin(), bytes.end()); }
uint64_t Traffic::most_messages() const { return *std::max_element(messages.begin(), messages.end()); }
double Traffic::mean_wait_share() const {
  return std::accumulate(wait_share.begin(), wait_share.end(), 0.0) / static_cast<double>(wait_share.size());
}

double Result::largest_error() const { return *std::max_element(errors.begin(), errors.end()); }

bool Result::traffic_agrees() const {
  return std::all_of(passes.begin(), passes.end(), [](const PassResult &pass) { return pass.traffic.agrees(); });
}

Result measure(Group &group, const Config &config, const MeasureSettings &settings) {
  Result result;
  result.config = config;
  const Reference *reference = settings.check ? &reference_for(config, settings.cpus) : nullptr;
  try {
    group.run(config.ranks, [&](Link &link) { measure_rank(link, config, settings, reference, result); });
  } catch (const Refused &refused) {
    result.refused = refused.what();
  }
  return result;
}

}  // namespace bench
