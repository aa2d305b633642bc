// One direction's exchange on a device: the rounds of its schedule, enqueued on the exchange stream.
#pragma once

#include <vector>

#include "cuda/backend/cuda_backend.h"
#include "cuda/device/device.h"
#include "exchange/exchange.h"
#include "exchange/rounds.h"

namespace lasp {

class DeviceExchange {
 public:
  DeviceExchange(CudaDevice &device, CudaBackend &backend, const ExchangePlan &plan);

  const ExchangePlan &plan() const { return plan_; }
  // Whom this rank waits for first; else whom it sends to first.
  int32_t first_peer() const;
  // The messages of the whole exchange, with their sizes but without their memory.
  const std::vector<Transfer> &messages() const { return messages_; }

  // The transitions that no message brings. `log_decay` as in Exchange::start. Ahead of the rank's own map, so that
  // the first message is the first that the exchange stream has to do once the map is there: what else the pass
  // launches then would take all multiprocessors before it.
  void fill_known_transitions(const Slots &slots, const float *log_decay);
  // `slots` holds this rank's map, in the exchange stream's order.
  void enqueue(const Slots &slots, int32_t operation);

 private:
  void compose(const Slots &slots, const Chain &chain);

  CudaDevice &device_;
  CudaBackend &backend_;
  const ExchangePlan &plan_;
  std::vector<Round> rounds_;
  std::vector<std::vector<Chain>> chains_;  // by round
  std::vector<Transfer> messages_, group_;
  std::vector<AffineMapView> later_;
};

}  // namespace lasp
