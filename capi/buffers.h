// Checks of the caller's buffers against a plan: present, large enough, aligned, and no output twice.
#pragma once

#include <lasp/lasp.h>

#include <array>
#include <cstdint>

#include "guarded.h"

namespace lasp {

class BufferCheck {
 public:
  // An input or output that must hold `bytes` bytes. One of zero bytes may be absent.
  const void *input(const char *name, const lasp_const_buffer &buffer, int64_t bytes, int64_t alignment);
  void *output(const char *name, const lasp_buffer &buffer, int64_t bytes, int64_t alignment);
  // The same for buffers that may be left out: null then.
  const void *optional_input(const char *name, const lasp_const_buffer &buffer, int64_t bytes, int64_t alignment);
  void *optional_output(const char *name, const lasp_buffer &buffer, int64_t bytes, int64_t alignment);
  // One that this plan has no use for: a sign that the caller means another problem.
  void absent(const char *name, const void *data, const char *why);

  // No output may begin where another buffer begins. (Interleaved tensors, such as the parts of a packed qkv, share
  // address ranges legally, so ranges are not compared.)
  void finish() const;

 private:
  struct Seen {
    const char *name;
    const void *data;
    bool output;
  };
  void note(const char *name, const void *data, bool output);

  // More than any call has buffers; no allocation in a pass.
  std::array<Seen, 24> seen_;
  size_t count_ = 0;
};

}  // namespace lasp
