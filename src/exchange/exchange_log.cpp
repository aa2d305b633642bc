#include "exchange/exchange_log.h"

#include <cstdio>

namespace lasp {

ExchangeLog::ExchangeLog(const Log &log, const Comm &comm) : log_(log), comm_(comm) {
  if (!wanted()) return;
  begin_ = Clock::now();
  waited_ = comm.traffic().wait_seconds;
}

void ExchangeLog::add(bool is_send, int32_t peer, uint64_t bytes) {
  if (!wanted()) return;
  Way &way = is_send ? sent_ : received_;
  way.bytes += bytes;
  if (peer == way.last_peer) return;  // another piece
  way.last_peer = peer;
  constexpr size_t kRoom = sizeof way.peers - 16;  // for the longest number and a mark
  if (way.length >= kRoom) return;
  const char *separator = way.length == 0 ? "" : ", ";
  way.length += static_cast<size_t>(
      std::snprintf(way.peers + way.length, sizeof way.peers - way.length, "%s%d", separator, peer));
  if (way.length >= kRoom) std::snprintf(way.peers + way.length, sizeof way.peers - way.length, ", ...");
}

void ExchangeLog::add(const ExchangePlan &plan) {
  if (!wanted()) return;
  for (const ExchangeStep &step : plan.list.steps)
    if (step.op == Op::kSend || step.op == Op::kReceive)
      add(step.op == Op::kSend, plan.peer_rank(step.peer), plan.message_bytes(step));
}

void ExchangeLog::write(const char *what, bool enqueued) const {
  if (!wanted()) return;
  const auto us = [](double seconds) { return static_cast<long long>(1e6 * seconds); };
  const long long total = us(std::chrono::duration<double>(Clock::now() - begin_).count());
  const long long waited = us(comm_.traffic().wait_seconds - waited_);
  log_.write(LASP_LOG_DEBUG,
             "exchange %u in %s, rank %d: %s, %llu bytes sent to [%s], %llu received from [%s], %s %lld us, waited "
             "%lld us",
             comm_.operations(), comm_.call(), comm_.rank(), what, static_cast<unsigned long long>(sent_.bytes),
             sent_.peers, static_cast<unsigned long long>(received_.bytes), received_.peers,
             enqueued ? "enqueued in" : "took", total, waited);
}

}  // namespace lasp
