// Linear attention by liblasp: the only place of the trainer that calls the library's compute functions.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory.hpp"
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

// A context that breaks its group when it is left by an exception, so that the other ranks do not wait.
class Context {
 public:
  Context(lasp_comm *comm, int cpu_threads);
  ~Context();
  Context(const Context &) = delete;
  lasp_context *get() const { return context_.get(); }

 private:
  std::unique_ptr<lasp_context, HandleDeleter> context_;
  int exceptions_;
};

// What a block of the model asks for. qkv is [T, 3 d_model], a row being [q heads | k heads | v heads]; o is
// [T, d_model].
class Attention {
 public:
  virtual ~Attention() = default;
  virtual void forward(int layer, const float *qkv, float *o) = 0;
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
  SequenceAttention(const Context &context, const Shape &shape, std::int64_t tokens,
                    const AttentionSettings &settings, MemoryMeter &meter);

  void forward(int layer, const float *qkv, float *o) override;
  void backward(int layer, const float *qkv, const float *d_o, float *d_qkv);

  const lasp_plan_info &info() const { return info_; }
  std::size_t workspace_bytes() const { return workspace_.bytes(); }
  std::size_t state_cache_bytes() const { return info_.state_cache_bytes * caches_.size(); }
  const float *final_state(int layer) const { return final_states_[static_cast<std::size_t>(layer)].data(); }

 private:
  lasp_const_buffer part(const float *qkv, int index) const;  // 0: q, 1: k, 2: v
  lasp_const_buffer decay(int layer) const;

  Shape shape_;
  std::size_t tokens_;
  Plan plan_;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
  std::vector<std::vector<float>> decay_;     // by layer
  std::vector<Array<unsigned char>> caches_;  // by layer
  std::vector<Array<float>> final_states_;    // by layer
  Array<unsigned char> workspace_;
};

// The recurrent form: one token a call, on states that this object keeps.
class StepAttention : public Attention {
 public:
  StepAttention(const Context &context, const Shape &shape, MemoryMeter &meter);

  void set_state(int layer, const float *state);
  void forward(int layer, const float *qkv, float *o) override;

 private:
  Shape shape_;
  Plan plan_;
  std::vector<std::vector<float>> decay_;
  std::vector<Array<float>> states_;
};

}  // namespace train_lm
