// The model behind the automatic schedule: messages by latency and bandwidth, what a round costs beside them, and
// the compositions of maps. docs/reference/schedules.md has the formulas; lasp_predict_exchange() those of messages
// alone.
#pragma once

#include <cstdint>

namespace lasp {

// How fast messages go, and what a device needs for the rest of an exchange. Of the rest 0 is: no time.
struct Link {
  double latency_us = 0;
  double bandwidth_gbs = 0;
  double round_us = 0;               // of a round in which a rank sends and receives at once
  double fold_us = 0, fold_gbs = 0;  // one map composed onto another: a launch, and bytes of the map in a second
  double dense_us = 0, dense_tflops = 0;  // the same where the transition is dense: launches, and a product
  bool operator==(const Link &) const = default;
};

// Bytes of a rank's message: the serial schedules send states alone, the others whole maps.
struct Payload {
  double state = 0, map = 0;
  int64_t heads = 0;       // of all rows, among which ranks can share the maps; 0: enough for all ranks
  int64_t dense_rows = 0;  // K of a dense transition; 0: transitions are not dense
  Payload(double bytes) : state(bytes), map(bytes) {}
  Payload(double state_bytes, double map_bytes) : state(state_bytes), map(map_bytes) {}
};

double predict_exchange_us(int32_t schedule, int32_t nranks, const Payload &payload, int32_t pieces,
                           const Link &link);
// Number of all-scan pieces with the smallest predicted time, at most `most`.
int32_t best_pieces(int32_t nranks, const Payload &payload, int32_t most, const Link &link);
// Among which schedules. `serial`: those that apply the ranks' maps one after the other, ring and all-scan.
struct Among {
  bool serial = false, head_scatter = true;
};
int32_t best_schedule(int32_t nranks, const Payload &payload, int32_t pieces, const Link &link,
                      const Among &among = {});

}  // namespace lasp
