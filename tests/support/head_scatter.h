// The messages of the schedule head-scatter, by its definition: position g folds the maps of its share of heads.
#pragma once

#include <cstdint>

namespace lasp_test {

// Of heads of all rows, how many are an owner's.
inline int64_t share_of(int32_t owner, int32_t positions, int64_t heads) {
  return heads * (owner + 1) / positions - heads * owner / positions;
}

// Calls message(from, to, heads, transition) for each message; `transition`: it is M of these heads, else the
// state. `known`: transitions do not travel.
template <class Message>
void head_scatter_messages(int32_t positions, int64_t heads, bool known, const Message &message) {
  for (int32_t owner = 0; owner < positions; ++owner) {
    const int64_t share = share_of(owner, positions, heads);
    for (int32_t other = 0; share > 0 && other < positions; ++other) {
      if (other == owner) continue;
      if (other + 1 < positions) message(other, owner, share, false);
      if (other + 1 < positions && other > 0 && !known) message(other, owner, share, true);
      if (other > 0) message(owner, other, share, false);
    }
  }
}

}  // namespace lasp_test
