// A problem as the engine sees it: the caller's lasp_problem after validation, with every default filled in.
#pragma once

#include <lasp/lasp.h>

#include <cstdint>

namespace lasp {

enum class DType : int32_t { kFloat32 = LASP_FLOAT32, kBFloat16 = LASP_BFLOAT16, kFloat16 = LASP_FLOAT16 };
enum class Decay : int32_t {
  kNone = LASP_DECAY_NONE,
  kHead = LASP_DECAY_HEAD,
  kScalar = LASP_DECAY_SCALAR,
  kChannel = LASP_DECAY_CHANNEL
};

inline constexpr int32_t kMaxHeadDim = 512;

constexpr int64_t size_of(DType type) { return type == DType::kFloat32 ? 4 : 2; }

// Strides in elements; the last dimension (if any) is contiguous. 64 bits throughout: a tensor may hold more
// than 2^31 elements.
struct Layout {
  int64_t batch = 0, token = 0, head = 0;

  constexpr int64_t offset(int64_t b, int64_t t, int64_t h) const { return b * batch + t * token + h * head; }
  // Elements from the first to one past the last of a [B, T, heads, dim] tensor; 0 when it is empty.
  constexpr int64_t extent(int64_t b, int64_t t, int64_t heads, int64_t dim) const {
    return b == 0 || t == 0 || heads == 0 ? 0 : offset(b - 1, t - 1, heads - 1) + dim;
  }
};

struct Problem {
  int64_t batch = 1, tokens = 0, token_begin = 0;  // token_begin: from the agreement
  int32_t heads_q = 1, heads_k = 1, heads_v = 1, heads = 1;
  int32_t head_dim_k = 0, head_dim_v = 0;
  DType dtype = DType::kFloat32, decay_dtype = DType::kFloat32;  // of q, k, v, o and d_o; of the decay
  DType dq_dtype = DType::kFloat32, dk_dtype = DType::kFloat32, dv_dtype = DType::kFloat32,
        d_decay_dtype = DType::kFloat32, beta_dtype = DType::kFloat32, d_beta_dtype = DType::kFloat32;
  Decay decay = Decay::kNone;
  bool delta = false;  // the write
  bool bidirectional = false;
  float scale = 1;
  int32_t ownership = LASP_OWN_CONTIGUOUS, runs = 1;  // runs: of this rank's tokens, from the agreement
  bool packed = false;                                // passes bring a Packing (packing.h)
  bool each = false;          // each of its sequences is cut by itself: LASP_OWN_ZIGZAG_EACH
  int64_t num_sequences = 1;  // N; packed: the most that a pass may have
  int32_t schedule = LASP_SCHEDULE_AUTO, pieces = 0;
  bool cache_chunks = true, backward = true, broadcast_final_state = false;
  int32_t chunk = 128;
  int64_t segment = 0;  // tokens, a multiple of chunk: one order of sums for every split; 0: any order
  Layout q, k, v, o, decay_layout, beta_layout, dq, dk, dv, d_o, d_decay_layout, d_beta_layout;

  // States that cross a border of two ranks, and rows of the map of a run.
  int64_t map_rows() const { return each ? num_sequences : batch; }
  // What LASP_SCHEDULE_RELAY serves.
  bool may_relay() const { return !packed && !bidirectional && ownership == LASP_OWN_CONTIGUOUS; }
  int64_t state_size() const { return int64_t{head_dim_k} * head_dim_v; }
  // Head h of the output reads these heads of the inputs.
  int32_t q_head(int32_t h) const { return static_cast<int32_t>(int64_t{h} * heads_q / heads); }
  int32_t k_head(int32_t h) const { return static_cast<int32_t>(int64_t{h} * heads_k / heads); }
  int32_t v_head(int32_t h) const { return static_cast<int32_t>(int64_t{h} * heads_v / heads); }
};

// Checks the caller's struct on its own (no other rank is asked) and fills in defaults. Throws Error.
Problem validate(const lasp_problem &problem, int32_t nranks);
// Throws where its list of runs, which has been checked, gives this rank other tokens than it says.
void require_own_tokens(const lasp_problem &problem, int32_t rank);

}  // namespace lasp
