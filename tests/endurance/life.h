// The life of one group in the soaks: a training, a split of its tokens, and how the group ends. The same for
// groups of threads (soak.cpp) and of MPI processes (soak_rank.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "training.h"

namespace endurance {

enum class End { kAgreed, kAborted, kLeft };

struct Life {
  Training training;
  int32_t ranks = 1;
  std::vector<int64_t> begin;  // [ranks + 1] each rank's first token
  End end = End::kAgreed;
  int32_t leaver = 0;  // goes before its last step
  int64_t abort_after_us = 0;
  int64_t time_limit_ms = 60'000;

  int64_t tokens(int32_t rank) const;
};

// Splits anywhere (at multiples of a segment if there is one), so that ranks without tokens occur. A third of the
// groups do not end by agreement.
Life draw_life(Random &random, int32_t ranks);

// A group of some of the processes of one mpirun, in some order: `members` are ranks of MPI_COMM_WORLD. It can only
// be the last group of its mpirun that does not end by agreement, because MPI never frees what a broken group held.
struct ProcessGroup {
  Life life;
  std::vector<int32_t> members;
};
ProcessGroup draw_process_group(Random &random, int32_t processes, bool first, bool last);

// How far a rank came, and what it was answered at the end of it.
struct RankEnd {
  Answer answer;
  size_t steps = 0;
  double seconds = 0;
};

// Rank `rank` from its context on; `steps` come with the inputs and leave with this rank's results.
void run_rank(const Life &life, int32_t rank, Worker &worker, std::vector<Step> &steps, RankEnd &result);

// Throws unless what the rank was answered is what this life's end makes of it, and came in time.
void check_end(const Life &life, int32_t rank, const RankEnd &end);

// What a soak has seen.
struct Counts {
  int64_t groups = 0, steps = 0, agreed = 0, aborted = 0, left = 0, exact = 0;

  // A group of this life ended, after `whole` steps that every rank of it has done.
  void add(const Life &life, size_t whole);
};

}  // namespace endurance
