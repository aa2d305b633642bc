// The line that an exchange leaves in the log: what went where, however many pieces it went in.
#include "exchange/exchange_log.h"

#include <gtest/gtest.h>

#include <string>

#include "unit/scripted_transport.h"

namespace lasp {
namespace {

struct LastLine {
  int lines = 0;
  std::string text;
  static void write(void *user, int32_t, const char *message) {
    auto &self = *static_cast<LastLine *>(user);
    ++self.lines;
    self.text = message;
  }
};

TEST(ExchangeLog, AddsUpThePiecesOfEachPeer) {
  ScriptedTransport transport;
  Comm comm(transport.table(true), &transport);
  comm.enter("lasp_forward");
  LastLine last;
  const Log log(LASP_LOG_DEBUG, LastLine::write, &last);
  ExchangeLog exchange(log, comm);
  for (const uint64_t bytes : {100, 20, 3}) exchange.add(true, 2, bytes);
  for (const int32_t peer : {0, 2}) exchange.add(false, peer, 1000);
  exchange.write("states");
  const std::string expected =
      "exchange 0 in lasp_forward, rank 1: states, 123 bytes sent to [2], 2000 received from [0, 2], took ";
  EXPECT_EQ(last.text.substr(0, expected.size()), expected);
}

TEST(ExchangeLog, SaysNothingUnlessItIsWanted) {
  ScriptedTransport transport;
  Comm comm(transport.table(true), &transport);
  LastLine last;
  const Log log(LASP_LOG_INFO, LastLine::write, &last);
  ExchangeLog exchange(log, comm);
  exchange.add(true, 2, 100);
  exchange.write("states");
  EXPECT_EQ(last.lines, 0);
}

}  // namespace
}  // namespace lasp
