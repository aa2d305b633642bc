// train_lm: trains a small language model on text, its sequence split over ranks by liblasp.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "attention.hpp"
#include "bound.hpp"
#include "checks.hpp"
#include "linalg.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "svg.hpp"
#include "text.hpp"
#include "trainer.hpp"

namespace train_lm {
namespace {

void print_header(const Options &o, const Text &text) {
  std::printf("Text: %s, %zu bytes. Model: %d blocks, width %d, %d heads of %d, MLP %d.\n",
              text.description().c_str(), text.bytes(), o.layers, o.d_model, o.heads, o.d_model / o.heads, o.d_ff);
  std::printf("%d step%s of %d sequence%s of %lld tokens%s.\n", o.steps, o.steps == 1 ? "" : "s", o.data_groups,
              o.data_groups == 1 ? "" : "s", static_cast<long long>(o.seq_len),
              static_cast<unsigned long long>(o.seq_len) > text.bytes() ? " (the text repeats)" : "");
  std::fflush(stdout);
}

// The run that the command line asks for.
RunRequest main_request(const Options &o) {
  RunRequest request;
  request.split = {o.sequence_ranks, o.data_groups, o.group_stride};
  request.transport = o.transport;
  request.place = kind_of(o);
  request.drop_exchange = o.drop_exchange;
  return request;
}

// Trains and adds the result to the report. `speaks`: this process shows progress.
void run(Report &report, RunRequest request, bool speaks) {
  RunResult shown;
  shown.split = request.split;
  shown.device = request.place.is_cuda() ? "GPU" : "CPU";
  const Options &o = *report.options;
  Progress progress(label(shown), o.steps, o.seq_len * request.split.data_groups);
  const auto observer = [&](int step, const StepRecord &record) { progress.show(step, record); };
  report.runs.push_back(train(o, *report.text, request, speaks ? Observer(observer) : Observer()));
}

void write_results(const Report &report) {
  const Options &o = *report.options;
  if (!o.out.empty()) {
    write_file(o.out + "/loss.svg", loss_svg(report));
    write_file(o.out + "/loss.csv", to_csv(report));
    write_file(o.out + "/run.json", to_json(report));
    std::printf("\n  Wrote %s/loss.svg, loss.csv and run.json.\n", o.out.c_str());
  }
  if (!o.json.empty()) write_file(o.json, to_json(report));
}

// One run, or with --compare one rank per sequence and then the split, or with --compare-devices the split on the
// CPU and then on GPUs. Returns the exit code.
int train_and_report(const Options &options, const Process &process) {
  const auto start = std::chrono::steady_clock::now();
  const Text text(options.text);
  const bool first = process.rank() == 0;
  if (first && !options.out.empty())
    std::filesystem::create_directories(options.out);  // refused now, not at the end
  if (first) print_header(options, text);
  Report report;
  report.options = &options;
  report.text = &text;
  RunRequest request = main_request(options);
  if (options.mode == Mode::compare) {
    RunRequest reference;
    reference.split = {1, options.data_groups, 1};
    reference.place = request.place;
    if (first) run(report, reference, true);
    process.barrier();
  } else if (options.mode == Mode::compare_devices) {
    request.place.device = LASP_DEVICE_CPU;
    run(report, request, first);
    request.place.device = LASP_DEVICE_CUDA;
  }
  request.sample = options.sample_bytes > 0;
  run(report, request, first);
  if (!first) return 0;

  if (report.runs.size() == 2) {
    const int chunk = std::max(report.runs[0].chunk, report.runs[1].chunk);
    const std::int64_t tokens = options.seq_len * options.data_groups;
    report.bound = curve_bound(shape_of(options), tokens, terms_at_once(request.place, options.seq_len), chunk,
                               report.runs[0]);
    report.difference = compare_curves(report.runs[0], report.runs[1], report.bound);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print_table(report);
  print_sample(report.runs.back());
  write_results(report);
  const std::vector<std::string> wrong = complaints(report);
  for (const std::string &sentence : wrong) std::fprintf(stderr, "train_lm: %s\n", sentence.c_str());
  std::printf("\n  %.0f seconds in all.\n", report.seconds);
  return wrong.empty() ? 0 : 1;
}

int dispatch(const Options &options, const Process &process) {
  const int world = options.sequence_ranks * options.data_groups;
  if (options.transport == Transport::mpi && process.ranks() != world)
    throw std::runtime_error("mpirun started " + std::to_string(process.ranks()) +
                             " processes, but --sp times --dp is " + std::to_string(world) + ".");
  if (options.device == LASP_DEVICE_CUDA || options.mode == Mode::compare_devices ||
      options.mode == Mode::check_device)
    require(place_of({LASP_DEVICE_CUDA, LASP_FLOAT32, 0, options.cublas},
                     process.local_rank()));  // refused now, not after the first run
  switch (options.mode) {
    case Mode::check_gradients: return check_gradients(options) ? 0 : 1;
    case Mode::check_exchange: return check_exchange(options) ? 0 : 1;
    case Mode::check_decoding: return check_decoding(options) ? 0 : 1;
    case Mode::check_device: return check_device(options) ? 0 : 1;
    case Mode::train:
    case Mode::compare:
    case Mode::compare_devices: break;
  }
  return train_and_report(options, process);
}

int run_process(const Options &options, int *argc, char ***argv) {
  const Process process(options.transport == Transport::mpi, argc, argv);
  try {
    use_one_blas_thread();
    return dispatch(options, process);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "train_lm: %s\n", error.what());
    process.fail();
  }
}

}  // namespace
}  // namespace train_lm

int main(int argc, char **argv) {
  const train_lm::ParsedOptions parsed = train_lm::parse_options(argc, argv);
  if (parsed.help) {
    std::fputs(train_lm::usage().c_str(), stdout);
    return 0;
  }
  if (!parsed.error.empty()) {
    std::fprintf(stderr, "train_lm: %s\n", parsed.error.c_str());
    return 2;
  }
  try {
    return train_lm::run_process(parsed.options, &argc, &argv);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "train_lm: %s\n", error.what());
    return 1;
  }
}
