#include "common/environment.h"

#include <sys/utsname.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>

namespace tools {
namespace {

// The value behind the first colon of the first line that starts with `key`.
std::string field(const char *file, const std::string &key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

uint64_t meminfo(const char *key) {
  const std::string text = field("/proc/meminfo", key);
  return text.empty() ? 0 : std::stoull(text) * 1024;
}

std::string first_line_of(const char *command) {
  const std::unique_ptr<FILE, int (*)(FILE *)> pipe(popen(command, "r"), pclose);
  std::array<char, 256> line{};
  if (!pipe || !fgets(line.data(), line.size(), pipe.get())) return "";
  std::string text = line.data();
  if (const size_t end = text.find('\n'); end != std::string::npos) text.resize(end);
  return text;
}

}  // namespace

std::string cpu_name() {
  const std::string name = field("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

uint64_t memory_total_bytes() { return meminfo("MemTotal"); }
uint64_t memory_available_bytes() { return meminfo("MemAvailable"); }

std::string system_name() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return std::string(name.sysname) + " " + name.release + " " + name.machine;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string git_commit() {
  std::string commit = first_line_of("git rev-parse --short=12 HEAD 2>/dev/null");
  if (!commit.empty() && !first_line_of("git status --porcelain --untracked-files=no 2>/dev/null").empty())
    commit += "-dirty";
  return commit;
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

std::string human_bytes(double bytes) {
  constexpr std::array<const char *, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || bytes >= 100 ? "%.0f %s" : "%.3g %s", bytes, kUnits[unit]);
  return text;
}

}  // namespace tools
