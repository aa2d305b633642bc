// How a group over MPI breaks: control messages, the search for the lost rank, and abort.
#include "comm/mpi/backoff.h"
#include "comm/mpi/endpoint.h"
#include "comm/mpi/mpi_call.h"

namespace lasp::mpi {

// Carries out an abort asked for by another thread, and answers everything that has come.
void Endpoint::serve_control() {
  const int32_t wanted = abort_wanted_.exchange(kNoAbort);
  if (wanted != kNoAbort) break_group(wanted < 0 ? LASP_ERROR_ABORTED : LASP_ERROR_PEER_LOST, wanted);
  ControlMessage message;
  int32_t source = kNobody;
  while (control_.receive(&message, &source)) {
    if (message.kind != ControlMessage::kQuery) awaited_tags_[static_cast<size_t>(source)] = message.tag;
    switch (message.kind) {
      case ControlMessage::kQuery:
        control_.send(source, {ControlMessage::kReply, message.detail, awaited_, awaited_tag_});
        break;
      case ControlMessage::kReply:
        if (message.detail == query_) {
          replied_ = true;
          reply_ = message.rank;
        }
        break;
      case ControlMessage::kBroken:
        if (broken_ == LASP_OK) {
          broken_ = message.detail;
          lost_rank_ = message.rank;
          lost_itself_ = message.rank == source;
          if (message.rank >= 0 && message.rank != source)
            awaited_tags_[static_cast<size_t>(message.rank)] = message.lost_tag;
        }
        break;
    }
  }
}

// Breaks the group, once, and tells everybody.
void Endpoint::break_group(lasp_status status, int32_t lost_rank) {
  if (broken_ != LASP_OK) return;
  broken_ = status;
  lost_rank_ = lost_rank < 0 ? kNobody : lost_rank;
  const int32_t lost_tag = lost_rank < 0 ? -1 : awaited_tags_[static_cast<size_t>(lost_rank)];
  for (int32_t step = 1; step < nranks_; ++step) {
    control_.send((rank_ + step) % nranks_, {ControlMessage::kBroken, status, lost_rank_, awaited_tag_, lost_tag});
  }
}

// The peer did not come in time, but may itself be held up by another, and so on. Returns with the group broken,
// unless the message comes after all. Ranks that wait in a circle have nobody to blame but the direct peer.
void Endpoint::find_lost_rank(Request *request, Clock::duration grace) {
  int32_t suspect = request->peer;
  int32_t lost = request->peer;
  for (int32_t hop = 0; hop < nranks_ && suspect != rank_; ++hop) {
    int32_t awaited = kNobody;
    const bool answered = ask(suspect, request, grace, &awaited);
    if (broken_ != LASP_OK || request->complete) return;
    if (!answered || awaited == kNobody) {
      lost = suspect;
      break;
    }
    suspect = awaited;
  }
  break_group(LASP_ERROR_PEER_LOST, lost);
}

// Asks a rank whom it waits for. False when it did not answer within the grace, or when there is no need any more.
bool Endpoint::ask(int32_t suspect, Request *request, Clock::duration grace, int32_t *awaited) {
  replied_ = false;
  control_.send(suspect, {ControlMessage::kQuery, ++query_});
  const auto deadline = Clock::now() + grace;
  Backoff backoff;
  while (!replied_ && Clock::now() < deadline) {
    serve_control();
    if (broken_ != LASP_OK || progress(request)) return false;
    backoff.pause();
  }
  *awaited = reply_;
  return replied_;
}

// Any thread may abort, but MPI may forbid that it talks to MPI. It leaves a note, which the thread that uses this
// end finds at its next look; only where it is that thread itself, outside any call, it tells the others at once.
void Endpoint::abort(int32_t lost_rank) {
  int32_t none = kNoAbort;
  abort_wanted_.compare_exchange_strong(none, lost_rank < 0 ? kNobody : lost_rank);
  if (last_thread_.load(std::memory_order_relaxed) != std::this_thread::get_id()) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && mpi_is_usable()) serve_control();
}

lasp_status Endpoint::fail() noexcept {
  try {
    Lock lock(mutex_);
    stop_waiting();
    break_group(LASP_ERROR_TRANSPORT, kNobody);
  } catch (...) {  // nobody could be told; they find out by their time limits
  }
  return LASP_ERROR_TRANSPORT;
}

}  // namespace lasp::mpi
