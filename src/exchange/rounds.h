// A schedule's steps as a device runs them: rounds of one group of messages each, followed by copies and the
// compositions that use what arrived. Pure, like schedule.h.
#pragma once

#include <cstddef>
#include <vector>

#include "exchange/schedule.h"

namespace lasp {

// Steps [begin, end) of the list, those of one ExchangeStep::round: first all its sends and receives as one group,
// then its copies, then its compositions in order.
struct Round {
  size_t begin = 0, end = 0;
};

std::vector<Round> make_rounds(const StepList &list);

// Compositions, as indices into the list, of which each composes a further map onto what the one before has made,
// and nobody else wants that: they can be done at once, and only the last one's slot is written.
using Chain = std::vector<size_t>;

// All compositions of a round in order, in chains of at most `most`.
std::vector<Chain> make_chains(const StepList &list, const Round &round, size_t most);

}  // namespace lasp
