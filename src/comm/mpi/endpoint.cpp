// The data messages of an end over MPI. How the lost rank is found is in lost_rank.cpp.
#include "comm/mpi/endpoint.h"

#include <algorithm>
#include <cstring>

#include "comm/mpi/backoff.h"
#include "comm/mpi/mpi_call.h"

namespace lasp::mpi {
namespace {

// How long destroying an end waits for its last control messages to leave, where a peer may be dead.
constexpr auto kFlush = std::chrono::milliseconds(50);

// How long a rank has to answer, once another has waited this long in vain.
Clock::duration grace_of(Clock::duration waited) {
  using std::chrono::milliseconds;
  return std::clamp<Clock::duration>(waited / 4, milliseconds(50), milliseconds(500));
}

}  // namespace

Endpoint::Endpoint(std::shared_ptr<CommPair> pair)
    : pair_(std::move(pair)), last_thread_(std::this_thread::get_id()), control_(pair_->control, pool_) {
  check(MPI_Comm_rank(pair_->data, &rank_));
  check(MPI_Comm_size(pair_->data, &nranks_));
  int *most_tag = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most_tag, &found));
  most_tag_ = found ? *most_tag : 32767;  // what MPI promises at least
  awaited_tags_.assign(static_cast<size_t>(nranks_), -1);
}

Endpoint::~Endpoint() {
  if (!mpi_is_usable()) return;
  try {
    serve_control();
    for (Request &request : requests_) {
      if (request.in_use) abandon(&request);
    }
    Backoff backoff;
    const auto start = Clock::now();
    while (!control_.flushed() && Clock::now() - start < kFlush) backoff.pause();
    reap_orphans();
  } catch (...) {
    if (broken_ == LASP_OK) broken_ = LASP_ERROR_TRANSPORT;
  }
  control_.abandon(&orphans_);
  if (broken_ == LASP_OK && orphans_.empty()) pair_->retired = true;
  adopt_orphans(std::move(orphans_));
}

void Endpoint::enter() {
  last_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  if (!orphans_.empty()) reap_orphans();
}

bool Endpoint::accepts(int32_t peer, int32_t tag) const {
  return peer >= 0 && peer < nranks_ && tag >= 0 && tag <= most_tag_;
}

lasp_status Endpoint::send(const void *data, uint64_t bytes, int32_t peer, int32_t tag, void **handle) {
  Lock lock(mutex_);
  enter();
  if (!accepts(peer, tag)) return LASP_ERROR_TRANSPORT;
  Request *request = take_request(bytes, peer, tag);
  *handle = request;
  if (broken_) return LASP_OK;
  if (bytes != 0) std::memcpy(request->staging.memory, data, bytes);
  const ByteRun run(bytes);
  check(MPI_Isend(request->staging.memory, run.count(), run.type(), peer, tag, pair_->data, &request->mpi));
  request->started = true;
  return LASP_OK;
}

lasp_status Endpoint::receive(void *data, uint64_t bytes, int32_t peer, int32_t tag, void **handle) {
  Lock lock(mutex_);
  enter();
  if (!accepts(peer, tag)) return LASP_ERROR_TRANSPORT;
  Request *request = take_request(bytes, peer, tag);
  request->is_receive = true;
  request->target = data;
  *handle = request;
  if (broken_) return LASP_OK;
  const ByteRun run(bytes);
  check(MPI_Irecv(request->staging.memory, run.count(), run.type(), peer, tag, pair_->data, &request->mpi));
  request->started = true;
  return LASP_OK;
}

bool Endpoint::test(Request *request) {
  Lock lock(mutex_);
  enter();
  serve_control();
  return broken_ || progress(request);
}

lasp_status Endpoint::wait(Request *request, int64_t most_ms, bool last, bool *done, int32_t *lost_rank) {
  Lock lock(mutex_);
  enter();
  awaited_ = request->peer;
  awaited_tag_ = request->tag;
  const auto begin = Clock::now();
  if (request->waited_since == Clock::time_point()) request->waited_since = begin;
  // Twice, because a look that finds nothing may be what lets MPI take in what has come: a rank that comes late is
  // to learn that the group broke, even though its own message can still leave.
  serve_control();
  serve_control();
  const auto deadline = begin + std::chrono::milliseconds(most_ms);
  Backoff backoff;
  *done = true;
  while (!broken_ && !progress(request)) {
    if (most_ms < 0 || Clock::now() < deadline) {
      if (backoff.pause()) serve_control();
    } else if (last) {
      find_lost_rank(request, grace_of(Clock::now() - request->waited_since));
    } else {
      *done = false;
      return LASP_OK;  // this rank goes on waiting in the eyes of the others
    }
  }
  stop_waiting();
  if (broken_) {
    if (lost_rank) *lost_rank = lost_rank_;
    return broken_;
  }
  release(request);
  return LASP_OK;
}

void Endpoint::cancel(Request *request) {
  Lock lock(mutex_);
  if (mpi_is_usable()) enter();
  stop_waiting();
  abandon(request);
}

int32_t Endpoint::peer_state(int32_t rank, int32_t *tag) {
  Lock lock(mutex_);
  *tag = -1;
  if (rank < 0 || rank >= nranks_) return LASP_PEER_UNKNOWN;
  if (rank == lost_rank_ && lost_itself_) return LASP_PEER_FAILED;
  *tag = awaited_tags_[static_cast<size_t>(rank)];
  return *tag >= 0 ? LASP_PEER_WAITS : LASP_PEER_UNKNOWN;
}

Request *Endpoint::take_request(uint64_t bytes, int32_t peer, int32_t tag) {
  if (free_requests_.empty()) {
    free_requests_.reserve(requests_.size() + 1);  // so that giving back never allocates
    free_requests_.push_back(&requests_.emplace_back());
  }
  const Staging staging = broken_ ? Staging{} : pool_.take(bytes);
  Request *request = free_requests_.back();
  free_requests_.pop_back();
  *request = Request{};
  request->staging = staging;
  request->bytes = bytes;
  request->peer = peer;
  request->tag = tag;
  request->in_use = true;
  return request;
}

void Endpoint::release(Request *request) {
  pool_.give_back(request->staging);
  request->in_use = false;
  free_requests_.push_back(request);
}

// Frees a request in any state. MPI cannot take back a send, nor a receive that has begun: their staging memory
// then stays with MPI, and the caller's is not involved.
void Endpoint::abandon(Request *request) {
  if (request->started && !request->complete && mpi_is_usable()) {
    if (request->is_receive) MPI_Cancel(&request->mpi);
    int done = 0;
    if (MPI_Test(&request->mpi, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) {
      orphans_.push_back({request->mpi, request->staging});
      request->staging = {};
    }
  }
  release(request);
}

void Endpoint::reap_orphans() {
  std::erase_if(orphans_, [this](Orphan &orphan) {
    int done = 0;
    if (MPI_Test(&orphan.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return false;
    pool_.give_back(orphan.staging);
    return true;
  });
}

// True when the request is complete. A message of another size than was asked for breaks the group, on both sides.
bool Endpoint::progress(Request *request) {
  if (request->complete) return true;
  if (!request->started) return false;
  int done = 0;
  MPI_Status status;
  const int code = MPI_Test(&request->mpi, &done, &status);
  if (code != MPI_SUCCESS) {
    request->started = false;  // MPI has ended it
    break_group(LASP_ERROR_TRANSPORT, kNobody);
    return false;
  }
  if (!done) return false;
  request->complete = true;
  if (request->is_receive) deliver(request, status);
  return broken_ == LASP_OK;
}

void Endpoint::deliver(Request *request, const MPI_Status &status) {
  MPI_Count received = 0;
  check(MPI_Get_elements_x(&status, MPI_BYTE, &received));
  if (static_cast<uint64_t>(received) != request->bytes) {
    break_group(LASP_ERROR_TRANSPORT, kNobody);
  } else if (request->bytes != 0) {
    std::memcpy(request->target, request->staging.memory, request->bytes);
  }
}

}  // namespace lasp::mpi
