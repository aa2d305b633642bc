// lasp-bench: checks and measures the library through its public header. See help.cpp for what it does.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "common/environment.h"
#include "common/version.h"
#include "failure.h"
#include "group.h"
#include "modes.h"
#include "options.h"
#include "report.h"
#include "support/device.h"

namespace bench {
namespace {

// One line on a terminal that says how far a sweep is.
class Progress {
 public:
  Progress(size_t total, bool speaks) : total_(total), shows_(speaks && total > 1 && isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  void show(size_t index, const Config &config) const {
    if (!shows_) return;
    std::fprintf(stderr, "\r\033[K[%zu/%zu] %s%sdecay %s, %d rank(s), schedule %s", index + 1, total_,
                 config.name.c_str(), config.name.empty() ? "" : ", ", name_of(kDecays, config.shape.decay).c_str(),
                 config.ranks, name_of(kSchedules, config.schedule).c_str());
    std::fflush(stderr);
  }
  void clear() const {
    if (shows_) std::fprintf(stderr, "\r\033[K");
  }

 private:
  size_t total_;
  bool shows_;
};

void write_json(const Options &options, const RunInfo &run, const std::vector<Result> &results) {
  tools::JsonWriter json;
  json.begin_object();
  write_run(json, run);
  json.begin_array("results");
  for (const Result &result : results) write_result(json, result);
  json.end_array();
  json.end_object();
  save_json(options.json, json);
}

int run_measure(Group &group, const Options &options, const RunInfo &run, FILE *out) {
  const bool speaks = group.is_speaker();
  const std::vector<Config> configs =
      make_configs(options, run.cpus, options.transport == Transport::kMpi ? group.most_ranks() : 1);
  for (const Config &config : configs)
    if (config.ranks > group.most_ranks())
      throw UsageError(format("--ranks: %d are more than the %d there are", config.ranks, group.most_ranks()));
  MeasureSettings settings = options.settings;
  settings.cpus = run.cpus;

  TextReport report(out, configs);
  if (speaks) report.begin(run);
  const Progress progress(configs.size(), speaks);
  std::vector<Result> results;
  std::vector<std::string> problems;
  for (size_t i = 0; i < configs.size(); ++i) {
    progress.show(i, configs[i]);
    results.push_back(measure(group, configs[i], settings));
    progress.clear();
    if (!speaks) continue;
    report.add(results.back());
    for (std::string &problem : complaints(results.back())) problems.push_back(std::move(problem));
  }
  if (!speaks) return 0;
  if (options.thread_sweep) report.add_speed_ups(results);
  for (const Result &result : results)
    if (!result.not_checked.empty()) {
      std::fprintf(out, "not checked: %s\n", result.not_checked.c_str());
      break;
    }
  if (!options.json.empty()) write_json(options, run, results);
  if (!options.svg.empty()) save_svg(options.svg, results);
  for (const std::string &problem : problems) std::fprintf(stderr, "lasp-bench: %s\n", problem.c_str());
  return problems.empty() ? 0 : 1;
}

// Under mpirun all processes read the same command line; one says what is wrong with it.
bool is_first_process() {
  for (const char *variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char *rank = std::getenv(variable); rank != nullptr) return std::string_view(rank) == "0";
  return true;
}

int run(int argc, char **argv) {
  const Options options = parse_options(argc, argv);
  if (options.mode == Mode::kHelp || options.mode == Mode::kVersion) {
    const std::string text = options.mode == Mode::kHelp ? help_text() : tools::version_line("lasp-bench") + "\n";
    if (is_first_process()) std::fputs(text.c_str(), stdout);
    return 0;
  }
  FILE *out = options.json == "-" ? stderr : stdout;
  if (options.mode == Mode::kFit) return is_first_process() ? run_fit(options, out) : 0;
  if (options.mode == Mode::kMemory) return is_first_process() ? run_memory(options, out) : 0;

  const std::unique_ptr<Group> group = options.transport == Transport::kMpi    ? make_mpi_group()
                                       : options.transport == Transport::kNccl ? make_nccl_group()
                                                                               : make_thread_group();
  if (options.device == LASP_DEVICE_CUDA)
    if (const std::string reason = gpu::why_unusable(); !reason.empty()) throw Failure("--device cuda: " + reason);
  lasp_build_info build = LASP_BUILD_INFO_INIT;
  check(lasp_get_build_info(&build), "lasp_get_build_info");
  if (options.mode == Mode::kCheck) return run_check(*group, options, out);
  if (options.mode == Mode::kModel) return run_model(*group, options, build.cpu_count, out);
  if (options.mode == Mode::kCalibrate) return run_calibrate(*group, options, build.cpu_count, out);
  RunInfo run;
  run.arguments.assign(argv + 1, argv + argc);
  run.transport = group->name();
  run.cpus = build.cpu_count;
  if (group->is_speaker()) run.commit = options.commit.empty() ? tools::git_commit() : options.commit;
  return run_measure(*group, options, run, out);
}

}  // namespace
}  // namespace bench

int main(int argc, char **argv) {
  try {
    return bench::run(argc, argv);
  } catch (const bench::UsageError &error) {
    if (bench::is_first_process())
      std::fprintf(stderr, "lasp-bench: %s; lasp-bench --help lists the options\n", error.what());
    return 2;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "lasp-bench: %s\n", error.what());
    return 1;
  }
}
