// The buffers of one plan, in guarded memory, as arguments of each call, and what may have become of them.
#pragma once

#include <lasp/lasp.h>

#include <array>

#include "draw.h"
#include "memory.h"

namespace lasp_fuzz {

class Tensors {
 public:
  // False from whole(): there was no room for some tensor, by its strides.
  Tensors(Draw &in, Memory &memory, const lasp_problem &problem, const lasp_plan_info &info);
  bool whole() const { return whole_; }

  lasp_forward_args forward() const;
  lasp_backward_args backward() const;
  lasp_step_args step() const;

  // Every byte of every input of `forward`, `backward` and `step` is as it was.
  bool inputs_intact() const;
  // Every byte of every output is as it was: true before the first call that succeeded.
  bool outputs_untouched() const;

 private:
  struct Part {
    unsigned char *data = nullptr;
    uint64_t bytes = 0;
    uint8_t fill = 0;
    bool intact() const;
    operator lasp_buffer() const { return {data, bytes}; }
    operator lasp_const_buffer() const { return {data, bytes}; }
  };
  // clang-format off
  enum Name {
    kQ, kK, kV, kDecay, kInitialState, kDO, kDFinalState,  // inputs
    kO, kFinalState, kStateCache, kForwardWorkspace, kDQ, kDK, kDV, kDDecay, kDInitialState, kBackwardWorkspace,
    kState,
    kCount
  };
  // clang-format on
  Part make(Draw &in, Memory &memory, uint64_t bytes, size_t alignment);

  std::array<Part, kCount> parts_;
  bool whole_ = true;
};

}  // namespace lasp_fuzz
