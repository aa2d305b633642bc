// Formats the tables of a run.
#include "differential/tables.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>

#include "support/measure.h"

namespace lasp_test {
namespace {

constexpr const char *kDtypes[] = {"default", "float32", "bfloat16", "float16"};
constexpr const char *kDecays[] = {"none", "head", "scalar", "channel"};
constexpr const char *kSteps[] = {"o of step", "state of step"};
constexpr const char *kTitles[] = {
    "Worst relative error (Frobenius) against the float64 oracle, by the tensor's own dtype",
    "The same as a part of what is likely (1: the bound)",
    "Largest error of an element of a float32 tensor, as a part of what is certain for it (1: the bound)",
    "Worst relative difference (Frobenius) between W ranks and one, without a segment"};

std::string cell(double value, Tables::Kind kind) {
  char text[16] = "-";
  if (value >= 0.0)
    std::snprintf(text, sizeof text,
                  kind == Tables::kLikely    ? "%.2f"
                  : kind == Tables::kCertain ? "%.3f"
                                             : "%.1e",
                  value);
  return text;
}

}  // namespace

const char *name_of(int column) { return column < kTensors ? kTensorNames[column] : kSteps[column - kTensors]; }

void Tables::note(Kind kind, const Case &c, int column, double value) {
  std::array<double, kColumns> none;
  none.fill(-1.0);
  double &worst = tables_[kind].try_emplace({dtype_of(c, column), c.decay}, none).first->second.at(column);
  if (!(value <= worst)) worst = value;
}

void Tables::note_likely(double part_of_bound, uint64_t index) {
  if (part_of_bound > likely_) likely_ = part_of_bound, likely_index_ = index;
}

void Tables::print(std::ostream &out, const Table &table, Kind kind, bool markdown) {
  const int columns = kind == kRanks ? kTensors : kColumns;  // lasp_step knows one rank only
  const auto row = [&](const std::string &first, const std::string &second, const auto &text_of) {
    out << (markdown ? "| " : "  ") << std::left << std::setw(8) << first << (markdown ? " | " : "  ")
        << std::setw(7) << second;
    for (int column = 0; column < columns; ++column)
      out << (markdown ? " | " : "  ") << std::setw(markdown ? 7 : 15) << text_of(column);
    out << (markdown ? " |\n" : "\n");
  };
  row("dtype", "decay", name_of);
  if (markdown) row("---", "---", [](int) { return "---"; });
  for (const auto &[key, values] : table) {
    if (kind == kCertain && std::get<0>(key) != LASP_FLOAT32)
      continue;  // half a unit of the last place is all of it
    row(kDtypes[std::get<0>(key)], kDecays[std::get<1>(key)],
        [&](int column) { return cell(values.at(static_cast<size_t>(column)), kind); });
  }
}

void Tables::print(std::ostream &out, bool markdown) const {
  for (int kind = 0; kind < kKinds; ++kind) {
    out << "\n" << kTitles[kind] << "\n" << (markdown ? "\n" : "");
    print(out, tables_[kind], static_cast<Kind>(kind), markdown);
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", likely_);
  out << "\nOf what is likely for a tensor as a whole, the nearest came to " << text << ", in problem "
      << likely_index_ << "; " << small_ << " tensors were too small for that and held to what is certain alone.\n"
      << segments_ << " problems with a segment gave W ranks the bits of one.\n";
}

}  // namespace lasp_test
