// One point to be measured: a problem (Shape) and how it is run. Names of the library's values, and FLOP counts.
#pragma once

#include <lasp/lasp.h>
#include <algorithm>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

struct Named {
  std::string_view name;
  int32_t value;
};
inline constexpr std::array kDecays = {Named{"none", LASP_DECAY_NONE}, Named{"head", LASP_DECAY_HEAD},
                                       Named{"scalar", LASP_DECAY_SCALAR}, Named{"channel", LASP_DECAY_CHANNEL}};
inline constexpr std::array kSchedules = {Named{"auto", LASP_SCHEDULE_AUTO},
                                          Named{"ring", LASP_SCHEDULE_RING},
                                          Named{"all-gather", LASP_SCHEDULE_ALL_GATHER},
                                          Named{"all-scan", LASP_SCHEDULE_ALL_SCAN},
                                          Named{"doubling", LASP_SCHEDULE_DOUBLING},
                                          Named{"head-scatter", LASP_SCHEDULE_HEAD_SCATTER},
                                          Named{"relay", LASP_SCHEDULE_RELAY}};
inline constexpr std::array kDTypes = {Named{"float32", LASP_FLOAT32}, Named{"bfloat16", LASP_BFLOAT16},
                                       Named{"float16", LASP_FLOAT16}};
inline constexpr std::array kCaches = {Named{"incoming", LASP_CACHE_INCOMING}, Named{"chunks", LASP_CACHE_CHUNKS}};
inline constexpr std::array kMasks = {Named{"causal", LASP_MASK_CAUSAL},
                                      Named{"bidirectional", LASP_MASK_BIDIRECTIONAL}};
inline constexpr std::array kWrites = {Named{"additive", LASP_WRITE_ADDITIVE}, Named{"delta", LASP_WRITE_DELTA}};
inline constexpr std::array kDevices = {Named{"cpu", LASP_DEVICE_CPU}, Named{"cuda", LASP_DEVICE_CUDA}};
std::string name_of(std::span<const Named> names, int32_t value);

// What is computed, whoever computes it.
struct Shape {
  int64_t batch = 1, tokens = 0;  // tokens: of the whole sequence
  int32_t heads_q = 1, heads_k = 1, heads_v = 1, head_dim_k = 0, head_dim_v = 0;
  int32_t decay = LASP_DECAY_NONE, dtype = LASP_FLOAT32, mask = LASP_MASK_CAUSAL;
  int32_t write = LASP_WRITE_ADDITIVE;
  bool rounded_decay = false;  // decays by token, and their gradients, have the tensors' type, not float32

  int32_t heads() const;  // output heads
  double scale() const;
  int32_t decay_dtype() const { return rounded_decay && decay != LASP_DECAY_HEAD ? dtype : int32_t{LASP_FLOAT32}; }
  bool delta() const { return write == LASP_WRITE_DELTA; }
  bool bidirectional() const { return mask == LASP_MASK_BIDIRECTIONAL; }
  uint64_t state_bytes() const;  // of all states of one rank: what a message of the exchange carries
  bool operator==(const Shape &) const = default;
};

enum class Passes { kForward, kBackward, kBoth };

struct Config {
  std::string name;  // of a shape of --shapes
  Shape shape;
  int32_t ranks = 1, threads = 1, schedule = LASP_SCHEDULE_AUTO, cache = LASP_CACHE_CHUNKS, chunk = 0;
  int64_t segment = 0;
  int32_t device = LASP_DEVICE_CPU;
  bool decay_gradient = true;  // backward gives d_decay too
  bool graph = false;          // CUDA: the calls are replayed from a graph
  Passes passes = Passes::kBoth;

  bool on_cuda() const { return device == LASP_DEVICE_CUDA; }
  bool has_backward() const { return passes != Passes::kForward; }
  // Rank r holds [first_token(r), first_token(r + 1)); whole segments.
  int64_t first_token(int32_t rank) const {
    const int64_t unit = segment > 0 ? segment : 1, units = (shape.tokens + unit - 1) / unit;
    return std::min(units * rank / ranks * unit, shape.tokens);
  }
  lasp_problem problem(int32_t rank) const;
};

// FLOP of one pass over the whole problem at chunk C. Per token and output head, the causal products halved:
//   causal         forward (2CK + 2CV) / 2 + 4KV    backward (6CK + 4CV) / 2 + 8KV
//   bidirectional  forward 4KV                      backward 8KV
//   delta rule     forward 2C(K + V) + 6KV + CC/3   backward 6C(K + V) + 14KV + CC/3
double count_flop(const Shape &shape, int32_t chunk, bool backward);

}  // namespace bench
