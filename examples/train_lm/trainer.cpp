// The training loop of one rank, and the gathering of what the ranks measured.
#include "trainer.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "attention.hpp"
#include "model.hpp"
#include "optimizer.hpp"
#include "random.hpp"
#include "sample.hpp"
#include "weights.hpp"

namespace train_lm {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double bytes_sent(const lasp_comm *comm, double *wait_seconds) {
  lasp_traffic traffic = LASP_TRAFFIC_INIT;
  check(lasp_comm_get_traffic(comm, &traffic), "lasp_comm_get_traffic");
  *wait_seconds = traffic.wait_seconds;
  return static_cast<double>(traffic.bytes_sent);
}

// Everything one rank owns for a run.
class RankTrainer {
 public:
  RankTrainer(const Options &options, const Text &text, const RunRequest &request, const Endpoint &end);

  void step(int number);             // a GPU may still be at work on it when this returns
  std::vector<StepRecord> finish();  // waits; the records of the steps since the last call
  void report(RunResult *result);    // collective
  void sample(RunResult *result);    // collective

 private:
  // What a step leaves on the device for its record.
  double *measured() { return measured_.data() + kMeasured * rates_.size(); }
  static constexpr std::size_t kMeasured = 3;  // the loss, summed over tokens; the gradient's squares and sizes

  const Options &options_;
  const Text &text_;
  const Endpoint &end_;
  const int threads_;
  const TokenRange range_;
  const Comm alone_;
  lasp_comm *comm_;
  const Layout layout_;
  Context context_;
  Device &device_;
  Parameters parameters_;
  DeviceArray<std::uint8_t> bytes_;
  DeviceArray<double> measured_;
  SequenceAttention attention_;
  Model model_;
  Optimizer optimizer_;
  std::vector<double> rates_;  // of the steps since finish()
  double began_ = 0.0;         // when the first of them did
  double sent_before_ = 0.0, waited_before_ = 0.0;
};

int threads_of(const Options &options, const Endpoint &end) {
  return std::max(1, (options.threads > 0 ? options.threads : cpu_count()) / end.local_ranks);
}

OptimizerSettings optimizer_settings(const Options &options) {
  OptimizerSettings settings;
  settings.peak_rate = options.learning_rate;
  settings.weight_decay = options.weight_decay;
  settings.clip = options.clip;
  settings.warmup = options.warmup;
  settings.steps = options.steps;
  return settings;
}

AttentionSettings attention_settings(const Options &options) {
  AttentionSettings settings;
  settings.schedule = options.schedule;
  settings.cache = options.cache;
  return settings;
}

// Steps between two looks at a GPU. On the CPU a step is done when it returns.
std::size_t window_of(const Options &options, const Place &place) {
  return place.is_cuda() ? static_cast<std::size_t>(std::min(options.log_every, options.steps)) : 1;
}

RankTrainer::RankTrainer(const Options &options, const Text &text, const RunRequest &request, const Endpoint &end)
    : options_(options),
      text_(text),
      end_(end),
      threads_(threads_of(options, end)),
      range_(token_range(options.seq_len, end.groups.sequence_rank, end.groups.sequence_ranks)),
      alone_(request.drop_exchange ? group_of_one() : nullptr),
      comm_(request.drop_exchange ? alone_.get() : end.comm),
      layout_(shape_of(options)),
      context_(comm_, threads_, end.place),
      device_(context_.device()),
      parameters_(device_, layout_.size()),
      bytes_(device_, static_cast<std::size_t>(range_.count) + 1),
      measured_(device_, kMeasured * window_of(options, end.place)),
      attention_(context_, layout_.shape(), range_.count, attention_settings(options)),
      model_(layout_, parameters_.weights(), range_.count, Model::Use::training, attention_, device_),
      optimizer_(layout_, optimizer_settings(options), device_) {
  std::vector<float> first(layout_.size());
  layout_.initialise(options.seed, first.data());
  Random random(options.seed + 1);
  for (std::size_t i = 0; request.perturbation != 0.0 && i < first.size(); ++i)
    first[i] *= static_cast<float>(1.0 + request.perturbation * (random.uniform() < 0.5 ? -1.0 : 1.0));
  parameters_.set(first.data());
  sent_before_ = bytes_sent(comm_, &waited_before_);
}

void RankTrainer::step(int number) {
  if (rates_.empty()) began_ = now();
  const double tokens = static_cast<double>(options_.seq_len) * end_.groups.data_ranks;
  const std::uint64_t window = text_.window_begin(options_.seed, number, end_.groups.sequence_group);
  // One byte more than this rank holds: the last target is the next rank's first token.
  const std::vector<std::uint8_t> bytes =
      text_.slice(window + static_cast<std::uint64_t>(range_.begin), range_.count + 1);
  device_.upload(bytes_.data(), bytes.data(), bytes.size());
  double *const loss = measured(), *const norms = loss + 1;
  model_.forward(bytes_.data());
  model_.loss(bytes_.data() + 1, static_cast<float>(1.0 / tokens), loss);
  float *gradient = model_.backward(bytes_.data(), attention_);
  sum_over_ranks(end_, context_, gradient, layout_.size());
  sum_over_ranks(end_, context_, loss, 1);
  device_.norms(gradient, layout_.size(), norms);
  rates_.push_back(optimizer_.step(gradient, norms, parameters_));
}

std::vector<StepRecord> RankTrainer::finish() {
  context_.finish();
  std::vector<double> values(kMeasured * rates_.size());
  device_.copy(values.data(), measured_.data(), values.size() * sizeof(double));
  const double tokens = static_cast<double>(options_.seq_len) * end_.groups.data_ranks;
  const double seconds = (now() - began_) / static_cast<double>(rates_.size());
  std::vector<StepRecord> records;
  for (std::size_t i = 0; i < rates_.size(); ++i) {
    const double *v = values.data() + kMeasured * i;
    records.push_back({v[0] / tokens, rates_[i], std::sqrt(v[1]), v[2], seconds});
  }
  rates_.clear();
  return records;
}

void RankTrainer::report(RunResult *result) {
  double waited = 0.0;
  const double sent = bytes_sent(comm_, &waited) - sent_before_;
  const double passes = static_cast<double>(options_.steps) * options_.layers;
  const lasp_plan_info &info = attention_.info();
  const double mine[] = {static_cast<double>(device_.meter().peak()),
                         static_cast<double>(attention_.workspace_bytes()),
                         static_cast<double>(attention_.state_cache_bytes()),
                         sent / passes,
                         static_cast<double>(info.forward_bytes_sent + info.backward_bytes_sent),
                         waited - waited_before_};
  constexpr std::size_t kFields = sizeof mine / sizeof mine[0];
  std::vector<double> all(static_cast<std::size_t>(end_.ranks) * kFields, 0.0);
  std::copy(mine, mine + kFields, all.begin() + static_cast<std::ptrdiff_t>(kFields) * end_.rank);
  end_.world->sum(all.data(), all.size());  // each rank fills its own part: the sum is a gather
  if (result == nullptr) return;
  for (std::size_t at = 0; at < all.size(); at += kFields)
    result->ranks.push_back({all[at], all[at + 1], all[at + 2], all[at + 3], all[at + 4], all[at + 5]});
  result->device = name_of(end_.place);
  result->dtype = end_.place.dtype == LASP_BFLOAT16 ? "bfloat16" : "float32";
  result->schedule = schedule_name(info.schedule);
  result->chunk = info.chunk;
  result->threads_per_rank = threads_;
  result->parameters = layout_.size();
}

void RankTrainer::sample(RunResult *result) {
  SampleRequest request;
  request.prompt = text_.slice(text_.window_begin(options_.seed, options_.steps, 0), options_.prompt_bytes);
  request.bytes = options_.sample_bytes;
  request.temperature = options_.temperature;
  request.seed = options_.seed;
  request.threads = threads_;
  const std::string sample = generate(request, layout_, parameters_.weights(), end_);
  if (result == nullptr) return;
  result->prompt.assign(request.prompt.begin(), request.prompt.end());
  result->sample = sample;
}

}  // namespace

double RunResult::tokens_per_second(std::int64_t tokens_per_step) const {
  std::vector<double> seconds;
  for (const StepRecord &step : steps) seconds.push_back(step.seconds);
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  return static_cast<double>(tokens_per_step) / seconds[seconds.size() / 2];
}

TokenRange token_range(std::int64_t tokens, int rank, int ranks) {
  const std::int64_t share = tokens / ranks;
  const std::int64_t longer = tokens % ranks;  // so many ranks, the first ones, hold one more
  return {share * rank + std::min<std::int64_t>(rank, longer), share + (rank < longer ? 1 : 0)};
}

Shape shape_of(const Options &options) {
  Shape shape;
  shape.layers = options.layers;
  shape.d_model = options.d_model;
  shape.heads = options.heads;
  shape.d_ff = options.d_ff;
  return shape;
}

Place kind_of(const Options &options) { return {options.device, dtype_of(options), 0, options.cublas}; }

int cpu_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

RunResult train(const Options &options, const Text &text, const RunRequest &request, const Observer &observer) {
  RunResult result;
  result.split = request.split;
  const bool mpi = request.transport == Transport::mpi, cuda = request.place.is_cuda();
  result.transport = request.split.sequence_ranks == 1 ? "none" : !mpi ? "threads" : cuda ? "nccl" : "mpi";
  const RankBody body = [&](const Endpoint &end) {
    RunResult *mine = end.rank == 0 ? &result : nullptr;
    const auto trainer = std::make_unique<RankTrainer>(options, text, request, end);
    const int window = static_cast<int>(window_of(options, end.place));
    for (int number = 0; number < options.steps; ++number) {
      trainer->step(number);
      if ((number + 1) % window != 0 && number + 1 != options.steps) continue;
      for (const StepRecord &record : trainer->finish()) {
        if (mine == nullptr) continue;
        mine->steps.push_back(record);
        if (observer) observer(static_cast<int>(mine->steps.size()) - 1, record);
      }
    }
    trainer->report(mine);
    if (request.sample) trainer->sample(mine);
  };
  if (mpi)
    run_mpi_rank(request.split, request.place, options.nccl, body);
  else
    run_thread_ranks(request.split, request.place, body);
  return result;
}

}  // namespace train_lm
