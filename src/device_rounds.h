// A schedule's steps as a device runs them: rounds of one group of messages each, followed by the compositions that
// use what arrived. Pure, like schedule.h.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule.h"

namespace lasp {

// Steps [begin, end) of the list: first all its sends and receives as one group, then its compositions in order.
struct Round {
  size_t begin = 0, end = 0;
};

// As few rounds as the order of the list allows. No message of a round touches what a composition of the same round
// reads or writes but to bring it, and no send of it hands on what arrives in it.
std::vector<Round> make_rounds(const StepList &list);

}  // namespace lasp
