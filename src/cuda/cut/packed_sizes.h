// How many entries the tables of a packing have (kernels/packed_tables.h), counted on the host from offsets that it
// knows. Pure, like runs.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/packing.h"
#include "kernels/packed_tables.h"

namespace lasp {

struct CutSizes {
  int64_t segments = 0, state_runs = 0, runs = 0, beginnings = 0;
  int64_t followed[2] = {0, 0}, leading[2] = {0, 0}, consumers[2] = {0, 0}, independent[2] = {0, 0};
  bool single_runs = false;  // no segment has two runs
};

struct PackedSizes {
  std::array<CutSizes, gpu::kMostCuts> cuts;
  int64_t empty = 0;    // sequences of no tokens that are this rank's
  bool padded = false;  // tokens of this rank are in no sequence
};

// Of the rank that holds tokens [begin, begin + tokens); `packing` in host memory.
PackedSizes count_packing(const Packing &packing, int64_t begin, int64_t tokens, bool last_rank,
                          std::span<const gpu::CutTokens> cuts);

}  // namespace lasp
