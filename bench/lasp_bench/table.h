// Aligned text tables, row by row as they come; columns that are the same in all rows are said once, above.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace bench {

struct Column {
  std::string title;
  int width = 0;  // at least the title's
};

class Table {
 public:
  Table(FILE *out, std::vector<Column> columns);
  void header() const;
  void row(const std::vector<std::string> &cells) const;  // right-aligned; as many as columns

 private:
  FILE *out_;
  std::vector<Column> columns_;
};

[[gnu::format(printf, 1, 2)]] std::string format(const char *form, ...);
std::string human_seconds(double seconds);  // 12.3 ms

}  // namespace bench
