// Linear attention by liblasp: the only place of the trainer that calls the library's compute functions.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device.hpp"
#include "parameters.hpp"

namespace train_lm {

// Throws std::runtime_error with the library's sentence unless `status` is LASP_OK.
void check(lasp_status status, const char *call);

struct HandleDeleter {
  void operator()(lasp_comm *comm) const { lasp_comm_destroy(comm); }
  void operator()(lasp_context *context) const { lasp_context_destroy(context); }
  void operator()(lasp_plan *plan) const { lasp_plan_destroy(plan); }
};
using Comm = std::unique_ptr<lasp_comm, HandleDeleter>;
using Plan = std::unique_ptr<lasp_plan, HandleDeleter>;

Comm group_of_one();

// A context and its device. It breaks its group when it is left by an exception, so that the other ranks do not
// wait.
class Context {
 public:
  Context(lasp_comm *comm, int cpu_threads, const Place &place);
  ~Context();
  Context(const Context &) = delete;
  lasp_context *get() const { return context_.get(); }
  Device &device() { return *device_; }

  // Waits until the work on the device's stream is done, and asks liblasp meanwhile: throws when another rank is
  // lost, for which cudaStreamSynchronize would wait for ever.
  void finish();

 private:
  std::unique_ptr<lasp_context, HandleDeleter> context_;
  std::unique_ptr<Device> device_;
  int exceptions_;
};

// Throws liblasp's sentence where no context can be made there: no such device, or not in this build of liblasp.
void require(const Place &place);

// What a block of the model asks for. qkv is [T, 3 d_model], a row being [q heads | k heads | v heads]; o is
// [T, d_model]. All are the device's.
class Attention {
 public:
  virtual ~Attention() = default;
  virtual void forward(int layer, Real qkv, Real o) = 0;
};

struct AttentionSettings {
  int schedule = LASP_SCHEDULE_AUTO;
  int cache = LASP_CACHE_CHUNKS;
  bool backward = true;
  bool final_state = false;  // keep each layer's final state, on every rank
};

// The parallel form, over the ranks of a comm.
class SequenceAttention : public Attention {
 public:
  SequenceAttention(Context &context, const Shape &shape, std::int64_t tokens, const AttentionSettings &settings);

  void forward(int layer, Real qkv, Real o) override;
  void backward(int layer, Real qkv, Real d_o, Real d_qkv);

  const lasp_plan_info &info() const { return info_; }
  std::size_t workspace_bytes() const { return workspace_.bytes(); }
  std::size_t state_cache_bytes() const { return info_.state_cache_bytes * caches_.size(); }
  const DeviceArray<float> &final_state(int layer) const { return final_states_[static_cast<std::size_t>(layer)]; }

 private:
  Context &context_;
  Shape shape_;
  std::size_t tokens_;
  Plan plan_;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
  std::vector<DeviceArray<float>> decay_, final_states_;  // by layer
  std::vector<DeviceArray<std::byte>> caches_;            // by layer
  DeviceArray<std::byte> workspace_;                      // of all layers
};

// The recurrent form: one token a call, on states that this object keeps.
class StepAttention : public Attention {
 public:
  StepAttention(Context &context, const Shape &shape);

  void set_state(int layer, const DeviceArray<float> &state);
  void finish() { context_.finish(); }  // after which what states were copied from may go
  void forward(int layer, Real qkv, Real o) override;

 private:
  Context &context_;
  Shape shape_;
  Plan plan_;
  std::vector<DeviceArray<float>> decay_, states_;  // by layer
};

}  // namespace train_lm
