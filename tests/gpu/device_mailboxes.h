// A caller's transport between device memories, by the public table alone: what is sent goes through a mailbox on
// the host. Slow, since each message waits for its stream, but ordered on it as the contract asks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "support/device.h"
#include "support/mailboxes.h"

namespace lasp_test {

class DeviceMailboxes {
 public:
  explicit DeviceMailboxes(int32_t nranks) : boxes_(nranks) {
    for (int32_t rank = 0; rank < nranks; ++rank) ends_.push_back({this, boxes_.table(rank), boxes_.user(rank)});
  }

  // Instead of a rank's wait for a message: what it answers, after whatever it does to the stream. LASP_OK: the
  // wait itself.
  std::function<lasp_status(int32_t rank, lasp_stream stream)> fault = [](int32_t, lasp_stream) {
    return lasp_status{LASP_OK};
  };

  lasp_status make_comm(int32_t rank, lasp_comm **comm) {
    lasp_transport t = boxes_.table(rank);
    t.name = "device mailbox";
    t.memory = LASP_DEVICE_CUDA;
    t.send = send;
    t.receive = receive;
    t.test = test;
    t.wait = wait;
    t.cancel = cancel;
    t.abort = [](void *user, int32_t lost) { end_of(user).host.abort(end_of(user).host_user, lost); };
    return lasp_comm_create_custom(&t, &ends_[static_cast<size_t>(rank)], comm);
  }

 private:
  struct End {
    DeviceMailboxes *all;
    lasp_transport host;
    void *host_user;
  };
  struct Receive {
    void *to;
    std::vector<char> bytes;
    lasp_stream stream;
    void *request;
  };
  static End &end_of(void *user) { return *static_cast<End *>(user); }

  static lasp_status send(void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag,
                          lasp_stream stream, void **request) {
    std::vector<char> copy(bytes);
    gpu::copy(copy.data(), data, bytes, stream);
    gpu::wait(stream);
    return end_of(user).host.send(end_of(user).host_user, copy.data(), bytes, peer, tag, nullptr, request);
  }
  static lasp_status receive(void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream stream,
                             void **request) {
    auto *r = new Receive{data, std::vector<char>(bytes), stream, nullptr};
    *request = r;
    return end_of(user).host.receive(end_of(user).host_user, r->bytes.data(), bytes, peer, tag, nullptr,
                                     &r->request);
  }
  static lasp_status test(void *user, void *request, int32_t *done) {
    *done = 1;
    auto *r = static_cast<Receive *>(request);
    return r == nullptr ? LASP_OK : end_of(user).host.test(end_of(user).host_user, r->request, done);
  }
  static lasp_status wait(void *user, void *request, int64_t time_limit_ms, int32_t *lost_rank) {
    const End &end = end_of(user);
    auto *r = static_cast<Receive *>(request);
    if (r == nullptr) return LASP_OK;
    if (const lasp_status failed = end.all->fault(end.host.rank, r->stream)) return failed;
    if (const lasp_status failed = end.host.wait(end.host_user, r->request, time_limit_ms, lost_rank))
      return failed;
    gpu::copy(r->to, r->bytes.data(), r->bytes.size(), r->stream);
    gpu::wait(r->stream);
    delete r;
    return LASP_OK;
  }
  static void cancel(void *user, void *request) {
    auto *r = static_cast<Receive *>(request);
    if (r == nullptr) return;
    end_of(user).host.cancel(end_of(user).host_user, r->request);
    delete r;
  }

  Mailboxes boxes_;
  std::vector<End> ends_;
};

}  // namespace lasp_test
