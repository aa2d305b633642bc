#include "table.h"

#include <algorithm>
#include <cstdarg>

namespace bench {

Table::Table(FILE *out, std::vector<Column> columns) : out_(out), columns_(std::move(columns)) {
  for (Column &column : columns_) column.width = std::max(column.width, static_cast<int>(column.title.size()));
}

void Table::header() const {
  std::vector<std::string> titles, lines;
  for (const Column &column : columns_) {
    titles.push_back(column.title);
    lines.emplace_back(static_cast<size_t>(column.width), '-');
  }
  row(titles);
  row(lines);
}

void Table::row(const std::vector<std::string> &cells) const {
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i)
    line += format(i == 0 ? "%*s" : "  %*s", columns_[i].width, cells[i].c_str());
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

std::string format(const char *form, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, form);
  std::vsnprintf(text, sizeof text, form, arguments);
  va_end(arguments);
  return text;
}

std::string human_seconds(double seconds) {
  if (seconds >= 1) return format("%.3f s", seconds);
  if (seconds >= 1e-3) return format("%.3f ms", seconds * 1e3);
  return format("%.1f us", seconds * 1e6);
}

}  // namespace bench
