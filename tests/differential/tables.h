// What a run measured: the worst errors by dtype, decay kind and tensor, as text or as docs/history/numerics.md
// has them.
#pragma once

#include <array>
#include <map>
#include <ostream>
#include <string>
#include <tuple>

#include "differential/bounds.h"

namespace lasp_test {

const char *name_of(int column);

class Tables {
 public:
  enum Kind {
    kOracle,   // relative Frobenius error against the oracle, of tensors of many elements
    kLikely,   // the same as a part of what is likely
    kCertain,  // the largest error of an element, as a part of what is certain for it
    kRanks,    // relative Frobenius difference between W ranks and one, without a segment
    kKinds
  };
  void note(Kind kind, const Case &c, int column, double value);
  void note_likely(double part_of_bound, uint64_t index);
  void note_small() { ++small_; }
  void note_segment() { ++segments_; }
  // `markdown`: the tables of docs/history/numerics.md.
  void print(std::ostream &out, bool markdown) const;

 private:
  using Row = std::tuple<int32_t, int32_t>;  // dtype of the tensor, decay kind
  using Table = std::map<Row, std::array<double, kColumns>>;
  static void print(std::ostream &out, const Table &table, Kind kind, bool markdown);

  std::array<Table, kKinds> tables_;
  int64_t small_ = 0, segments_ = 0;
  double likely_ = 0.0;
  uint64_t likely_index_ = 0;
};

}  // namespace lasp_test
