// libFuzzer's entry points and the settings of the sanitizers, for all targets.
#include <cstdio>
#include <cstdlib>

#include "draw.h"

namespace {

// libFuzzer counts what stands in this section as it counts edges of the code, and clears it before each input.
[[gnu::section("__libfuzzer_extra_counters")]] uint8_t features[lasp_fuzz::kFeatures];

}  // namespace

namespace lasp_fuzz {

void seen(int32_t feature) { features[static_cast<uint32_t>(feature) % kFeatures] = 1; }

void broken(const char *what) {
  std::fprintf(stderr, "fuzz: %s (last sentence: \"%s\")\n", what, lasp_last_error());
  std::abort();
}

lasp_status checked(lasp_status status) {
  if (status == LASP_OK) return status;
  if (std::strcmp(lasp_status_name(status), "unknown status") == 0) broken("a status that the header lacks");
  if (lasp_last_error()[0] == 0) broken("a status without a sentence");
  if (status >= 400 && status < 500) broken("an internal error, or memory without bounds");
  return status;
}

int32_t Draw::nasty32() {
  constexpr int32_t kValues[] = {-1, 0, 1, 2, 3, 7, 17, 520, INT32_MAX, INT32_MIN, 1 << 30};
  return rarely(3) ? take<int32_t>() : one_of(kValues);
}

int64_t Draw::nasty64() {
  constexpr int64_t kValues[] = {-1, 0, 1, 2, 15, 17, INT64_MAX, INT64_MIN, int64_t{1} << 40, int64_t{1} << 62};
  return rarely(3) ? take<int64_t>() : one_of(kValues);
}

}  // namespace lasp_fuzz

// A small quarantine and short stacks of allocations: memory is used again while it is in the cache. A failing
// input run alone may ask for more through ASAN_OPTIONS.
extern "C" const char *__asan_default_options() {
  return "quarantine_size_mb=8:thread_local_quarantine_size_kb=64:malloc_context_size=4:max_malloc_fill_size=0:"
         "allocator_release_to_os_interval_ms=-1:detect_stack_use_after_return=0";
}
extern "C" const char *__ubsan_default_options() { return "print_stacktrace=1"; }

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
  lasp_fuzz::prepare();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  lasp_fuzz::Draw in(data, size);
  lasp_fuzz::one_input(in);
  return 0;
}
