#include "report.h"

#include <algorithm>
#include <cmath>

#include "common/environment.h"

namespace bench {
namespace {

std::string heads_cell(const Config &c) {
  const Shape &s = c.shape;
  if (s.heads_q == s.heads_k && s.heads_k == s.heads_v) return std::to_string(s.heads_q);
  return format("%d/%d/%d", s.heads_q, s.heads_k, s.heads_v);
}

std::string rate_cell(double per_second) {
  return per_second >= 1e6 ? format("%.2fM", per_second * 1e-6) : format("%.1fk", per_second * 1e-3);
}

std::string count_cell(uint64_t bytes) { return tools::human_bytes(static_cast<double>(bytes)); }

std::string error_cell(const Result &result) {
  if (!result.checked()) return "-";
  return format("%.1e%s", result.largest_error(), result.correct() ? "" : " WRONG");
}

std::string schedule_cell(const Result &result) {
  const std::string chosen = name_of(kSchedules, result.info.schedule);
  if (result.config.ranks == 1) return "-";
  return result.config.schedule == LASP_SCHEDULE_AUTO ? "auto: " + chosen : chosen;
}

const std::vector<Column> kMeasured = {{"schedule", 16}, {"C", 3},         {"pass", 8},   {"median ms", 9},
                                       {"p99 ms", 8},    {"min ms", 8},    {"spread", 6}, {"tokens/s", 8},
                                       {"GFLOP/s", 7},   {"% sgemm", 7},   {"sent", 8},   {"msgs", 4},
                                       {"wait", 5},      {"workspace", 9}, {"cache", 8},  {"error", 8}};

const std::vector<Column> kMeasuredOnGpu = {{"schedule", 16}, {"C", 3},         {"pass", 8},   {"median ms", 9},
                                            {"p99 ms", 8},    {"min ms", 8},    {"spread", 6}, {"tokens/s", 8},
                                            {"GB/s", 7},      {"% floor", 7},   {"units", 6},  {"sent", 8},
                                            {"msgs", 4},      {"workspace", 9}, {"cache", 8},  {"error", 8}};

}  // namespace

std::vector<TextReport::ConfigColumn> TextReport::config_columns() {
  return {
      {{"shape", 41}, [](const Config &c) { return c.name; }},
      {{"dtype", 8}, [](const Config &c) { return name_of(kDTypes, c.shape.dtype); }},
      {{"mask", 13}, [](const Config &c) { return name_of(kMasks, c.shape.mask); }},
      {{"write", 8}, [](const Config &c) { return name_of(kWrites, c.shape.write); }},
      {{"batch", 5}, [](const Config &c) { return std::to_string(c.shape.batch); }},
      {{"tokens", 7}, [](const Config &c) { return std::to_string(c.shape.tokens); }},
      {{"heads", 5}, heads_cell},
      {{"K", 3}, [](const Config &c) { return std::to_string(c.shape.head_dim_k); }},
      {{"V", 3}, [](const Config &c) { return std::to_string(c.shape.head_dim_v); }},
      {{"decay", 7}, [](const Config &c) { return name_of(kDecays, c.shape.decay); }},
      {{"ranks", 5}, [](const Config &c) { return std::to_string(c.ranks); }},
      {{"threads", 7}, [](const Config &c) { return std::to_string(c.threads); }},
      {{"device", 6}, [](const Config &c) { return name_of(kDevices, c.device) + (c.graph ? ", graphs" : ""); }},
      {{"keeps", 8}, [](const Config &c) { return name_of(kCaches, c.cache); }},
      {{"segment", 7}, [](const Config &c) { return std::to_string(c.segment); }},
  };
}

TextReport::TextReport(FILE *out, const std::vector<Config> &configs)
    : out_(out), measured_(configs.front().on_cuda() ? kMeasuredOnGpu : kMeasured) {
  for (const ConfigColumn &column : config_columns()) {
    const std::string first = column.cell(configs.front());
    const bool varies = std::any_of(configs.begin(), configs.end(),
                                    [&](const Config &config) { return column.cell(config) != first; });
    if (varies)
      shown_.push_back(column);
    else if (!first.empty())
      common_ += (common_.empty() ? "" : ", ") + column.column.title + " " + first;
  }
}

Table TextReport::make_table() const {
  std::vector<Column> columns;
  for (const ConfigColumn &column : shown_) columns.push_back(column.column);
  columns.insert(columns.end(), measured_.begin(), measured_.end());
  return Table(out_, columns);
}

void TextReport::begin(const RunInfo &run) {
  lasp_build_info build = LASP_BUILD_INFO_INIT;
  lasp_get_build_info(&build);
  std::fprintf(out_, "liblasp %s (%s, %s); %s\n", build.version, build.compiler, build.flags, build.blas);
  std::fprintf(out_, "%s, %d CPU(s) for this process; ranks by %s; %s%s%s\n", tools::cpu_name().c_str(), run.cpus,
               run.transport.c_str(), tools::utc_now().c_str(), run.commit.empty() ? "" : "; commit ",
               run.commit.c_str());
  std::fprintf(out_, "in all rows: %s\n\n", common_.c_str());
  make_table().header();
}

std::vector<std::string> TextReport::measured_cells(const Result &result, const PassResult &pass) const {
  const Statistics &s = pass.statistics;
  const double sgemm = result.sgemm();
  std::vector<std::string> cells = {schedule_cell(result), std::to_string(result.info.chunk), name_of(pass.timed)};
  const bool tell = result.correct() && result.traffic_agrees();
  const double tokens = static_cast<double>(result.config.shape.batch * result.config.shape.tokens);
  const bool on_gpu = result.config.on_cuda();
  const std::vector<std::string> speed = {format("%.3f", s.median * 1e3),
                                          format("%.3f", s.p99 * 1e3),
                                          format("%.3f", s.minimum * 1e3),
                                          format("%.1f%%", s.spread * 100),
                                          rate_cell(tokens / s.median),
                                          on_gpu ? format("%.0f", pass.gbs()) : format("%.2f", pass.gflops()),
                                          on_gpu      ? format("%.1f%%", result.share_of_floor(pass) * 100)
                                          : sgemm > 0 ? format("%.1f%%", pass.gflops() / sgemm * 100)
                                                      : "-"};
  for (const std::string &cell : speed) cells.push_back(tell ? cell : "-");
  if (on_gpu) cells.push_back(format("%.2f", pass.floor_units));
  cells.push_back(count_cell(pass.traffic.most_bytes()));
  cells.push_back(std::to_string(pass.traffic.most_messages()));
  if (!on_gpu) cells.push_back(tell ? format("%.1f%%", pass.traffic.mean_wait_share() * 100) : "-");
  cells.push_back(count_cell(result.workspace_bytes(pass.timed)));
  cells.push_back(count_cell(result.state_cache_bytes));
  cells.push_back(error_cell(result));
  return cells;
}

void TextReport::add(const Result &result) {
  const Table table = make_table();
  std::vector<std::string> config;
  for (const ConfigColumn &column : shown_) config.push_back(column.cell(result.config));
  for (const PassResult &pass : result.passes) {
    std::vector<std::string> cells = config;
    for (std::string &cell : measured_cells(result, pass)) cells.push_back(std::move(cell));
    table.row(cells);
  }
  if (result.gpu.empty()) return;
  const std::string where =
      format("%s, copy %.0f GB/s; %s", result.gpu.c_str(), result.copy(), result.kernels.c_str());
  std::fprintf(out_, "    %s\n", where.c_str());
}

void TextReport::add_speed_ups(const std::vector<Result> &results) const {
  for (const Result &result : results) {
    Config first = result.config;
    first.threads = results.front().config.threads;
    const auto base = std::find_if(results.begin(), results.end(), [&](const Result &other) {
      Config c = other.config;
      return c.shape == first.shape && c.ranks == first.ranks && c.threads == first.threads &&
             c.schedule == first.schedule && c.cache == first.cache && c.chunk == first.chunk &&
             c.segment == first.segment;
    });
    if (base == results.end() || &*base == &result || !base->refused.empty() || !result.refused.empty()) continue;
    std::fprintf(out_, "%d threads against %d, decay %s, %d rank(s):", result.config.threads, base->config.threads,
                 name_of(kDecays, result.config.shape.decay).c_str(), result.config.ranks);
    for (size_t i = 0; i < result.passes.size(); ++i)
      std::fprintf(out_, " %s %.2fx", name_of(result.passes[i].timed),
                   base->passes[i].statistics.median / result.passes[i].statistics.median);
    std::fprintf(out_, "\n");
  }
}

std::vector<std::string> complaints(const Result &result) {
  std::vector<std::string> all;
  const Config &c = result.config;
  const std::string where =
      format("%s%sdecay %s, %d rank(s), schedule %s, dtype %s: ", c.name.c_str(), c.name.empty() ? "" : ", ",
             name_of(kDecays, c.shape.decay).c_str(), c.ranks, name_of(kSchedules, c.schedule).c_str(),
             name_of(kDTypes, c.shape.dtype).c_str());
  if (!result.refused.empty()) {
    all.push_back(where + result.refused);
    return all;
  }
  for (size_t i = 0; i < result.errors.size(); ++i)
    if (result.errors[i] > result.tolerance)
      all.push_back(where + format("%s is wrong: relative error %.2e, tolerance %.2e", kOutputNames[i],
                                   result.errors[i], result.tolerance));
  for (const PassResult &pass : result.passes)
    for (size_t rank = 0; rank < pass.traffic.bytes.size(); ++rank) {
      const Traffic &t = pass.traffic;
      if (t.bytes[rank] != t.formula_bytes[rank] || t.messages[rank] != t.formula_messages[rank])
        all.push_back(where +
                      format("rank %zu sent %llu bytes in %llu message(s) a %s pass, the plan says %llu in %llu",
                             rank, static_cast<unsigned long long>(t.bytes[rank]),
                             static_cast<unsigned long long>(t.messages[rank]), name_of(pass.timed),
                             static_cast<unsigned long long>(t.formula_bytes[rank]),
                             static_cast<unsigned long long>(t.formula_messages[rank])));
    }
  return all;
}

}  // namespace bench
