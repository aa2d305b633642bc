#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "common/json.h"
#include "fit.h"
#include "modes.h"
#include "report.h"
#include "table.h"

namespace bench {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
// Of a GPU's memory for what torch's allocator does not give out: the context, NCCL, what lies between blocks.
constexpr double kReserveGiB = 4;
// What the rate was measured with; smaller segments and widths keep a large GPU less busy.
constexpr int64_t kMeasuredSegment = 16384, kMeasuredWidth = 2048;

struct Item {
  const char *key, *name;
  double FitMemory::*bytes;
};
constexpr std::array kItems = {Item{"parameters", "parameters, float32", &FitMemory::parameters},
                               Item{"gathered", "gathered parameters", &FitMemory::gathered},
                               Item{"gradients", "gradients, float32", &FitMemory::gradients},
                               Item{"buckets", "DDP's buckets", &FitMemory::buckets},
                               Item{"moments", "optimizer's moments", &FitMemory::moments},
                               Item{"copies", "weights in bfloat16", &FitMemory::copies},
                               Item{"activations", "activations of a segment", &FitMemory::activations},
                               Item{"state_cache", "its state cache", &FitMemory::state_cache},
                               Item{"cut_states", "states at the cuts", &FitMemory::cut_states},
                               Item{"token_ids", "token ids", &FitMemory::token_ids},
                               Item{"work", nullptr, &FitMemory::work}};

std::string name_of(Sharding sharding) { return bench::name_of(kShardings, static_cast<int32_t>(sharding)); }

std::string with_commas(double number) {
  std::string text = format("%.0f", number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}
std::string with_commas(int64_t number) { return with_commas(static_cast<double>(number)); }

FitSetting setting_of(const FitOptions &options) {
  FitSetting setting;
  setting.model = options.model;
  setting.gpus = options.gpus;
  setting.sharding = options.sharding;
  setting.memory_bytes = std::max(0.0, options.gpu_memory_gib - kReserveGiB) * kGiB;
  setting.flop_rate = options.tflops * 1e12;
  return setting;
}

std::string describe(const FitSetting &setting, const Cut &cut) {
  const int64_t segments = cut.segments(setting.gpus);
  const std::string ranks = setting.gpus > 1 ? std::to_string(setting.gpus) + " x " : "";
  return with_commas(cut.tokens) + " tokens, in " + with_commas(segments) +
         (segments == 1 ? " segment of " : " segments of ") + ranks + with_commas(cut.segment);
}

void print_setting(FILE *out, const FitSetting &setting, const FitOptions &options) {
  const FitModel &m = setting.model;
  const bool several = setting.gpus > 1;
  std::fprintf(out, "Model: %s parameters; d_model %lld, layers %lld, heads %lld, d_ff %lld, vocabulary %lld\n",
               with_commas(m.parameters()).c_str(), static_cast<long long>(m.d_model),
               static_cast<long long>(m.layers), static_cast<long long>(m.heads), static_cast<long long>(m.d_ff),
               static_cast<long long>(m.vocabulary));
  std::fprintf(out, "Machine: %s GPU%s of %g GiB, %g of them left free, %g TFLOP/s%s\n\n",
               with_commas(setting.gpus).c_str(), several ? "s" : "", options.gpu_memory_gib, kReserveGiB,
               options.tflops, several ? (", " + name_of(setting.sharding)).c_str() : "");
}

void print_cut(FILE *out, const char *title, const FitSetting &setting, const Cut &cut) {
  const double seconds = step_seconds(setting, cut), rate = static_cast<double>(cut.tokens) / seconds;
  std::fprintf(out, "%s: %s\n  a step takes %s: %s tokens/s", title, describe(setting, cut).c_str(),
               human_seconds(seconds).c_str(), with_commas(rate).c_str());
  if (setting.gpus > 1)
    std::fprintf(out, ", %s on each GPU", with_commas(rate / static_cast<double>(setting.gpus)).c_str());
  std::fprintf(out, "\n");
  if (cut.segment < kMeasuredSegment || setting.model.d_model < kMeasuredWidth)
    std::fprintf(out, "  (slower than that: the rate was measured with d_model %lld and segments of %s tokens)\n",
                 static_cast<long long>(kMeasuredWidth), with_commas(kMeasuredSegment).c_str());
}

void print_memory(FILE *out, const FitMemory &memory) {
  const auto row = [out](const char *name, double bytes) {
    std::fprintf(out, "  %-33s  %9.2f\n", name, bytes / kGiB);
  };
  std::fprintf(out, "\nMemory of a GPU at its peak, GiB\n");
  for (const Item &item : kItems)
    if (item.name != nullptr && memory.*item.bytes > 0) row(item.name, memory.*item.bytes);
  if (memory.work > 0)
    row(memory.at_loss ? "loss: a tile, the head's gradient" : "backward pass of a block", memory.work);
  row("total", memory.total());
}

void write_cut(tools::JsonWriter &json, const FitSetting &setting, const Cut &cut) {
  const double seconds = step_seconds(setting, cut);
  json.add("tokens", cut.tokens);
  json.add("segment", cut.segment);
  json.add("segments", cut.segments(setting.gpus));
  json.add("seconds", seconds);
  json.add("tokens_per_s", static_cast<double>(cut.tokens) / seconds);
}

void write_json(const Options &options, const FitSetting &setting, const Cut &cut, const FitMemory &memory,
                const std::optional<Cut> &most) {
  const FitModel &model = setting.model;
  tools::JsonWriter json;
  json.begin_object();
  json.add("tool", "lasp-bench --fit");
  json.add("format", int32_t{1});
  json.begin_object("model");
  json.add("d_model", model.d_model);
  json.add("layers", model.layers);
  json.add("heads", model.heads);
  json.add("d_ff", model.d_ff);
  json.add("vocabulary", model.vocabulary);
  json.add("parameters", static_cast<int64_t>(model.parameters()));
  json.end_object();
  json.add("gpus", setting.gpus);
  json.add("parallel", name_of(setting.sharding));
  json.add("tflops", options.fit.tflops);
  json.add("gpu_memory_GiB", options.fit.gpu_memory_gib);
  json.add("usable_GiB", setting.memory_bytes / kGiB);
  write_cut(json, setting, cut);
  json.add("fits", memory.total() <= setting.memory_bytes);
  json.begin_object("memory_GiB");
  for (const Item &item : kItems) json.add(item.key, memory.*item.bytes / kGiB);
  json.add("total", memory.total() / kGiB);
  json.end_object();
  if (most) {
    json.begin_object("longest");
    write_cut(json, setting, *most);
    json.end_object();
  }
  json.end_object();
  save_json(options.json, json);
}

// The cut that was asked for, else the longest. One that does not fit is told about all the same.
Cut choose(const FitSetting &setting, const FitOptions &options, const std::optional<Cut> &most) {
  if (options.tokens > 0 && options.segment > 0) {
    const int64_t share = (options.tokens + setting.gpus - 1) / setting.gpus;
    return {options.tokens, std::min(options.segment, share)};
  }
  if (options.tokens > 0) return best_cut(setting, options.tokens);
  if (most) return *most;
  const int64_t segment = options.segment > 0 ? options.segment : kLeastSegment;
  return {segment * setting.gpus, segment};
}

}  // namespace

int run_fit(const Options &options, FILE *out) {
  const FitOptions &fit = options.fit;
  const FitSetting setting = setting_of(fit);
  const std::optional<Cut> most = fit.segment > 0 ? longest(setting, fit.segment) : longest(setting);
  const Cut cut = choose(setting, fit, most);
  const FitMemory memory = step_memory(setting, cut);
  const bool fits = memory.total() <= setting.memory_bytes, asked = fit.tokens > 0 || !most;

  print_setting(out, setting, fit);
  if (asked) print_cut(out, fits ? "Fits" : "Does not fit", setting, cut);
  if (most) print_cut(out, "Longest", setting, *most);
  print_memory(out, memory);
  if (!options.json.empty()) write_json(options, setting, cut, memory, most);
  return fits ? 0 : 1;
}

}  // namespace bench
