// What a trace's file says of records that a CPU does not make: a device's times, its messages, names from outside.
// And what becomes of records when there are more than fit.
#include "engine/trace_file.h"

#include <gtest/gtest.h>

#include <string>

namespace lasp {
namespace {

std::string file_of(const Trace &trace, const TraceOrigin &origin) {
  std::FILE *const file = std::tmpfile();
  EXPECT_TRUE(write_trace(file, trace, origin));
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

// The lines that have this word.
std::string lines_with(const std::string &text, const std::string &word) {
  std::string found;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    if (text.substr(begin, end - begin).find(word) != std::string::npos)
      found += text.substr(begin, end - begin) + "\n";
  }
  return found;
}
void expect_in(const std::string &text, const std::string &word) {
  EXPECT_NE(text.find(word), std::string::npos) << word << " is not in\n" << text;
}

TraceRecord device_record(const char *name, int64_t begin_us, int64_t end_us, int32_t lane) {
  return {
      .kind = Traced::kDevice, .begin_ns = 1000 * begin_us, .end_ns = 1000 * end_us, .name = name, .lane = lane};
}

TEST(TraceFile, DeviceTimesAreReadByTheHostsClock) {
  Trace trace(16);
  trace.add(device_record("pass", 2000, 3000, 1));
  TraceOrigin origin{0, 1, "self", "GPU", {}};
  origin.times.base_ns = 1'000'000, origin.times.scale = 1.5;  // the device's clock is slow
  const std::string pass = lines_with(file_of(trace, origin), "\"pass\"");
  expect_in(pass, "\"ts\":2500.000,\"dur\":1500.000");
  expect_in(pass, "\"tid\":11");
  EXPECT_EQ(
      lines_with(file_of(trace, origin), "thread_name"),
      lines_with(file_of(trace, origin), "\"calls\"") + lines_with(file_of(trace, origin), "device: stream 1"));
}

// Two events passed at once, and were rounded one by one.
TEST(TraceFile, SpansOfADeviceNest) {
  Trace trace(16);
  TraceRecord outer = device_record("outer", 10, 20, 1), inner = device_record("inner", 15, 20, 1);
  inner.end_ns += 400;
  trace.add(inner);
  trace.add(outer);
  trace.add(device_record("other", 20, 30, 1));
  trace.add(device_record("elsewhere", 15, 40, 0));
  const std::string text = file_of(trace, {0, 1, "self", "GPU", {}});
  expect_in(lines_with(text, "\"inner\""), "\"ts\":15.000,\"dur\":5.000");
  expect_in(lines_with(text, "\"other\""), "\"ts\":20.000,\"dur\":10.000");
  expect_in(lines_with(text, "\"elsewhere\""), "\"ts\":15.000,\"dur\":25.000");
  EXPECT_LT(text.find("\"outer\""), text.find("\"inner\""));
}

TEST(TraceFile, MessagesOfAGroupHaveTheDevicesTimes) {
  Trace trace(16);
  TraceRecord group = device_record("messages", 100, 160, 0);
  group.kind = Traced::kMessages, group.group = 7;
  trace.add(group);
  TraceRecord message{
      .kind = Traced::kSend, .begin_ns = 5000, .end_ns = 5000, .bytes = 64, .operation = 3, .tag = 9};
  message.peer = 2, message.group = 7;
  trace.add(message);
  message.kind = Traced::kReceive, message.peer = 0, message.bytes = 32;
  trace.add(message);
  message.group = 8;  // whose times are not known: its host's are what there is
  trace.add(message);
  const std::string text = file_of(trace, {1, 3, "NCCL", "GPU", {}});
  expect_in(lines_with(text, "\"messages\",\"name\""),
            "\"to\":[2],\"from\":[0],\"bytes_sent\":64,\"bytes_received\":32");
  const std::string begins = lines_with(text, "\"ph\":\"b\"");
  expect_in(begins, "\"ts\":100.000,\"cat\":\"send\",\"name\":\"to rank 2\"");
  expect_in(begins, "\"ts\":100.000,\"cat\":\"receive\",\"name\":\"from rank 0\"");
  expect_in(begins, "\"tid\":1,\"ts\":5.000,\"cat\":\"receive\"");
  expect_in(begins, "\"tag\":9,\"number\":1}");
  expect_in(lines_with(text, "\"ph\":\"f\""), "\"tid\":10,\"ts\":160.000");
}

TEST(TraceFile, NamesFromOutsideStayText) {
  Trace trace(1);
  const std::string text = file_of(trace, {0, 1, "my \"own\"\\\n", std::string("\xff\x01", 2), {}});
  expect_in(text, "\"transport\":\"my \\\"own\\\"\\\\?\"");
  expect_in(text, "\"device\":\"??\"");
}

TEST(Trace, TheOldestGiveWay) {
  Trace trace(3);
  for (int i = 1; i <= 5; ++i) {
    TraceRecord record{.kind = Traced::kSend, .begin_ns = i, .end_ns = i, .operation = static_cast<uint32_t>(i)};
    trace.add(record);
  }
  EXPECT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace.dropped(), 2u);
  EXPECT_EQ(trace[0].begin_ns, 3);
  EXPECT_EQ(trace[2].begin_ns, 5);
  // Of operation 3 some may be gone.
  expect_in(file_of(trace, {0, 2, "threads", "CPU", {}}), "\"dropped\":2,\"whole_from_operation\":4");
}

}  // namespace
}  // namespace lasp
