#include "engine/trace_file.h"

#include <lasp/lasp.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace lasp {
namespace {

constexpr size_t kMostText = 1 << 16;
constexpr int32_t kCalls = 1, kFirstLane = 10;  // threads of the file

bool is_message(const TraceRecord &r) { return r.kind == Traced::kSend || r.kind == Traced::kReceive; }
bool is_of_device(const TraceRecord &r) { return r.kind == Traced::kDevice || r.kind == Traced::kMessages; }

// What a caller or a driver named may hold anything.
std::string json_string(const std::string &text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    out += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return out + "\"";
}

std::string microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}

// Processes whose clocks are one: those since the same start of the same machine.
std::string host_clock() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

class TraceFile {
 public:
  TraceFile(std::FILE *file, const Trace &trace, const TraceOrigin &origin);
  bool write();

 private:
  using Lane = std::vector<const TraceRecord *>;

  std::string thread(int32_t number) const {
    return "\"pid\":" + std::to_string(origin_.rank) + ",\"tid\":" + std::to_string(number);
  }
  void put(const std::string &event);
  void flush();
  void put_head(const std::set<int32_t> &lanes);
  void put_name(const char *what, int32_t number, const std::string &name);
  void put_lane(int32_t number, const Lane &lane);
  void put_span(int32_t number, const TraceRecord &record, int64_t end_ns);
  void put_message(const TraceRecord &record, uint32_t number);
  std::string peers_of(uint32_t group) const;

  std::FILE *file_;
  std::string text_;  // still to be written
  const TraceOrigin &origin_;
  std::vector<TraceRecord> records_;  // by their beginning
  uint64_t dropped_;
  uint32_t whole_from_ = 0;                                    // the first operation of which nothing was dropped
  std::unordered_map<uint32_t, const TraceRecord *> groups_;   // kMessages
  std::unordered_map<uint32_t, std::vector<size_t>> members_;  // their messages
  uint64_t messages_ = 0;
  bool first_ = true, written_ = true;
};

TraceFile::TraceFile(std::FILE *file, const Trace &trace, const TraceOrigin &origin)
    : file_(file), origin_(origin), dropped_(trace.dropped()) {
  const DeviceTimes &times = origin.times;
  const auto host = [&](int64_t ns) {
    return times.base_ns + std::llround(times.scale * static_cast<double>(ns - times.base_ns));
  };
  records_.reserve(trace.size());
  for (size_t i = 0; i < trace.size(); ++i) {
    TraceRecord &record = records_.emplace_back(trace[i]);
    if (dropped_ > 0 && whole_from_ == 0 && is_message(record)) whole_from_ = record.operation + 1;
    if (is_of_device(record)) record.begin_ns = host(record.begin_ns), record.end_ns = host(record.end_ns);
  }
  // What lies in another comes behind it.
  std::stable_sort(records_.begin(), records_.end(), [](const TraceRecord &a, const TraceRecord &b) {
    return std::pair(a.begin_ns, -a.end_ns) < std::pair(b.begin_ns, -b.end_ns);
  });
  for (size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].kind == Traced::kMessages) groups_[records_[i].group] = &records_[i];
    if (is_message(records_[i]) && records_[i].group != 0) members_[records_[i].group].push_back(i);
  }
}

void TraceFile::put(const std::string &event) {
  const std::string line = (first_ ? "\n{" : ",\n{") + event + "}";
  first_ = false;
  text_ += line;
  if (text_.size() > kMostText) flush();
}

void TraceFile::flush() {
  written_ = std::fwrite(text_.data(), 1, text_.size(), file_) == text_.size() && written_;
  text_.clear();
}

void TraceFile::put_name(const char *what, int32_t number, const std::string &name) {
  put("\"ph\":\"M\"," + thread(number) + ",\"name\":\"" + what + "\",\"args\":{\"name\":" + json_string(name) +
      "}");
}

void TraceFile::put_head(const std::set<int32_t> &lanes) {
  const DeviceTimes &times = origin_.times;
  const auto number = [](uint64_t n) { return std::to_string(n); };
  std::string head = "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"tool\":\"liblasp\"";
  const auto add = [&](const char *key, const std::string &value) {
    head += ",\"" + std::string(key) + "\":" + value;
  };
  char version[32];
  std::snprintf(version, sizeof version, "%d.%d.%d", LASP_VERSION_MAJOR, LASP_VERSION_MINOR, LASP_VERSION_PATCH);
  add("version", json_string(version));
  add("rank", std::to_string(origin_.rank));
  add("ranks", std::to_string(origin_.nranks));
  add("transport", json_string(origin_.transport));
  add("device", json_string(origin_.device));
  add("host_clock", json_string(host_clock()));
  add("dropped", number(dropped_));
  add("whole_from_operation", number(whole_from_));
  add("device_unfinished", number(times.unfinished));
  add("device_left_out", number(times.left_out));
  add("device_clock_uncertainty_us", microseconds(times.uncertainty_ns));
  head += "},\"traceEvents\":[";
  text_ += head;
  put_name("process_name", kCalls,
           "rank " + std::to_string(origin_.rank) + " of " + std::to_string(origin_.nranks) + ", " +
               origin_.transport + " transport");
  put("\"ph\":\"M\"," + thread(kCalls) +
      ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":" + std::to_string(origin_.rank) + "}");
  put_name("thread_name", kCalls, "calls");
  for (const int32_t lane : lanes)
    put_name("thread_name", kFirstLane + lane,
             lane == 0 ? "device: exchange" : "device: stream " + std::to_string(lane));
}

std::string TraceFile::peers_of(uint32_t group) const {
  const auto found = members_.find(group);
  std::string text[2];
  uint64_t bytes[2] = {};
  for (const size_t i : found != members_.end() ? found->second : std::vector<size_t>()) {
    const size_t way = records_[i].kind == Traced::kSend ? 0 : 1;
    text[way] += (text[way].empty() ? "" : ",") + std::to_string(records_[i].peer);
    bytes[way] += records_[i].bytes;
  }
  return ",\"to\":[" + text[0] + "],\"from\":[" + text[1] + "],\"bytes_sent\":" + std::to_string(bytes[0]) +
         ",\"bytes_received\":" + std::to_string(bytes[1]);
}

void TraceFile::put_span(int32_t number, const TraceRecord &r, int64_t end_ns) {
  std::string name = r.name, args = "\"call\":" + std::to_string(r.call);
  const char *category = "device";
  switch (r.kind) {
    case Traced::kCall: category = "call"; break;
    case Traced::kPhase: category = "phase"; break;
    case Traced::kWait:
      category = "wait";
      args += ",\"peer\":" + std::to_string(r.peer) + ",\"why\":" + json_string(name);
      name = r.peer >= 0 ? "wait for rank " + std::to_string(r.peer) : "wait for other ranks";
      break;
    case Traced::kMessages:
      category = "messages";
      args += ",\"operation\":" + std::to_string(r.operation) + peers_of(r.group);
      break;
    default: break;
  }
  if ((r.flags & TraceRecord::kFailed) != 0) args += ",\"failed\":true";
  if ((r.flags & TraceRecord::kCaptured) != 0) args += ",\"captured\":true";
  put("\"ph\":\"X\"," + thread(number) + ",\"ts\":" + microseconds(r.begin_ns) +
      ",\"dur\":" + microseconds(end_ns - r.begin_ns) + ",\"cat\":\"" + category +
      "\",\"name\":" + json_string(name) + ",\"args\":{" + args + "}");
}

// Spans of one thread nest. A device's are rounded one by one, so that an inner one may end a trifle too late.
void TraceFile::put_lane(int32_t number, const Lane &lane) {
  std::vector<int64_t> ends;
  for (const TraceRecord *record : lane) {
    while (!ends.empty() && ends.back() <= record->begin_ns) ends.pop_back();
    const int64_t end = ends.empty() ? record->end_ns : std::min(record->end_ns, ends.back());
    put_span(number, *record, end);
    ends.push_back(end);
  }
}

// The `number`th of its operation, tag and peer: on both ranks the same.
void TraceFile::put_message(const TraceRecord &r, uint32_t number) {
  const bool sends = r.kind == Traced::kSend;
  const auto found = groups_.find(r.group);
  const bool on_device = r.group != 0 && found != groups_.end();
  const int64_t begin = on_device ? found->second->begin_ns : r.begin_ns;
  const int64_t end = on_device ? found->second->end_ns : r.end_ns;
  const int32_t at = on_device ? kFirstLane + found->second->lane : kCalls;
  const int32_t from = sends ? origin_.rank : r.peer, to = sends ? r.peer : origin_.rank;
  uint64_t id = 14695981039346656037u;  // FNV-1a of what both ranks know
  for (const uint64_t part : {uint64_t{r.operation}, static_cast<uint64_t>(r.tag), static_cast<uint64_t>(from),
                              static_cast<uint64_t>(to), uint64_t{number}})
    for (int byte = 0; byte < 4; ++byte) id = (id ^ ((part >> 8 * byte) & 255)) * 1099511628211u;
  const std::string name = (sends ? "to rank " : "from rank ") + std::to_string(r.peer);
  const std::string own = std::to_string(++messages_);
  const std::string args = "\"call\":" + std::to_string(r.call) + ",\"peer\":" + std::to_string(r.peer) +
                           ",\"bytes\":" + std::to_string(r.bytes) +
                           ",\"operation\":" + std::to_string(r.operation) + ",\"tag\":" + std::to_string(r.tag) +
                           ",\"number\":" + std::to_string(number);
  const std::string head = std::string(",\"cat\":\"") + (sends ? "send" : "receive") + "\",\"name\":\"" + name +
                           "\",\"id2\":{\"local\":\"0x" + own + "\"}";
  put("\"ph\":\"b\"," + thread(at) + ",\"ts\":" + microseconds(begin) + head + ",\"args\":{" + args + "}");
  put("\"ph\":\"e\"," + thread(at) + ",\"ts\":" + microseconds(end) + head);
  char flow[17];
  std::snprintf(flow, sizeof flow, "%016llx", static_cast<unsigned long long>(id));
  put(std::string(sends ? "\"ph\":\"s\"," : "\"ph\":\"f\",\"bp\":\"e\",") + thread(at) + ",\"ts\":" +
      microseconds(sends ? begin : end) + ",\"cat\":\"message\",\"name\":\"message\",\"id\":\"" + flow + "\"");
}

bool TraceFile::write() {
  std::map<int32_t, Lane> lanes;  // by thread of the file
  std::set<int32_t> of_device;
  std::map<std::tuple<uint32_t, int32_t, int32_t, Traced>, uint32_t> numbers;
  for (const TraceRecord &record : records_) {
    if (is_message(record)) continue;
    if (is_of_device(record)) of_device.insert(record.lane);
    lanes[is_of_device(record) ? kFirstLane + record.lane : kCalls].push_back(&record);
  }
  put_head(of_device);
  for (const auto &[number, lane] : lanes) put_lane(number, lane);
  for (const TraceRecord &record : records_)
    if (is_message(record))
      put_message(record, numbers[{record.operation, record.tag, record.peer, record.kind}]++);
  text_ += "\n]}\n";
  flush();
  return written_;
}

}  // namespace

// Without a buffer in the file: a child that another thread forks meanwhile would write it once more when it exits.
bool write_trace(std::FILE *file, const Trace &trace, const TraceOrigin &origin) {
  std::setvbuf(file, nullptr, _IONBF, 0);
  return TraceFile(file, trace, origin).write();
}

}  // namespace lasp
