#include "overlap.h"

#include <algorithm>
#include <array>

namespace lasp {
namespace {

// Beyond this many bytes a caller's numbers are no memory, and sums of them could overflow.
constexpr int64_t kMostBytes = int64_t{1} << 60;
// Steps of the search. Strides of one problem nest, and need a few dozen.
constexpr int kMostSteps = 2000;

// How far a run of one tensor can lie from a run of the other: any multiple of the stride from -before to after.
struct Distances {
  int64_t stride = 0, before = 0, after = 0;
};

// A tensor as stretches without gaps, one at each sum of multiples of the strides.
class Stretches {
 public:
  explicit Stretches(const Extent &e) : bytes_(e.dim * e.element) {
    axes_ = {{{e.layout.head * e.element, e.heads},
              {e.layout.token * e.element, e.tokens},
              {e.layout.batch * e.element, e.batch}}};
    std::sort(axes_.begin(), axes_.end(), [](const Axis &a, const Axis &b) { return a.stride < b.stride; });
    bool gaps = false;
    for (Axis &axis : axes_) {
      if (axis.stride == 0) axis.count = 1;  // one element for all
      if (axis.count == 1) continue;
      gaps = gaps || axis.stride != bytes_;
      if (gaps) continue;
      bytes_ *= axis.count;
      axis.count = 1;
    }
  }

  int64_t bytes() const { return bytes_; }  // of one run
  template <class Visit>
  void for_each_axis(Visit visit) const {
    for (const Axis &axis : axes_)
      if (axis.count > 1) visit(axis.stride, axis.count - 1);
  }

 private:
  struct Axis {
    int64_t stride, count;
  };
  int64_t bytes_;
  std::array<Axis, 3> axes_;
};

// Whether some sum of distances lies strictly between `low` and `high`.
class Search {
 public:
  Search(const Stretches &a, const Stretches &b) {
    a.for_each_axis([&](int64_t stride, int64_t most) { at(stride).after += most; });
    b.for_each_axis([&](int64_t stride, int64_t most) { at(stride).before += most; });
  }

  bool finds(int64_t low, int64_t high) { return finds(count_, low, high); }

 private:
  // The place of a stride, kept in order.
  Distances &at(int64_t stride) {
    size_t i = 0;
    while (i < count_ && all_[i].stride < stride) ++i;
    if (i == count_ || all_[i].stride != stride) {
      for (size_t j = count_++; j > i; --j) all_[j] = all_[j - 1];
      all_[i] = {stride, 0, 0};
    }
    return all_[i];
  }

  // By the first `count` strides, the longest first: each multiple from which the shorter ones can still get there.
  // Once there is none left, one of them did; and where there were none at all, the two runs meet.
  bool finds(size_t count, int64_t low, int64_t high) {
    if (count == 0) return true;
    int64_t back = 0, forth = 0;
    for (size_t i = 0; i + 1 < count; ++i) {
      back += all_[i].before * all_[i].stride;
      forth += all_[i].after * all_[i].stride;
    }
    const Distances &d = all_[count - 1];
    const int64_t first = std::max(-d.before, floor_div(low - forth, d.stride) + 1);
    const int64_t last = std::min(d.after, floor_div(high + back - 1, d.stride));
    for (int64_t n = first; n <= last && steps_ < kMostSteps; ++n, ++steps_)
      if (finds(count - 1, low - n * d.stride, high - n * d.stride)) return true;
    return false;
  }
  static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

  std::array<Distances, 6> all_{};  // three axes of each
  size_t count_ = 0;
  int steps_ = 0;
};

}  // namespace

bool ranges_meet(const Place &a, const Place &b) {
  const int64_t x = a.extent.bytes(), y = b.extent.bytes();
  if (x == 0 || y == 0) return false;
  return a.address <= b.address ? b.address - a.address < static_cast<uint64_t>(x)
                                : a.address - b.address < static_cast<uint64_t>(y);
}

bool share_an_element(const Place &a, const Place &b) {
  if (!ranges_meet(a, b)) return false;
  if (a.address == b.address) return true;
  if (std::max(a.extent.bytes(), b.extent.bytes()) > kMostBytes) return false;
  const Stretches x(a.extent), y(b.extent);
  const auto distance = static_cast<int64_t>(b.address - a.address);
  return Search(x, y).finds(distance - x.bytes(), distance + y.bytes());
}

}  // namespace lasp
