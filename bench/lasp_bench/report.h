// What is printed, and written as JSON, about measured configurations.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "common/json.h"
#include "config.h"
#include "measure.h"
#include "options.h"
#include "table.h"

namespace bench {

struct RunInfo {
  std::vector<std::string> arguments;
  std::string transport, commit;
  int cpus = 1;
};

// One row per configuration and pass. Columns that all configurations share are said once, above the table.
class TextReport {
 public:
  TextReport(FILE *out, const std::vector<Config> &configs);
  void begin(const RunInfo &run);
  void add(const Result &result);
  // Speed-ups of a sweep over threads against its first entry.
  void add_speed_ups(const std::vector<Result> &results) const;

 private:
  struct ConfigColumn {
    Column column;
    std::string (*cell)(const Config &);
  };
  static std::vector<ConfigColumn> config_columns();
  Table make_table() const;
  std::vector<std::string> measured_cells(const Result &result, const PassResult &pass) const;

  FILE *out_;
  const std::vector<Column> &measured_;
  std::vector<ConfigColumn> shown_;
  std::string common_;
};

// Sentences for what is wrong with a result; empty when nothing is.
std::vector<std::string> complaints(const Result &result);

// Where --json says: a file, or the standard output for "-".
void save_json(const std::string &file, const tools::JsonWriter &json);
void write_run(tools::JsonWriter &json, const RunInfo &run);
// The picture of --svg, and its file.
std::string draw_shapes(const std::vector<Result> &results);
void save_svg(const std::string &file, const std::vector<Result> &results);
void write_result(tools::JsonWriter &json, const Result &result);

}  // namespace bench
