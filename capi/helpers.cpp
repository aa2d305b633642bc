// The pure helpers for trainers: groups of hybrid data-sequence parallelism, and the cost model.
#include <lasp/lasp.h>

#include <cmath>

#include "core/schedules.h"
#include "exchange/cost_model.h"
#include "guarded.h"
#include "structs.h"

using namespace lasp;

namespace {

void check_grid(int32_t world_size, int32_t sequence_ranks, int32_t stride) {
  if (world_size < 1) throw fail(LASP_ERROR_INVALID_ARGUMENT, "world_size = %d: must be at least 1", world_size);
  if (sequence_ranks < 1 || world_size % sequence_ranks != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "sequence_ranks = %d: must divide world_size = %d", sequence_ranks,
               world_size);
  if (stride < 1 || (world_size / sequence_ranks) % stride != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "stride = %d: must divide world_size / sequence_ranks = %d", stride,
               world_size / sequence_ranks);
}

}  // namespace

// A world rank is (block, sequence rank, place in stride), the last changing fastest.
lasp_status lasp_groups_of_rank(int32_t world_size, int32_t sequence_ranks, int32_t stride, int32_t world_rank,
                                lasp_groups *groups) {
  return guarded([&] {
    check_grid(world_size, sequence_ranks, stride);
    if (world_rank < 0 || world_rank >= world_size)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "world_rank = %d: must be 0 to %d", world_rank, world_size - 1);
    const int32_t place = world_rank % stride, block = world_rank / stride / sequence_ranks;
    lasp_groups g = LASP_GROUPS_INIT;
    g.sequence_rank = world_rank / stride % sequence_ranks;
    g.sequence_ranks = sequence_ranks;
    g.sequence_group = block * stride + place;
    g.data_rank = g.sequence_group;
    g.data_ranks = world_size / sequence_ranks;
    g.data_group = g.sequence_rank;
    write_struct(groups, g, "groups");
  });
}

lasp_status lasp_groups_world_rank(int32_t world_size, int32_t sequence_ranks, int32_t stride,
                                   int32_t sequence_group, int32_t sequence_rank, int32_t *world_rank) {
  return guarded([&] {
    check_grid(world_size, sequence_ranks, stride);
    const int32_t groups = world_size / sequence_ranks;
    if (sequence_group < 0 || sequence_group >= groups)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "sequence_group = %d: must be 0 to %d", sequence_group, groups - 1);
    if (sequence_rank < 0 || sequence_rank >= sequence_ranks)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "sequence_rank = %d: must be 0 to %d", sequence_rank,
                 sequence_ranks - 1);
    require_pointer(world_rank, "world_rank") =
        (sequence_group / stride * sequence_ranks + sequence_rank) * stride + sequence_group % stride;
  });
}

lasp_status lasp_predict_exchange(int32_t schedule, int32_t nranks, uint64_t payload_bytes, int32_t pieces,
                                  double latency_us, double bandwidth_gbs, double *predicted_us) {
  return guarded([&] {
    if (schedule != LASP_SCHEDULE_AUTO && find_schedule(schedule) == nullptr)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "schedule = %d: must be one of LASP_SCHEDULE_*", schedule);
    if (nranks < 1) throw fail(LASP_ERROR_INVALID_ARGUMENT, "nranks = %d: must be at least 1", nranks);
    if (pieces < 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "pieces = %d: must not be negative", pieces);
    if (!(latency_us > 0) || !std::isfinite(latency_us))
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "latency_us = %g: must be positive and finite", latency_us);
    if (!(bandwidth_gbs > 0) || !std::isfinite(bandwidth_gbs))
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "bandwidth_gbs = %g: must be positive and finite", bandwidth_gbs);
    const Link link{latency_us, bandwidth_gbs};
    const auto payload = static_cast<double>(payload_bytes);
    const int32_t n = pieces > 0 ? pieces : best_pieces(nranks, payload, 256, link);
    require_pointer(predicted_us, "predicted_us") = predict_exchange_us(schedule, nranks, payload, n, link);
  });
}
