#include "buffers.h"

namespace lasp {
namespace {

void check(const char *name, const void *data, size_t have, int64_t bytes, int64_t alignment) {
  if (bytes == 0) return;
  if (data == nullptr)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s is null: %lld bytes are needed", name,
               static_cast<long long>(bytes));
  if (have < static_cast<size_t>(bytes))
    throw fail(LASP_ERROR_BUFFER_TOO_SMALL, "%s holds %zu bytes: %lld are needed", name, have,
               static_cast<long long>(bytes));
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) != 0)
    throw fail(LASP_ERROR_MISALIGNED, "%s at %p: must be aligned to %lld bytes", name, data,
               static_cast<long long>(alignment));
}

}  // namespace

const void *BufferCheck::input(const char *name, const lasp_const_buffer &buffer, int64_t bytes,
                               int64_t alignment) {
  check(name, buffer.data, buffer.bytes, bytes, alignment);
  if (bytes > 0) note(name, buffer.data, false);
  return buffer.data;
}

void *BufferCheck::output(const char *name, const lasp_buffer &buffer, int64_t bytes, int64_t alignment) {
  check(name, buffer.data, buffer.bytes, bytes, alignment);
  if (bytes > 0) note(name, buffer.data, true);
  return buffer.data;
}

const void *BufferCheck::optional_input(const char *name, const lasp_const_buffer &buffer, int64_t bytes,
                                        int64_t alignment) {
  return buffer.data == nullptr ? nullptr : input(name, buffer, bytes, alignment);
}

void *BufferCheck::optional_output(const char *name, const lasp_buffer &buffer, int64_t bytes, int64_t alignment) {
  return buffer.data == nullptr ? nullptr : output(name, buffer, bytes, alignment);
}

void BufferCheck::absent(const char *name, const void *data, const char *why) {
  if (data != nullptr) throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s is given, but %s", name, why);
}

void BufferCheck::note(const char *name, const void *data, bool output) {
  seen_.at(count_) = {name, data, output};
  ++count_;
}

void BufferCheck::finish() const {
  for (size_t i = 0; i < count_; ++i)
    for (size_t j = i + 1; j < count_; ++j)
      if (seen_[i].data == seen_[j].data && (seen_[i].output || seen_[j].output))
        throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s and %s are the same memory: an output needs its own",
                   seen_[i].name, seen_[j].name);
}

}  // namespace lasp
