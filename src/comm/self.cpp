// The transport of a group of one: there is nobody to talk to, so every function refuses.
#include "comm/transport.h"

namespace lasp {
namespace {

lasp_status refuse_send(void *, const void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
  return LASP_ERROR_TRANSPORT;
}

lasp_status refuse_receive(void *, void *, uint64_t, int32_t, int32_t, lasp_stream, void **) {
  return LASP_ERROR_TRANSPORT;
}

lasp_status refuse_test(void *, void *, int32_t *) { return LASP_ERROR_TRANSPORT; }

lasp_status refuse_wait(void *, void *, int64_t, int32_t *) { return LASP_ERROR_TRANSPORT; }

void ignore_cancel(void *, void *) {}

}  // namespace

TransportEnd make_self_transport() {
  lasp_transport table = LASP_TRANSPORT_INIT;
  table.name = "self";
  table.rank = 0;
  table.nranks = 1;
  table.local_ranks = 1;
  table.send = refuse_send;
  table.receive = refuse_receive;
  table.test = refuse_test;
  table.wait = refuse_wait;
  table.cancel = ignore_cancel;
  return {table, nullptr};
}

}  // namespace lasp
