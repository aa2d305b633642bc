// Writes the table, the verdict, CSV and JSON.
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <functional>
#include <stdexcept>

namespace train_lm {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char *pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string size_text(double bytes) {
  if (bytes >= 1048576.0) return format("%.1f MiB", bytes / 1048576.0);
  return bytes >= 1024.0 ? format("%.1f KiB", bytes / 1024.0) : format("%.0f B", bytes);
}

double most(const RunResult &run, double RankRecord::*field) {
  double value = 0.0;
  for (const RankRecord &rank : run.ranks) value = std::max(value, rank.*field);
  return value;
}

double total(const RunResult &run, double RankRecord::*field) {
  double value = 0.0;
  for (const RankRecord &rank : run.ranks) value += rank.*field;
  return value;
}

std::int64_t tokens_per_step(const Report &report) { return report.options->seq_len * report.options->data_groups; }

double total_seconds(const RunResult &run) {
  double seconds = 0.0;
  for (const StepRecord &step : run.steps) seconds += step.seconds;
  return seconds;
}

std::string quoted(const std::string &text) {
  std::string json = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      json += '\\', json += c;
    else if (byte < 0x20 || byte >= 0x7f)
      json += format("\\u%04x", byte);  // bytes, read as Latin-1
    else
      json += c;
  }
  return json + "\"";
}

// Bytes that a terminal might act on are shown as a dot.
std::string printable(const std::string &text) {
  std::string safe = text;
  for (char &c : safe)
    if (c != '\n' && (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f)) c = '.';
  return safe;
}

std::string run_json(const RunResult &run, std::int64_t tokens) {
  std::string json = format(
      "    {\"sequence_ranks\": %d, \"data_groups\": %d, \"device\": %s, \"transport\": \"%s\", \"schedule\": "
      "\"%s\", "
      "\"dtype\": \"%s\", \"chunk\": %d,\n"
      "     \"threads_per_rank\": %d, \"parameters\": %zu, \"tokens_per_second\": %.1f, \"final_loss\": %.9f,\n",
      run.split.sequence_ranks, run.split.data_groups, quoted(run.device).c_str(), run.transport.c_str(),
      run.schedule.c_str(), run.dtype.c_str(), run.chunk, run.threads_per_rank, run.parameters,
      run.tokens_per_second(tokens), run.steps.back().loss);
  json += "     \"prompt\": " + quoted(run.prompt) + ",\n     \"sample\": " + quoted(run.sample) +
          ",\n     \"ranks\": [";
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    const RankRecord &rank = run.ranks[i];
    json += format(
        "%s\n       {\"peak_bytes\": %.0f, \"workspace_bytes\": %.0f, \"state_cache_bytes\": %.0f, "
        "\"bytes_sent_per_step_and_layer\": %.1f, \"planned_bytes_per_step_and_layer\": %.0f, \"wait_seconds\": "
        "%.6f}",
        i ? "," : "", rank.peak_bytes, rank.workspace_bytes, rank.cache_bytes, rank.sent_bytes, rank.planned_bytes,
        rank.wait_seconds);
  }
  json += "],\n     \"steps\": [";
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    const StepRecord &step = run.steps[i];
    json += format("%s\n       {\"loss\": %.9f, \"rate\": %.6g, \"gradient_norm\": %.6g, \"seconds\": %.6f}",
                   i ? "," : "", step.loss, step.rate, step.norm, step.seconds);
  }
  return json + "]}";
}

bool on_gpu(const Report &report) {
  return std::any_of(report.runs.begin(), report.runs.end(),
                     [](const RunResult &run) { return run.device != "CPU"; });
}

}  // namespace

std::string label(const RunResult &run) {
  const Split &split = run.split;
  const std::string ranks = std::to_string(split.sequence_ranks) + (split.sequence_ranks == 1 ? " rank" : " ranks");
  const std::string name = split.data_groups == 1 ? ranks : std::to_string(split.data_groups) + " x " + ranks;
  return run.device == "CPU" ? name : name + " (GPU)";
}

void print_table(const Report &report) {
  const std::int64_t tokens = tokens_per_step(report);
  const auto row = [&](const char *name, const std::function<std::string(const RunResult &)> &value) {
    std::string line = format("  %-46s", name);
    for (const RunResult &run : report.runs) line += format("%20s", value(run).c_str());
    std::puts(line.c_str());
  };
  std::puts("");
  row("", label);
  if (on_gpu(report)) row("device", [](const RunResult &r) { return r.device; });
  row("activations", [](const RunResult &r) { return r.dtype; });
  row("threads per rank", [](const RunResult &r) { return std::to_string(r.threads_per_rank); });
  row("transport, schedule",
      [](const RunResult &r) { return r.transport == "none" ? "-" : r.transport + ", " + r.schedule; });
  row("tokens per second (median step)",
      [&](const RunResult &r) { return format("%.0f", r.tokens_per_second(tokens)); });
  row("peak memory of a rank", [](const RunResult &r) { return size_text(most(r, &RankRecord::peak_bytes)); });
  row("  of it liblasp's workspace and state caches", [](const RunResult &r) {
    return size_text(most(r, &RankRecord::workspace_bytes) + most(r, &RankRecord::cache_bytes));
  });
  row("sent per step and layer, all ranks: counted",
      [](const RunResult &r) { return size_text(total(r, &RankRecord::sent_bytes)); });
  row("  by the plan's formula",
      [](const RunResult &r) { return size_text(total(r, &RankRecord::planned_bytes)); });
  row("  sent per token", [&](const RunResult &r) {
    return format("%.3g B", total(r, &RankRecord::sent_bytes) / static_cast<double>(tokens));
  });
  row("time a rank waits for another, most", [](const RunResult &r) {
    return format("%.1f %%", 100.0 * most(r, &RankRecord::wait_seconds) / total_seconds(r));
  });
  row("first loss", [](const RunResult &r) { return format("%.4f", r.steps.front().loss); });
  row("final loss", [](const RunResult &r) { return format("%.4f", r.steps.back().loss); });
  if (report.runs.size() < 2) return;
  const CurveDifference &d = report.difference;
  std::printf("\n  largest difference of the loss curves  %.2e at step %d, where float32 allows %.2e: %s\n",
              d.largest, d.step + 1, d.bound, d.worst_ratio <= 1.0 ? "the curves coincide" : "THE CURVES DIFFER");
  std::printf("  nearest to its bound at any step       %.2g of it\n", d.worst_ratio);
}

void print_sample(const RunResult &run) {
  if (run.sample.empty()) return;
  const std::string end = run.prompt.size() > 60 ? run.prompt.substr(run.prompt.size() - 60) : run.prompt;
  std::printf(
      "\n  Text: a prompt of %zu bytes read by %s, then lasp_step byte by byte (the prompt ends before >>>):\n\n",
      run.prompt.size(), label(run).c_str());
  std::string text = printable(end) + " >>> " + printable(run.sample), line;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || text[i] == '\n' || line.size() >= 96) {
      if (!line.empty()) std::printf("    %s\n", line.c_str());
      line.clear();
    }
    if (i < text.size() && text[i] != '\n') line += text[i];
  }
}

std::vector<std::string> complaints(const Report &report) {
  std::vector<std::string> found;
  for (const RunResult &run : report.runs) {
    const double first = run.steps.front().loss, last = run.steps.back().loss;
    if (!std::isfinite(last)) found.push_back("With " + label(run) + " the loss is not a number.");
    if (total(run, &RankRecord::sent_bytes) != total(run, &RankRecord::planned_bytes))
      found.push_back("With " + label(run) + " the bytes counted are not those of the plan's formula.");
    // A rise is possible over a few steps of warm-up; a run of any length has to learn.
    if (run.steps.size() >= 20 && last > first - 1.0)
      found.push_back("With " + label(run) + format(" the loss fell from %.3f to %.3f only.", first, last));
  }
  if (!report.bound.empty() && !(report.difference.worst_ratio <= 1.0))
    found.push_back("The loss curves differ by more than float32 rounding explains.");
  return found;
}

std::string to_csv(const Report &report) {
  std::string csv = "step,rate,gradient_norm";
  for (const RunResult &run : report.runs) csv += ",loss (" + label(run) + ")";
  csv += report.bound.empty() ? "\n" : ",difference,bound\n";
  for (std::size_t i = 0; i < report.runs[0].steps.size(); ++i) {
    csv += format("%zu,%.6g,%.6g", i + 1, report.runs[0].steps[i].rate, report.runs[0].steps[i].norm);
    for (const RunResult &run : report.runs) csv += format(",%.9f", run.steps[i].loss);
    if (!report.bound.empty())
      csv += format(",%.3e,%.3e", std::fabs(report.runs[0].steps[i].loss - report.runs[1].steps[i].loss),
                    report.bound[i]);
    csv += "\n";
  }
  return csv;
}

std::string to_json(const Report &report) {
  const Options &o = *report.options;
  std::string json = "{\n  \"text\": " + quoted(report.text->description()) +
                     format(",\n  \"text_bytes\": %zu,\n", report.text->bytes());
  json += format(
      "  \"seq_len\": %lld, \"layers\": %d, \"d_model\": %d, \"heads\": %d, \"d_ff\": %d, \"seed\": %llu,\n"
      "  \"seconds\": %.3f,\n",
      static_cast<long long>(o.seq_len), o.layers, o.d_model, o.heads, o.d_ff,
      static_cast<unsigned long long>(o.seed), report.seconds);
  if (!report.bound.empty())
    json += format("  \"difference\": {\"largest\": %.6e, \"step\": %d, \"bound\": %.6e, \"worst_ratio\": %.6e},\n",
                   report.difference.largest, report.difference.step + 1, report.difference.bound,
                   report.difference.worst_ratio);
  json += "  \"runs\": [\n";
  for (std::size_t i = 0; i < report.runs.size(); ++i)
    json += (i ? ",\n" : "") + run_json(report.runs[i], tokens_per_step(report));
  return json + "\n  ]\n}\n";
}

void write_file(const std::string &path, const std::string &content) {
  std::ofstream stream(path, std::ios::binary);
  stream << content;
  stream.close();
  if (!stream) throw std::runtime_error("The file " + path + " cannot be written.");
}

}  // namespace train_lm
