// Handles and buffers that free themselves.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <memory>
#include <new>

namespace bench {

struct HandleDeleter {
  void operator()(lasp_comm *comm) const { lasp_comm_destroy(comm); }
  void operator()(lasp_context *context) const { lasp_context_destroy(context); }
  void operator()(lasp_plan *plan) const { lasp_plan_destroy(plan); }
};
using CommHandle = std::unique_ptr<lasp_comm, HandleDeleter>;
using ContextHandle = std::unique_ptr<lasp_context, HandleDeleter>;
using PlanHandle = std::unique_ptr<lasp_plan, HandleDeleter>;

struct AlignedDeleter {
  size_t alignment = 64;
  void operator()(void *data) const { ::operator delete(data, std::align_val_t(alignment)); }
};

class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes, size_t alignment = 64)
      : data_(bytes == 0 ? nullptr : ::operator new(bytes, std::align_val_t(alignment)), AlignedDeleter{alignment}),
        bytes_(bytes) {}

  void *data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  lasp_buffer buffer() const { return {data(), bytes_}; }
  lasp_const_buffer const_buffer() const { return {data(), bytes_}; }

 private:
  std::unique_ptr<void, AlignedDeleter> data_;
  size_t bytes_ = 0;
};

}  // namespace bench
