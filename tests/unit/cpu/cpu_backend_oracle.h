// For cpu_backend_test.cpp: a problem of all ranks together, random inputs for it, and its results by the
// recurrence in float64. The arithmetic is in a file of its own, which the sanitizers leave alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "core/problem.h"
#include "cpu/kernels.h"

namespace lasp::cpu_test {

enum class Order { kTokensFirst, kHeadsFirst, kPadded };

struct Case {
  std::string name = {};
  int64_t batch = 1, tokens = 0;
  int32_t heads_q = 2, heads_k = 2, heads_v = 2, keys = 16, values = 24;
  Decay decay = Decay::kNone;
  float decay_low = -0.2f, decay_high = -0.001f;
  bool some_forget = false;  // every fifth decay is -infinity: the state is dropped
  bool states = true;        // with initial_state and d_final_state
  bool cache_chunks = true;
  bool bidirectional = false;
  int32_t chunk = 32;
  DType dtype = DType::kFloat32, decay_dtype = DType::kFloat32;
  Order order = Order::kTokensFirst;
  std::vector<int64_t> cu_seqlens = {};
  std::vector<int64_t> split = {};  // tokens of each rank; empty: one rank
  int32_t threads = 2;
  const cpu::Kernels *kernels = &cpu::kernels();

  int32_t heads() const { return std::max({heads_q, heads_k, heads_v}); }
  int64_t sequences() const { return cu_seqlens.empty() ? batch : static_cast<int64_t>(cu_seqlens.size()) - 1; }
};

inline void PrintTo(const Case &c, std::ostream *out) { *out << c.name; }

using Values = std::vector<double>;  // dense [B, T, heads, dim] over all ranks

// ---- Element types ----------------------------------------------------------------------------------------------

inline void encode(void *to, const float *from, int64_t count8, DType type) {
  cpu::kernels().store_rows(to, 0, from, 0, 1, count8, type, false);
}
inline void decode(float *to, const void *from, int64_t count8, DType type) {
  cpu::kernels().load_rows(to, 0, from, 0, 1, count8, type);
}
inline double unit_roundoff(DType type) {
  return type == DType::kFloat32 ? 0x1p-24 : type == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

// ---- The oracle -------------------------------------------------------------------------------------------------

struct Results {
  Values o, final_state, dq, dk, dv, d_decay, d_initial_state;
  Values head_terms;  // per-head decay: the sizes of each token's terms of d_decay, summed
};

struct Inputs {
  Values q, k, v, decay, d_o, initial_state, d_final_state;
};

struct Oracle {
  const Case &c;
  const Inputs &in;
  Results out;

  void shape();  // zeros in the size of every result
  void run();
  // The recurrence alone: o and final_state.
  void run_forward();

 private:
  double g(int64_t b, int64_t t, int32_t h, int32_t key) const;
  void add_dg(int64_t b, int64_t t, int32_t h, int32_t key, double x);
  void sequences(bool backward);
  void sequence(int64_t b, int64_t begin, int64_t end, int32_t h, int64_t at, bool backward);
};

Inputs make_inputs(const Case &c);

}  // namespace lasp::cpu_test
