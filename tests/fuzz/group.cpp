#include "group.h"

#include <algorithm>
#include <utility>

namespace lasp_fuzz {

lasp_transport Group::table(int32_t rank) const {
  lasp_transport t = LASP_TRANSPORT_INIT;
  t.name = "fuzz";
  t.rank = rank;
  t.nranks = nranks();
  t.send = [](void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream,
              void **request) {
    End &end = *static_cast<End *>(user);
    if (const lasp_status status = end.group->answer(end, 0)) return status;
    const auto *first = static_cast<const unsigned char *>(data);
    end.group->letters_.push_back({end.rank, peer, tag, {first, first + bytes}});
    *request = &end.requests.emplace_back(Request{nullptr, bytes, peer, tag, false, true});
    return lasp_status{LASP_OK};
  };
  t.receive = [](void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream, void **request) {
    End &end = *static_cast<End *>(user);
    if (const lasp_status status = end.group->answer(end, 1)) return status;
    *request = &end.requests.emplace_back(Request{data, bytes, peer, tag, true, true});
    return lasp_status{LASP_OK};
  };
  t.test = [](void *user, void *request, int32_t *done) {
    End &end = *static_cast<End *>(user);
    const Request &r = *static_cast<Request *>(request);
    if (const lasp_status status = end.group->answer(end, 2)) return status;
    *done = !r.receives || end.group->letter_for(end, r) != end.group->letters_.end();
    return lasp_status{LASP_OK};
  };
  t.wait = [](void *user, void *request, int64_t, int32_t *lost_rank) {
    End &end = *static_cast<End *>(user);
    return end.group->wait(end, *static_cast<Request *>(request), lost_rank);
  };
  t.cancel = [](void *, void *request) {
    Request &r = *static_cast<Request *>(request);
    if (!r.open) broken("a request that is ended twice");
    r.open = false;
  };
  return t;
}

Group::Group(Options options) : options_(std::move(options)), ends_(static_cast<size_t>(options_.nranks)) {
  for (int32_t rank = 0; rank < nranks(); ++rank) {
    End &e = end(rank);
    e.group = this, e.rank = rank;
    const lasp_transport transport = table(rank);
    lasp_context_options settings = LASP_CONTEXT_OPTIONS_INIT;
    settings.cpu_threads = 1;
    settings.verify_messages = options_.verify_messages;
    if (lasp_comm_create_custom(&transport, &e, &e.comm) ||
        lasp_context_create(LASP_ABI, e.comm, &settings, &e.context))
      broken("no context over a group");
  }
}

Group::~Group() {
  for (End &e : ends_)
    if (lasp_context_destroy(e.context) || lasp_comm_destroy(e.comm)) broken("a group that cannot be destroyed");
}

lasp_status Group::answer(const End &end, int32_t function) const {
  return options_.hooks.answer ? options_.hooks.answer(end.rank, function) : lasp_status{LASP_OK};
}

std::vector<Group::Letter>::iterator Group::letter_for(const End &end, const Request &request) {
  return std::find_if(letters_.begin(), letters_.end(), [&](const Letter &letter) {
    return letter.from == request.peer && letter.to == end.rank && letter.tag == request.tag;
  });
}

lasp_status Group::wait(End &end, Request &request, int32_t *lost_rank) {
  if (!request.open) broken("a wait for a request that has ended");
  const lasp_status status = answer(end, 3);
  if (status != LASP_OK) {
    if (status == LASP_ERROR_PEER_LOST) *lost_rank = request.peer;
    return status;
  }
  if (request.receives) {
    if (letter_for(end, request) == letters_.end()) run(request.peer);
    const auto letter = letter_for(end, request);
    if (letter == letters_.end()) {
      *lost_rank = request.peer;
      return LASP_ERROR_PEER_LOST;
    }
    std::vector<unsigned char> bytes = std::move(letter->bytes);
    letters_.erase(letter);
    if (options_.sums_up && bytes.size() != request.bytes) broken("a message of another size than is received");
    bytes.resize(request.bytes);  // a transport promises that sizes match
    if (options_.hooks.deliver) options_.hooks.deliver(request.peer, end.rank, bytes.data(), bytes.size());
    if (!bytes.empty()) std::memcpy(request.data, bytes.data(), bytes.size());
  }
  request.open = false;
  return LASP_OK;
}

void Group::run(int32_t rank) {
  End &e = end(rank);
  if (e.running || e.done) return;
  e.running = true;
  statuses_[static_cast<size_t>(rank)] = checked((*call_)(rank));
  e.running = false, e.done = true;
  for (const Request &request : e.requests)
    if (request.open) broken("a call that left a request open");
  e.requests.clear();
}

const std::vector<lasp_status> &Group::all(const Call &call, int32_t first) {
  call_ = &call;
  statuses_.assign(static_cast<size_t>(nranks()), LASP_OK);
  for (End &e : ends_) e.done = false;
  for (int32_t i = 0; i < nranks(); ++i) run((first + i) % nranks());
  call_ = nullptr;
  if (options_.sums_up && !letters_.empty()) broken("a message that no rank received");
  letters_.clear();
  return statuses_;
}

}  // namespace lasp_fuzz
