// What a GPU adds to a rank's run: its device and stream, and the promises about the caller's side of the CUDA
// runtime (the current device and the record of the last error are as they were after every call). On the CPU all
// of it is nothing.
#pragma once

#include <string>

#include "support/device.h"
#include "support/guarded_buffer.h"
#include "support/rank_run.h"

namespace lasp_test {

class RankDevice {
 public:
  explicit RankDevice(const RunOptions &options) : options_(options) {
    if (!on_cuda()) return;
    gpu::use_device(options.device_index);
    if (options.own_stream || options.graph_replays > 0) stream_ = gpu::make_stream();
    if (options.other_device) other_ = (options.device_index + 1) % gpu::device_count();
    if (options.old_error) error_ = gpu::leave_error();
  }
  ~RankDevice() {
    if (!on_cuda()) return;
    if (options_.old_error) gpu::clear_error();
    if (stream_ != nullptr) gpu::destroy_stream(stream_);
  }
  RankDevice(const RankDevice &) = delete;
  RankDevice &operator=(const RankDevice &) = delete;

  lasp_stream stream() const { return stream_; }

  // Makes a call of the library; what it should have left alone and did not is added to `complaints`.
  template <class Call>
  lasp_status call(const Call &body, const char *name, std::string &complaints) const {
    if (!on_cuda()) return body();
    if (other_ >= 0) gpu::use_device(other_);
    const int32_t before = gpu::current_device();
    const lasp_status status = body();
    if (gpu::current_device() != before) complaints += std::string(name) + " changed the current device\n";
    if (options_.old_error && gpu::last_error() != error_)
      complaints += std::string(name) + " changed the record of the caller's last CUDA error\n";
    gpu::use_device(options_.device_index);
    return status;
  }

  void before_pass() const {
    if (on_cuda() && options_.late_inputs) gpu::delay(stream_);
  }
  void after_pass(const char *name, std::string &complaints) const {
    if (on_cuda() && options_.late_inputs && !options_.may_wait && gpu::finished(stream_))
      complaints += std::string(name) + " returned only after the stream's work was done\n";
  }

 private:
  const RunOptions &options_;
  lasp_stream stream_ = nullptr;
  int32_t other_ = -1, error_ = 0;
};

}  // namespace lasp_test
