// What a report says about where it was made: machine, time, commit. Everything is asked at run time.
#pragma once

#include <cstdint>
#include <string>

namespace tools {

std::string cpu_name();         // "unknown" when the system does not say
uint64_t memory_total_bytes();  // 0 when the system does not say
uint64_t memory_available_bytes();
std::string system_name();              // kernel and architecture
std::string utc_now();                  // 2026-01-31T12:00:00Z
std::string git_commit();               // of the working folder, with "-dirty" when it has changes; "" outside git
std::string compiler_name();            // that built this tool
std::string human_bytes(double bytes);  // 1.5 MiB

}  // namespace tools
