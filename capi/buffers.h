// Checks of the caller's buffers against a plan: present, large enough, aligned, and no output in another buffer.
#pragma once

#include <lasp/lasp.h>

#include <array>
#include <cstdint>

#include "guarded.h"
#include "overlap.h"

namespace lasp {

class BufferCheck {
 public:
  // A tensor, aligned to its element. An empty one may be absent.
  const void *input(const char *name, const lasp_const_buffer &buffer, const Extent &extent);
  void *output(const char *name, const lasp_buffer &buffer, const Extent &extent);
  // The same for tensors that may be left out: null then.
  const void *optional_input(const char *name, const lasp_const_buffer &buffer, const Extent &extent);
  void *optional_output(const char *name, const lasp_buffer &buffer, const Extent &extent);
  // Those that only some calls need.
  const void *input_if(bool needed, const char *name, const lasp_const_buffer &buffer, const Extent &extent) {
    return needed ? input(name, buffer, extent) : optional_input(name, buffer, extent);
  }
  void *output_if(bool needed, const char *name, const lasp_buffer &buffer, const Extent &extent) {
    return needed ? output(name, buffer, extent) : optional_output(name, buffer, extent);
  }
  // State cache and workspace: memory in whose range no other buffer may lie, not even between a tensor's elements.
  const void *block_input(const char *name, const lasp_const_buffer &buffer, const lasp_plan_info &info,
                          uint64_t bytes);
  void *block_output(const char *name, const lasp_buffer &buffer, const lasp_plan_info &info, uint64_t bytes);
  // One that this plan has no use for: a sign that the caller means another problem.
  void absent(const char *name, const void *data, const char *why);

  // No output may share memory with another buffer.
  void finish() const;

 private:
  struct Seen {
    const char *name;
    Place place;
    bool output, block;
  };
  void note(const char *name, const void *data, const Extent &extent, bool output, bool block);

  // More than any call has buffers; no allocation in a pass.
  std::array<Seen, 24> seen_;
  size_t count_ = 0;
};

}  // namespace lasp
