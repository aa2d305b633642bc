// Writing past the caches, for large results that nobody reads again soon: an ordinary store first fetches the line
// it is about to fill. Included only by the kernel headers (see vec.h).
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vec.h"

namespace lasp::cpu {
namespace {

// Whole cache lines go past the caches; the ends of the row, which may share a line with other data, do not. Ended
// by stream_fence.
LASP_INLINE void stream_row(void *to, const void *from, int64_t bytes) {
#if defined(__SSE2__)
  constexpr int64_t kLine = 64;
  auto *out = static_cast<char *>(to);
  const auto *in = static_cast<const char *>(from);
  const auto skew = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kLine);
  const int64_t head = std::min(skew == 0 ? 0 : kLine - skew, bytes);
  std::memcpy(out, in, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    for (int64_t part = at; part < at + kLine; part += 16) {
      _mm_stream_ps(reinterpret_cast<float *>(out + part), load_as<HalfVec>(in + part));
    }
  }
  std::memcpy(out + at, in + at, static_cast<size_t>(bytes - at));
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

// Makes what was streamed visible before anything stored later.
LASP_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace lasp::cpu
