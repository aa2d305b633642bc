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
  // Whether any message comes in.
  bool waits() const { return !plan_.receives.empty(); }
  // The messages of the whole exchange, with their sizes but without their memory.
  const std::vector<Transfer> &messages() const { return messages_; }

  // `slots` holds this rank's map, in the exchange stream's order. `log_decay` as in Exchange::start. Transitions
  // that no message brings are worked out where they are used.
  void enqueue(const Slots &slots, int32_t operation, const float *log_decay);

 private:
  void find_known();
  void compose(const Slots &slots, const Chain &chain, const float *log_decay);

  CudaDevice &device_;
  CudaBackend &backend_;
  const ExchangePlan &plan_;
  // Whether the transport takes the ring as one launch: maps that act element by element, a run of each rank.
  bool is_ring() const {
    return device_.transport().by_peer_memory() && plan_.schedule == LASP_SCHEDULE_RING && plan_.owner.empty() &&
           plan_.map.kind != Transition::kDense;
  }
  void enqueue_ring(const Slots &slots, int32_t tag, const float *log_decay);
  std::vector<Round> rounds_;
  std::vector<std::vector<Chain>> chains_;  // by round
  std::vector<Transfer> messages_, group_;
  std::vector<AffineMapView> later_;
  std::vector<KnownTransition> known_;  // by step, of a composition its later map's; where AffineMap::is_known()
  std::vector<KnownMap> later_known_;
};

}  // namespace lasp
