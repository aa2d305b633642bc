// One rank's whole run of a halo through the public API, held to the formula byte for byte: every result is defined
// to the last bit, and whatever lies between and around the elements stays as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <lasp/lasp.h>

namespace lasp_test {

struct HaloCase {
  std::vector<int64_t> tokens;      // of each rank
  bool zigzag = false;              // LASP_OWN_ZIGZAG: then all have the same, an even number
  bool each = false;                // LASP_OWN_ZIGZAG_EACH; likewise
  std::vector<int64_t> cu_seqlens;  // empty: not packed
  int64_t batch = 1, rows = 3, channels = 5;
  int32_t dtype = LASP_FLOAT32, d_dtype = LASP_FLOAT32;
  int64_t gap = 0;           // elements between the rows of x and of d_x
  bool token_major = false;  // x and d_x are [T, B, C] in memory
  bool one_row = false;      // x has token stride 0
};
std::ostream &operator<<(std::ostream &out, const HaloCase &c);

// A case for so many ranks, the same on each of them: few tokens and many, none, several ranks within n, packed or
// not, in a zigzag or not.
HaloCase drawn_halo(uint32_t seed, int32_t nranks);

struct HaloRunOptions {
  int32_t device_index = 0;
  bool own_stream = false;
  bool late_inputs = false;   // the stream is still busy when the calls are made, and they return at once
  bool may_wait = false;      // with late_inputs: calls may return late after all, since ranks meet on the host
  int32_t graph_replays = 0;  // both calls captured and launched so often
  bool verify_messages = false;
  std::function<void()> meet = [] {};  // as in RunOptions
};

// "" or what was wrong, a line each. The comm is left as it is.
std::string run_halo(const HaloCase &c, lasp_comm *comm, const HaloRunOptions &options = {});
// The same on a group of threads.
std::string run_halo_on_threads(const HaloCase &c, const HaloRunOptions &options = {});

}  // namespace lasp_test
