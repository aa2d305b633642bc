// The latency-bandwidth model behind the automatic schedule; the formulas stand in lasp.h at lasp_predict_exchange.
#pragma once

#include <cstdint>

namespace lasp {

struct Link {
  double latency_us = 0;
  double bandwidth_gbs = 0;
};

// Bytes of a rank's message: the serial schedules send states alone, the others whole maps.
struct Payload {
  double state = 0, map = 0;
  int64_t heads = 0;  // of all rows, among which ranks can share the maps; 0: enough for all ranks
  Payload(double bytes) : state(bytes), map(bytes) {}
  Payload(double state_bytes, double map_bytes) : state(state_bytes), map(map_bytes) {}
};

double predict_exchange_us(int32_t schedule, int32_t nranks, const Payload &payload, int32_t pieces,
                           const Link &link);
// Number of all-scan pieces with the smallest predicted time, at most `most`.
int32_t best_pieces(int32_t nranks, double payload_bytes, int32_t most, const Link &link);
// Among which schedules. `serial`: those that apply the ranks' maps one after the other, ring and all-scan.
struct Among {
  bool serial = false, head_scatter = true;
};
int32_t best_schedule(int32_t nranks, const Payload &payload, int32_t pieces, const Link &link,
                      const Among &among = {});

}  // namespace lasp
