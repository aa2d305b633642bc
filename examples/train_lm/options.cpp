// Reads the command line by one table: name, help, and how its value is stored.
#include "options.hpp"

#include <lasp/lasp.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

namespace train_lm {
namespace {

using Store = std::function<std::string(Options &, const std::string &)>;  // returns what was expected, or ""

struct Option {
  const char *name;
  const char *value;  // nullptr: a flag
  const char *help;
  Store store;
};

const std::map<std::string, int> &schedules() {
  static const std::map<std::string, int> names = {{"auto", LASP_SCHEDULE_AUTO},
                                                   {"ring", LASP_SCHEDULE_RING},
                                                   {"all-gather", LASP_SCHEDULE_ALL_GATHER},
                                                   {"all-scan", LASP_SCHEDULE_ALL_SCAN},
                                                   {"doubling", LASP_SCHEDULE_DOUBLING},
                                                   {"head-scatter", LASP_SCHEDULE_HEAD_SCATTER},
                                                   {"relay", LASP_SCHEDULE_RELAY}};
  return names;
}

template <typename T>
Store integer(T Options::*field, long long low, long long high) {
  return [=](Options &options, const std::string &text) -> std::string {
    char *end = nullptr;
    errno = 0;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || errno != 0 || value < low || value > high)
      return "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    options.*field = static_cast<T>(value);
    return "";
  };
}

Store real(double Options::*field, double low, double high) {
  return [=](Options &options, const std::string &text) -> std::string {
    char *end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(value >= low && value <= high)) {
      char range[80];
      std::snprintf(range, sizeof range, "a number from %g to %g", low, high);
      return range;
    }
    options.*field = value;
    return "";
  };
}

Store text(std::string Options::*field) {
  return [=](Options &options, const std::string &value) -> std::string {
    options.*field = value;
    return value.empty() ? "a name that is not empty" : "";
  };
}

template <typename T>
Store choice(T Options::*field, std::map<std::string, T> values) {
  return [=](Options &options, const std::string &name) -> std::string {
    const auto found = values.find(name);
    if (found != values.end()) {
      options.*field = found->second;
      return "";
    }
    std::string expected = "one of";
    for (const auto &entry : values) expected += " " + entry.first;
    return expected;
  };
}

Store mode(Mode value) {
  return [=](Options &options, const std::string &) -> std::string {
    options.mode = value;
    return "";
  };
}

const std::vector<Option> &table() {
  using O = Options;
  static const std::vector<Option> options = {
      {"--compare", nullptr, "train with one rank and then with --sp ranks; table, loss.svg", mode(Mode::compare)},
      {"--compare-devices", nullptr, "train with --device cpu and then cuda; table, loss.svg",
       mode(Mode::compare_devices)},
      {"--check-gradients", nullptr, "check every gradient against finite differences",
       mode(Mode::check_gradients)},
      {"--check-exchange", nullptr, "check that the curves agree, and would not without the exchange",
       mode(Mode::check_exchange)},
      {"--check-decoding", nullptr, "check that prefill and step agree with the parallel form",
       mode(Mode::check_decoding)},
      {"--check-device", nullptr, "check each function of the GPU against the CPU's", mode(Mode::check_device)},
      {"--sp", "W", "ranks that share one sequence (4)", integer(&O::sequence_ranks, 1, 1024)},
      {"--dp", "D", "data-parallel groups of W ranks (1)", integer(&O::data_groups, 1, 1024)},
      {"--group-stride", "S", "distance in world ranks of a sequence group's neighbours (1)",
       integer(&O::group_stride, 1, 1 << 20)},
      {"--transport", "NAME", "threads or mpi (threads)",
       choice<Transport>(&O::transport, {{"threads", Transport::threads}, {"mpi", Transport::mpi}})},
      {"--schedule", "NAME", "auto, ring, all-gather, all-scan, doubling, head-scatter or relay (auto)",
       choice<int>(&O::schedule, schedules())},
      {"--cache", "NAME", "state cache: incoming or chunks (chunks)",
       choice<int>(&O::cache, {{"incoming", LASP_CACHE_INCOMING}, {"chunks", LASP_CACHE_CHUNKS}})},
      {"--drop-exchange", nullptr, "an experiment: every rank begins from a zero state",
       [](Options &o, const std::string &) { return o.drop_exchange = true, std::string(); }},
      {"--threads", "N", "CPU threads of all ranks here together (the CPUs)", integer(&O::threads, 1, 4096)},
      {"--device", "NAME", "cpu or cuda (cpu)",
       choice<int>(&O::device, {{"cpu", LASP_DEVICE_CPU}, {"cuda", LASP_DEVICE_CUDA}})},
      {"--dtype", "NAME", "of activations: float32 or bfloat16 (bfloat16 to train on GPUs, else float32)",
       choice<int>(&O::dtype, {{"float32", LASP_FLOAT32}, {"bfloat16", LASP_BFLOAT16}})},
      {"--nccl", "FILE", "NCCL's library, for --transport mpi --device cuda (libnccl.so.2)", text(&O::nccl)},
      {"--cublas", "FILE", "cuBLAS's library, for --device cuda (libcublas.so.13 or .12)", text(&O::cublas)},
      {"--layers", "N", "blocks (2)", integer(&O::layers, 1, 1024)},
      {"--d-model", "N", "width (64)", integer(&O::d_model, 8, 1 << 16)},
      {"--heads", "N", "attention heads (4)", integer(&O::heads, 1, 1 << 12)},
      {"--d-ff", "N", "width of the gated MLP (128)", integer(&O::d_ff, 1, 1 << 18)},
      {"--seq-len", "T", "tokens of one sequence, over all its ranks (32768)", integer(&O::seq_len, 1, 1LL << 40)},
      {"--steps", "N", "optimiser steps (100)", integer(&O::steps, 1, 1 << 30)},
      {"--log-every", "N", "steps between looks at a GPU (10)", integer(&O::log_every, 1, 1 << 20)},
      {"--lr", "X", "peak learning rate (0.003)", real(&O::learning_rate, 0.0, 100.0)},
      {"--warmup", "N", "steps of linear warm-up (20)", integer(&O::warmup, 0, 1 << 30)},
      {"--weight-decay", "X", "of the matrices (0.01)", real(&O::weight_decay, 0.0, 100.0)},
      {"--clip", "X", "largest gradient norm (1)", real(&O::clip, 1e-30, 1e30)},
      {"--seed", "N", "of the weights, the windows and the sample (1)", integer(&O::seed, 0, 0x7fffffffffffffffLL)},
      {"--text", "FILE", "training text (the licences in /usr/share/common-licenses)", text(&O::text)},
      {"--sample", "N", "bytes of text to generate at the end (200)", integer(&O::sample_bytes, 0, 1 << 24)},
      {"--prompt", "N", "bytes of text read before generating (512)", integer(&O::prompt_bytes, 1, 1 << 24)},
      {"--temperature", "X", "of the sample (0.6)", real(&O::temperature, 1e-3, 1e3)},
      {"--out", "DIR", "write loss.svg, loss.csv and run.json there", text(&O::out)},
      {"--json", "FILE", "write the results there", text(&O::json)},
  };
  return options;
}

// On a GPU rows are read by four elements, and a norm's row lies in the registers of one block.
std::string contradiction_on_gpu(const Options &o) {
  constexpr int kWidest = 16384;
  if (o.d_ff % 8 != 0) return "--d-ff " + std::to_string(o.d_ff) + ": --device cuda takes multiples of 8.";
  if (o.d_model > kWidest)
    return "--d-model " + std::to_string(o.d_model) + ": --device cuda takes at most " + std::to_string(kWidest) +
           ".";
  return "";
}

std::string contradiction(const Options &o) {
  const bool cuda = o.device == LASP_DEVICE_CUDA;
  if (o.dtype == LASP_BFLOAT16 && (!cuda || o.mode != Mode::train))
    return "--dtype bfloat16 is for training with --device cuda; checks and comparisons are of float32.";
  const std::string d_model = std::to_string(o.d_model), heads = std::to_string(o.heads);
  if (o.d_model % o.heads != 0) return "--d-model " + d_model + " is not a multiple of --heads " + heads + ".";
  if ((o.d_model / o.heads) % 8 != 0 || o.d_model / o.heads > 512)
    return "--d-model " + d_model + " over --heads " + heads + " gives head dimension " +
           std::to_string(o.d_model / o.heads) + "; it must be a multiple of 8, at most 512.";
  lasp_groups groups = LASP_GROUPS_INIT;
  const int world = o.sequence_ranks * o.data_groups;
  if (lasp_groups_of_rank(world, o.sequence_ranks, o.group_stride, 0, &groups) != LASP_OK)
    return "--group-stride " + std::to_string(o.group_stride) + " does not fit " + std::to_string(world) +
           " ranks: " + lasp_last_error();
  return cuda || o.mode == Mode::compare_devices ? contradiction_on_gpu(o) : "";
}

}  // namespace

const char *schedule_name(int schedule) {
  for (const auto &entry : schedules())
    if (entry.second == schedule) return entry.first.c_str();
  return "unknown";
}

int dtype_of(const Options &o) {
  if (o.dtype >= 0) return o.dtype;
  return o.device == LASP_DEVICE_CUDA && o.mode == Mode::train ? LASP_BFLOAT16 : LASP_FLOAT32;
}

ParsedOptions parse_options(int argc, const char *const *argv) {
  ParsedOptions parsed;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i], value;
    if (name == "--help" || name == "-h") {
      parsed.help = true;
      return parsed;
    }
    const std::size_t equals = name.find('=');
    const bool joined = equals != std::string::npos;
    if (joined) value = name.substr(equals + 1), name.resize(equals);
    const Option *option = nullptr;
    for (const Option &candidate : table())
      if (name == candidate.name) option = &candidate;
    if (option == nullptr) {
      parsed.error = "There is no option " + name + "; --help lists them.";
    } else if (option->value == nullptr && joined) {
      parsed.error = name + " takes no value.";
    } else if (option->value != nullptr && !joined && i + 1 == argc) {
      parsed.error = name + " needs a value: " + option->value + ".";
    } else {
      if (option->value != nullptr && !joined) value = argv[++i];
      const std::string expected = option->store(parsed.options, value);
      if (!expected.empty()) parsed.error = name + " \"" + value + "\": expected " + expected + ".";
    }
    if (!parsed.error.empty()) return parsed;
  }
  parsed.error = contradiction(parsed.options);
  return parsed;
}

std::string usage() {
  std::string text =
      "train_lm: trains a small language model whose sequence is split over ranks by liblasp.\n\n"
      "  train_lm [options]\n"
      "  mpirun -n 4 train_lm --transport mpi [options]\n\n";
  for (const Option &option : table()) {
    std::string left = std::string("  ") + option.name + (option.value ? std::string(" ") + option.value : "");
    left.resize(left.size() < 24 ? 24 : left.size() + 1, ' ');
    text += left + option.help + "\n";
  }
  return text +
         "  --help                this text\n\n"
         "With --device cuda everything but the text is on GPUs. Threads share the GPUs there are, and sum "
         "gradients in\n"
         "the host's memory; with mpirun each process has a GPU of its own, and states and gradients travel by "
         "NCCL.\n";
}

}  // namespace train_lm
