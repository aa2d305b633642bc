#include "buffers.h"

namespace lasp {
namespace {

// Memory that is not aligned is refused even where none is needed: the next plan would meet it.
void check(const char *name, const void *data, size_t have, int64_t bytes, int64_t alignment) {
  if (data == nullptr && bytes > 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s is null: %lld bytes are needed", name,
               static_cast<long long>(bytes));
  if (have < static_cast<size_t>(bytes))
    throw fail(LASP_ERROR_BUFFER_TOO_SMALL, "%s holds %zu bytes: %lld are needed", name, have,
               static_cast<long long>(bytes));
  if (have > 0 && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) != 0)
    throw fail(LASP_ERROR_MISALIGNED, "%s at %p: must be aligned to %lld bytes", name, data,
               static_cast<long long>(alignment));
}

}  // namespace

const void *BufferCheck::input(const char *name, const lasp_const_buffer &buffer, const Extent &extent) {
  check(name, buffer.data, buffer.bytes, extent.bytes(), extent.element);
  note(name, buffer.data, extent, false, false);
  return buffer.data;
}

void *BufferCheck::output(const char *name, const lasp_buffer &buffer, const Extent &extent) {
  check(name, buffer.data, buffer.bytes, extent.bytes(), extent.element);
  note(name, buffer.data, extent, true, false);
  return buffer.data;
}

const void *BufferCheck::optional_input(const char *name, const lasp_const_buffer &buffer, const Extent &extent) {
  return buffer.data == nullptr ? nullptr : input(name, buffer, extent);
}

void *BufferCheck::optional_output(const char *name, const lasp_buffer &buffer, const Extent &extent) {
  return buffer.data == nullptr ? nullptr : output(name, buffer, extent);
}

const void *BufferCheck::block_input(const char *name, const lasp_const_buffer &buffer, const lasp_plan_info &info,
                                     uint64_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  check(name, buffer.data, buffer.bytes, size, static_cast<int64_t>(info.alignment));
  note(name, buffer.data, Extent::run(size), false, true);
  return buffer.data;
}

void *BufferCheck::block_output(const char *name, const lasp_buffer &buffer, const lasp_plan_info &info,
                                uint64_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  check(name, buffer.data, buffer.bytes, size, static_cast<int64_t>(info.alignment));
  note(name, buffer.data, Extent::run(size), true, true);
  return buffer.data;
}

void BufferCheck::absent(const char *name, const void *data, const char *why) {
  if (data != nullptr) throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s is given, but %s", name, why);
}

void BufferCheck::note(const char *name, const void *data, const Extent &extent, bool output, bool block) {
  seen_.at(count_) = {name, {reinterpret_cast<uintptr_t>(data), extent}, output, block};
  ++count_;
}

void BufferCheck::finish() const {
  for (size_t i = 0; i < count_; ++i)
    for (size_t j = i + 1; j < count_; ++j) {
      const Seen &a = seen_[i], &b = seen_[j];
      if (!a.output && !b.output) continue;
      if (a.block || b.block ? ranges_meet(a.place, b.place) : share_an_element(a.place, b.place))
        throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s and %s share memory: an output needs its own", a.name, b.name);
    }
}

}  // namespace lasp
