// How many entries the tables of a packing have (kernels/packed_tables.h), counted on the host from offsets that it
// knows. Pure, like runs.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/packing.h"
#include "core/token_partition.h"
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

// Of the rank that holds these tokens; `packing` in host memory. Where each sequence is cut by itself, of so many
// ranks and at most `rows` sequences; else 0.
struct EachSplit {
  int32_t ranks = 0;
  int64_t rows = 0;
};
PackedSizes count_packing(const Packing &packing, std::span<const gpu::PackedRange> ranges,
                          std::span<const gpu::CutTokens> cuts, const EachSplit &each = {});

// A rank's runs of tokens, as the tables take them.
std::vector<gpu::PackedRange> packed_ranges(const TokenRanges &ranges, int32_t rank);

}  // namespace lasp
