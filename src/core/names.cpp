#include "core/names.h"

#include <initializer_list>

#include "core/schedules.h"

namespace lasp {
namespace {

// `names` are those of 0, 1, 2 and so on; null where a number has none.
std::string name_of(int64_t value, std::initializer_list<const char *> names) {
  const bool known = value >= 0 && value < static_cast<int64_t>(names.size()) && names.begin()[value] != nullptr;
  return known ? names.begin()[value] : std::to_string(value);
}

}  // namespace

std::string device_name(int64_t device) {
  return name_of(device, {"LASP_DEVICE_AUTO", "LASP_DEVICE_CPU", "LASP_DEVICE_CUDA"});
}

std::string dtype_name(int64_t dtype) {
  if (dtype == LASP_INT32) return "LASP_INT32";
  if (dtype == LASP_INT64) return "LASP_INT64";
  return name_of(dtype, {"LASP_DTYPE_DEFAULT", "LASP_FLOAT32", "LASP_BFLOAT16", "LASP_FLOAT16"});
}

std::string decay_name(int64_t decay) {
  return name_of(decay, {"LASP_DECAY_NONE", "LASP_DECAY_HEAD", "LASP_DECAY_SCALAR", "LASP_DECAY_CHANNEL"});
}

std::string write_name(int64_t write) { return name_of(write, {"LASP_WRITE_ADDITIVE", "LASP_WRITE_DELTA"}); }

std::string mask_name(int64_t mask) { return name_of(mask, {"LASP_MASK_CAUSAL", "LASP_MASK_BIDIRECTIONAL"}); }

std::string ownership_name(int64_t ownership) {
  return name_of(ownership, {"LASP_OWN_CONTIGUOUS", "LASP_OWN_ZIGZAG", "LASP_OWN_ZIGZAG_EACH", "LASP_OWN_RUNS"});
}

std::string schedule_name(int64_t schedule) {
  if (schedule == LASP_SCHEDULE_AUTO) return "LASP_SCHEDULE_AUTO";
  const ScheduleEntry *entry = find_schedule(schedule);
  return entry != nullptr ? entry->name : std::to_string(schedule);
}

std::string cache_name(int64_t cache) { return name_of(cache, {"LASP_CACHE_INCOMING", "LASP_CACHE_CHUNKS"}); }

}  // namespace lasp
