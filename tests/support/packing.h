// A lasp_packing with the offsets that it points to: int64, or int32 where `narrow`.
#pragma once

#include <cstdint>
#include <vector>

#include <lasp/lasp.h>

namespace lasp_test {

class PackingOf {
 public:
  explicit PackingOf(const std::vector<int64_t> &offsets, bool narrow = false)
      : wide_(offsets), narrow_(offsets.begin(), offsets.end()) {
    if (offsets.empty()) return;
    packing_.num_sequences = static_cast<int64_t>(offsets.size()) - 1;
    packing_.dtype = narrow ? LASP_INT32 : LASP_INT64;
    packing_.cu_seqlens = narrow ? lasp_const_buffer{narrow_.data(), narrow_.size() * sizeof(int32_t)}
                                 : lasp_const_buffer{wide_.data(), wide_.size() * sizeof(int64_t)};
  }
  PackingOf(const PackingOf &) = delete;
  PackingOf &operator=(const PackingOf &) = delete;

  // Null where there are no offsets: a plan that is not packed.
  const lasp_packing *get() const { return wide_.empty() ? nullptr : &packing_; }

 private:
  std::vector<int64_t> wide_;
  std::vector<int32_t> narrow_;
  lasp_packing packing_ = LASP_PACKING_INIT;
};

}  // namespace lasp_test
