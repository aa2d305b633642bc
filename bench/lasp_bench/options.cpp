#include "options.h"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "failure.h"

namespace bench {
namespace {

[[noreturn]] void refuse(const std::string &option, const std::string &word, const std::string &wanted) {
  throw UsageError(option + ": \"" + word + "\" is not " + wanted);
}

std::vector<std::string> split(const std::string &text) {
  std::vector<std::string> words(1);
  for (const char c : text)
    if (c == ',')
      words.emplace_back();
    else
      words.back() += c;
  return words;
}

// "16384", "16k" (times 1,024) or "1m" (times 1,048,576).
int64_t parse_size(const std::string &option, const std::string &word, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const std::string unit(end, word.data() + word.size());
  const int64_t factor = unit.empty()                 ? 1
                         : unit == "k" || unit == "K" ? 1024
                         : unit == "m" || unit == "M" ? 1048576
                                                      : 0;
  if (error != std::errc() || factor == 0 || value < least || value > most / factor)
    refuse(option, word, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  return value * factor;
}

double parse_real(const std::string &option, const std::string &word) {
  char *end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (word.empty() || *end != '\0' || !(value >= 0) || value > 1e9) refuse(option, word, "a number of 0 or more");
  return value;
}

int32_t parse_name(const std::string &option, const std::string &word, std::span<const Named> names) {
  std::string wanted = "one of";
  for (const Named &named : names) {
    if (named.name == word) return named.value;
    wanted += (wanted.back() == 'f' ? " " : ", ") + std::string(named.name);
  }
  refuse(option, word, wanted);
}

using Reader = std::function<void(const std::string &option, const std::string &value)>;

Reader sizes(std::vector<int64_t> &to, int64_t least, int64_t most) {
  return [&to, least, most](const std::string &option, const std::string &value) {
    to.clear();
    for (const std::string &word : split(value)) to.push_back(parse_size(option, word, least, most));
  };
}

Reader head_dims(std::vector<int64_t> &to) {
  return [&to](const std::string &option, const std::string &value) {
    sizes(to, 8, 512)(option, value);
    for (const int64_t dim : to)
      if (dim % 8 != 0) refuse(option, std::to_string(dim), "a multiple of 8");
  };
}

template <class Number>
Reader size(Number &to, int64_t least, int64_t most) {
  return [&to, least, most](const std::string &option, const std::string &value) {
    to = static_cast<Number>(parse_size(option, value, least, most));
  };
}

Reader real(double &to) {
  return [&to](const std::string &option, const std::string &value) { to = parse_real(option, value); };
}

Reader names(std::vector<int32_t> &to, std::span<const Named> known) {
  return [&to, known](const std::string &option, const std::string &value) {
    to.clear();
    for (const std::string &word : split(value)) to.push_back(parse_name(option, word, known));
  };
}

Reader text(std::string &to) {
  return [&to](const std::string &option, const std::string &value) {
    if (value.empty()) refuse(option, value, "a name");
    to = value;
  };
}

// "1b", "small", or "d_model=2048,layers=16,..." with all five numbers.
void read_fit_model(FitOptions &to, const std::string &option, const std::string &value) {
  // TransNormerLLM-1B's shape, and one for a CPU: those of examples/pytorch/long.py.
  static const std::map<std::string, FitModel> known = {{"1b", {2048, 16, 16, 5632, 64000}},
                                                        {"small", {256, 4, 4, 512, 256}}};
  to.name = value;
  if (const auto model = known.find(value); model != known.end()) {
    to.model = model->second;
    return;
  }
  const std::string wanted =
      "1b, small, or d_model=...,layers=...,heads=...,d_ff=...,vocabulary=..., each number once";
  FitModel &model = to.model = {};
  const std::map<std::string, int64_t *> numbers = {{"d_model", &model.d_model},
                                                    {"layers", &model.layers},
                                                    {"heads", &model.heads},
                                                    {"d_ff", &model.d_ff},
                                                    {"vocabulary", &model.vocabulary}};
  for (const std::string &word : split(value)) {
    const size_t equals = word.find('=');
    const auto number = numbers.find(word.substr(0, equals));
    if (equals == std::string::npos || number == numbers.end() || *number->second != 0)
      refuse(option, value, wanted);
    *number->second = parse_size(option + " " + number->first, word.substr(equals + 1), 1, 1 << 20);
  }
  for (const auto &[name, number] : numbers)
    if (*number == 0) refuse(option, value, wanted);
  if (model.d_model % model.heads != 0 || model.head_dim() % 8 != 0 || model.head_dim() > 512)
    throw UsageError(option + ": d_model / heads must be a multiple of 8, at most 512");
}

constexpr std::array kPasses = {Named{"forward", 0}, Named{"backward", 1}, Named{"both", 2}};
constexpr std::array kTables = {Named{"models", 0}};
constexpr std::array kTransports = {Named{"threads", 0}, Named{"mpi", 1}, Named{"nccl", 2}};

std::map<std::string, Reader> value_options(Options &options) {
  MeasureSettings &settings = options.settings;
  const auto thread_list = sizes(options.threads, 1, 4096);
  return {
      {"--batch", sizes(options.batch, 1, 1 << 20)},
      {"--heads", sizes(options.heads, 1, 4096)},
      {"--heads-q", size(options.heads_q, 1, 4096)},
      {"--heads-k", size(options.heads_k, 1, 4096)},
      {"--heads-v", size(options.heads_v, 1, 4096)},
      {"--tokens", sizes(options.tokens, 1, int64_t{1} << 40)},
      {"--tokens-per-rank",
       [&options](const std::string &option, const std::string &value) {
         sizes(options.tokens, 1, int64_t{1} << 40)(option, value);
         options.tokens_per_rank = true;
       }},
      {"--head-dim-k", head_dims(options.head_dim_k)},
      {"--head-dim-v", head_dims(options.head_dim_v)},
      {"--ranks", sizes(options.ranks, 1, 1024)},
      {"--threads", thread_list},
      {"--threads-sweep",
       [&options, thread_list](const std::string &option, const std::string &value) {
         thread_list(option, value);
         options.thread_sweep = true;
       }},
      {"--segment", sizes(options.segment, 0, int64_t{1} << 40)},
      {"--chunk",
       [&options](const std::string &option, const std::string &value) {
         sizes(options.chunk, 0, 256)(option, value);
         for (const int64_t chunk : options.chunk)
           if (chunk != 0 && chunk != 16 && chunk != 32 && chunk != 64 && chunk != 128 && chunk != 256)
             refuse(option, std::to_string(chunk), "one of 0, 16, 32, 64, 128, 256");
       }},
      {"--decay", names(options.decay, kDecays)},
      {"--schedule", names(options.schedule, kSchedules)},
      {"--dtype", names(options.dtype, kDTypes)},
      {"--cache", names(options.cache, kCaches)},
      {"--mask", names(options.mask, kMasks)},
      {"--write", names(options.write, kWrites)},
      {"--pass",
       [&options](const std::string &option, const std::string &value) {
         options.passes = static_cast<Passes>(parse_name(option, value, kPasses));
       }},
      {"--transport",
       [&options](const std::string &option, const std::string &value) {
         options.transport = static_cast<Transport>(parse_name(option, value, kTransports));
       }},
      {"--device", [&options](const std::string &option,
                              const std::string &value) { options.device = parse_name(option, value, kDevices); }},
      {"--repeats", size(settings.repeats, 1, 10000)},
      {"--warmup", size(settings.warmup, 1, 10000)},
      {"--layers", size(settings.layers, 1, 1024)},
      {"--min-time", real(settings.min_time)},
      {"--latency-us", real(options.latency_us)},
      {"--bandwidth-gbs", real(options.bandwidth_gbs)},
      {"--fit", [&options](const std::string &option,
                           const std::string &value) { read_fit_model(options.fit, option, value); }},
      {"--gpus", size(options.fit.gpus, 1, 1 << 16)},
      {"--gpu-memory", real(options.fit.gpu_memory_gib)},
      {"--parallel",
       [&options](const std::string &option, const std::string &value) {
         options.fit.sharding = static_cast<Sharding>(parse_name(option, value, kShardings));
       }},
      {"--tflops", real(options.fit.tflops)},
      {"--shapes",
       [&options](const std::string &option, const std::string &value) {
         options.models = parse_name(option, value, kTables) == 0;
       }},
      {"--svg", text(options.svg)},
      {"--json", text(options.json)},
      {"--commit", text(options.commit)},
  };
}

// Fills what the command line left open with a sweep that ends in a few minutes.
void apply_sweep(Options &options, const std::set<std::string> &given) {
  if (!given.contains("--schedule"))
    options.schedule = {LASP_SCHEDULE_RING,     LASP_SCHEDULE_ALL_GATHER,   LASP_SCHEDULE_ALL_SCAN,
                        LASP_SCHEDULE_DOUBLING, LASP_SCHEDULE_HEAD_SCATTER, LASP_SCHEDULE_AUTO};
  if (!given.contains("--ranks")) options.ranks = {1, 2, 4};
  if (!given.contains("--tokens") && !given.contains("--tokens-per-rank")) options.tokens = {4096};
}

// A table's shapes are its own: of what lies beside them only how they are run can be said.
void apply_shapes(Options &options, const std::set<std::string> &given) {
  if (!options.models) {
    if (given.contains("--svg")) throw UsageError("--svg: needs --shapes");
    return;
  }
  const std::set<std::string> others = {
      "--shapes", "--tokens", "--dtype",    "--pass", "--device",   "--graph",    "--repeats",          "--warmup",
      "--json",   "--commit", "--min-time", "--svg",  "--no-check", "--no-sgemm", "--no-decay-gradient"};
  for (const std::string &option : given)
    if (!others.contains(option)) throw UsageError(option + ": cannot be combined with --shapes");
  if (options.tokens.size() > 1 || options.dtype.size() > 1)
    throw UsageError("--shapes: needs one number of --tokens and one --dtype, not a list");
  if (given.contains("--tokens")) options.model_tokens = options.tokens.front();
  if (!given.contains("--dtype") && options.device == LASP_DEVICE_CUDA) options.dtype = {LASP_BFLOAT16};
}

// --fit measures nothing, so options that say what is measured would be read in vain; and --tokens and --segment,
// which are lists elsewhere, are numbers with it.
void apply_fit(Options &options, const std::set<std::string> &given) {
  const std::set<std::string> own = {"--gpus", "--gpu-memory", "--parallel", "--tflops"};
  if (!given.contains("--fit")) {
    for (const std::string &option : given)
      if (own.contains(option)) throw UsageError(option + ": needs --fit");
    return;
  }
  const std::set<std::string> shared = {"--fit", "--tokens", "--segment", "--json"};
  for (const std::string &option : given)
    if (!own.contains(option) && !shared.contains(option))
      throw UsageError(option + ": cannot be combined with --fit");
  if (options.tokens.size() > 1 || options.segment.size() > 1)
    throw UsageError("--fit: needs one number of --tokens and of --segment, not a list");
  if (options.fit.tflops <= 0) throw UsageError("--tflops: must be above 0");
  options.mode = Mode::kFit;
  options.fit.segment = options.segment.front();
  if (given.contains("--tokens")) options.fit.tokens = options.tokens.front();
}

}  // namespace

Options parse_options(int argc, const char *const *argv) {
  Options options;
  // Under mpirun each process is a rank, not a benchmark of its own.
  for (const char *variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) options.transport = Transport::kMpi;

  bool sweep = false;
  const std::map<std::string, std::function<void()>> flags = {
      {"--sweep", [&] { sweep = true; }},
      {"--no-check", [&] { options.settings.check = false; }},
      {"--no-sgemm", [&] { options.settings.sgemm = false; }},
      {"--no-decay-gradient", [&] { options.decay_gradient = false; }},
      {"--16-bit-decay", [&] { options.rounded_decay = true; }},
      {"--graph", [&] { options.graph = true; }},
      {"--check", [&] { options.mode = Mode::kCheck; }},
      {"--model", [&] { options.mode = Mode::kModel; }},
      {"--calibrate", [&] { options.mode = Mode::kCalibrate; }},
      {"--memory", [&] { options.mode = Mode::kMemory; }},
      {"--version", [&] { options.mode = Mode::kVersion; }},
      {"--help", [&] { options.mode = Mode::kHelp; }},
      {"-h", [&] { options.mode = Mode::kHelp; }},
  };
  const std::map<std::string, Reader> readers = value_options(options);
  std::set<std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    const std::string option = word.substr(0, equals);
    given.insert(option);
    if (const auto flag = flags.find(option); flag != flags.end() && equals == std::string::npos) {
      flag->second();
    } else if (const auto reader = readers.find(option); reader != readers.end()) {
      if (equals == std::string::npos && i + 1 == argc) throw UsageError(option + ": needs a value");
      reader->second(option, equals == std::string::npos ? argv[++i] : word.substr(equals + 1));
    } else {
      throw UsageError("unknown option " + word);
    }
  }
  if (options.mode == Mode::kHelp || options.mode == Mode::kVersion) return options;
  for (const std::string &option : given)
    if (options.mode == Mode::kCheck && option != "--check" && option != "--json")
      throw UsageError(option + ": cannot be combined with --check, which tries everything there is");
  if (sweep) apply_sweep(options, given);
  apply_fit(options, given);
  apply_shapes(options, given);
  if (options.transport == Transport::kNccl) options.device = LASP_DEVICE_CUDA;
  if (options.device == LASP_DEVICE_CUDA && options.transport == Transport::kMpi)
    throw UsageError("--device cuda: ranks are threads (of one GPU) or --transport nccl, not MPI processes");
  if (options.device == LASP_DEVICE_CUDA && (options.mode == Mode::kMemory || options.mode == Mode::kModel))
    throw UsageError("--device cuda: cannot be combined with --memory or --model");
  if (options.graph && options.device != LASP_DEVICE_CUDA) throw UsageError("--graph: needs --device cuda");
  if (options.settings.layers > 0 && (options.graph || options.passes != Passes::kBoth))
    throw UsageError("--layers: needs both passes, and no --graph");
  if ((options.latency_us > 0) != (options.bandwidth_gbs > 0))
    throw UsageError("--latency-us and --bandwidth-gbs: give both, above 0, or none");
  return options;
}

}  // namespace bench
