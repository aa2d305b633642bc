// The header's names of its values, for sentences: what a caller wrote is what he reads.
#pragma once

#include <cstdint>
#include <string>

namespace lasp {

// "LASP_DECAY_HEAD"; of a value without a name, its number.
std::string device_name(int64_t device);
std::string dtype_name(int64_t dtype);
std::string decay_name(int64_t decay);
std::string write_name(int64_t write);
std::string mask_name(int64_t mask);
std::string ownership_name(int64_t ownership);
std::string schedule_name(int64_t schedule);
std::string cache_name(int64_t cache);

}  // namespace lasp
