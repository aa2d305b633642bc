// A block of one thread, as TableBuilder takes it: the tables of a packing made on the host.
#pragma once

#include <cstdint>

#include "packed_tables_build.h"

namespace lasp::gpu {

struct OneThread {
  LASP_BOTH int64_t thread() const { return 0; }
  LASP_BOTH int64_t threads() const { return 1; }
  LASP_BOTH int64_t block() const { return 0; }
  LASP_BOTH int64_t blocks() const { return 1; }
  LASP_BOTH int64_t warp() const { return 0; }
  LASP_BOTH int64_t warps() const { return 1; }
  LASP_BOTH int64_t lane() const { return 0; }
  LASP_BOTH int64_t lanes() const { return 1; }
  LASP_BOTH bool clears() const { return true; }
  LASP_BOTH void sync() const {}
  LASP_BOTH TableShared &shared() { return memory; }
  LASP_BOTH int64_t highest_before(int64_t) const { return INT64_MIN; }
  LASP_BOTH PackedTotals sum_before(const PackedTotals &mine) {
    memory.total = mine;
    return {};
  }

  TableShared memory;
};

}  // namespace lasp::gpu
