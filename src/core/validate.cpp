// From the caller's lasp_problem to a Problem: every refusal that one rank can find on its own.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/status.h"
#include "core/layout.h"
#include "core/names.h"
#include "core/problem.h"
#include "core/schedules.h"
#include "core/token_partition.h"

namespace lasp {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 62;  // of one tensor: leaves room for address arithmetic
constexpr int64_t kMostSequences = int64_t{1} << 24, kMostListedRuns = int64_t{1} << 24;

long long ll(int64_t value) { return static_cast<long long>(value); }

std::string number(int64_t value) { return std::to_string(value); }

void require_one_of(const char *name, int32_t value, std::initializer_list<int32_t> legal, const char *values,
                    std::string (*text)(int64_t) = number) {
  if (std::find(legal.begin(), legal.end(), value) == legal.end())
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s = %s: must be %s", name, text(value).c_str(), values);
}

void require_flag(const char *name, int32_t value) { require_one_of(name, value, {0, 1}, "0 or 1"); }

void require_positive(const char *name, int64_t value) {
  if (value < 1) throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s = %lld: must be at least 1", name, ll(value));
}

void check_head_dim(const char *name, int32_t value) {
  require_positive(name, value);
  if (value % 8 != 0) throw fail(LASP_ERROR_UNSUPPORTED, "%s = %d: not a multiple of 8", name, value);
  if (value > kMaxHeadDim) throw fail(LASP_ERROR_UNSUPPORTED, "%s = %d: larger than %d", name, value, kMaxHeadDim);
}

}  // namespace

int64_t checked_bytes(const char *what, std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product) || product > kMaxBytes)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s would need more than 2^62 bytes", what);
  return product;
}

Layout check_strides(const char *name, const lasp_layout &given, const Shape &shape) {
  checked_bytes(name, {shape.batch, shape.tokens, shape.heads, shape.dim, shape.bytes});
  if (given.flags != LASP_LAYOUT_STRIDED) {
    const int64_t token = shape.heads * shape.dim;
    return {shape.tokens * token, token, shape.dim};
  }
  struct Axis {
    const char *name;
    int64_t stride, extent;
  };
  std::array<Axis, 3> axes{{{"batch", given.batch, shape.batch},
                            {"token", given.token, shape.tokens},
                            {"head", given.head, shape.heads}}};
  for (const Axis &axis : axes)
    if (axis.stride < 0)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s.%s = %lld: strides must not be negative", name, axis.name,
                 ll(axis.stride));
  std::sort(axes.begin(), axes.end(), [](const Axis &a, const Axis &b) { return a.stride < b.stride; });
  int64_t span = shape.dim;  // elements covered by the axes so far
  for (const Axis &axis : axes) {
    if (axis.extent <= 1 || shape.tokens == 0) continue;  // one place, or none
    if (shape.input && axis.stride == 0) continue;
    if (axis.stride < span)
      throw fail(LASP_ERROR_INVALID_ARGUMENT,
                 "%s.%s = %lld: elements would overlap, the stride must be at least %lld here", name, axis.name,
                 ll(axis.stride), ll(span));
    int64_t reach;
    if (__builtin_mul_overflow(axis.stride, axis.extent - 1, &reach) ||
        __builtin_add_overflow(span, reach, &span) || span > kMaxBytes / shape.bytes)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s.%s = %lld: the tensor would reach over more than 2^62 bytes",
                 name, axis.name, ll(axis.stride));
  }
  // A stride that no element needs may be anything; it is still added to pointers that nobody reads by.
  const auto tame = [&](int64_t stride) { return stride > kMaxBytes / shape.bytes ? 0 : stride; };
  return {tame(given.batch), tame(given.token), tame(given.head)};
}

DType check_type(const char *name, const lasp_layout &given, DType standard) {
  const std::string field = name;
  require_one_of((field + ".dtype").c_str(), given.dtype,
                 {LASP_DTYPE_DEFAULT, LASP_FLOAT32, LASP_BFLOAT16, LASP_FLOAT16},
                 "LASP_DTYPE_DEFAULT, LASP_FLOAT32, LASP_BFLOAT16 or LASP_FLOAT16", dtype_name);
  require_one_of((field + ".flags").c_str(), given.flags, {0, LASP_LAYOUT_STRIDED}, "0 or LASP_LAYOUT_STRIDED");
  for (const int64_t reserved : given.reserved)
    if (reserved != 0) throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s.reserved: must be 0", name);
  if (given.flags == 0 && (given.batch != 0 || given.token != 0 || given.head != 0))
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s: has strides, but %s.flags lacks LASP_LAYOUT_STRIDED", name, name);
  return given.dtype == LASP_DTYPE_DEFAULT ? standard : static_cast<DType>(given.dtype);
}

namespace {

void check_heads(Problem &p, const lasp_problem &given) {
  require_positive("heads_q", given.heads_q);
  require_positive("heads_k", given.heads_k);
  require_positive("heads_v", given.heads_v);
  p.heads_q = given.heads_q;
  p.heads_k = given.heads_k;
  p.heads_v = given.heads_v;
  p.heads = std::max({p.heads_q, p.heads_k, p.heads_v});
  const auto divides = [&](const char *name, int32_t heads) {
    if (p.heads % heads != 0)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s = %d: must divide the largest head count, %d", name, heads,
                 p.heads);
  };
  divides("heads_q", p.heads_q);
  divides("heads_k", p.heads_k);
  divides("heads_v", p.heads_v);
  check_head_dim("head_dim_k", given.head_dim_k);
  check_head_dim("head_dim_v", given.head_dim_v);
  p.head_dim_k = given.head_dim_k;
  p.head_dim_v = given.head_dim_v;
}

void check_kinds(Problem &p, const lasp_problem &given) {
  require_one_of("dtype", given.dtype, {LASP_FLOAT32, LASP_BFLOAT16, LASP_FLOAT16},
                 "LASP_FLOAT32, LASP_BFLOAT16 or LASP_FLOAT16", dtype_name);
  require_one_of("decay", given.decay, {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL},
                 "one of LASP_DECAY_*");
  require_one_of("write", given.write, {LASP_WRITE_ADDITIVE, LASP_WRITE_DELTA}, "one of LASP_WRITE_*");
  require_one_of("mask", given.mask, {LASP_MASK_CAUSAL, LASP_MASK_BIDIRECTIONAL}, "one of LASP_MASK_*");
  if (given.write == LASP_WRITE_DELTA && given.mask == LASP_MASK_BIDIRECTIONAL)
    throw fail(LASP_ERROR_UNSUPPORTED,
               "mask = LASP_MASK_BIDIRECTIONAL: not with write = LASP_WRITE_DELTA, where "
               "the order of the tokens counts");
  if (given.mask == LASP_MASK_BIDIRECTIONAL && given.decay != LASP_DECAY_NONE)
    throw fail(LASP_ERROR_UNSUPPORTED, "mask = LASP_MASK_BIDIRECTIONAL: needs decay = LASP_DECAY_NONE");
  p.dtype = static_cast<DType>(given.dtype);
  p.decay = static_cast<Decay>(given.decay);
  p.delta = given.write == LASP_WRITE_DELTA;
  p.bidirectional = given.mask == LASP_MASK_BIDIRECTIONAL;
}

void check_scale(Problem &p, const lasp_problem &given) {
  require_flag("scale_given", given.scale_given);
  if (!std::isfinite(given.scale)) throw fail(LASP_ERROR_INVALID_ARGUMENT, "scale: must be finite");
  if (given.scale_given == 0 && given.scale != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT,
               "scale = %g: scale_given is 0, which takes 1/sqrt(head_dim_k); set it to 1", double(given.scale));
  p.scale = given.scale_given == 1 ? given.scale : static_cast<float>(1.0 / std::sqrt(double(p.head_dim_k)));
}

// A problem without the tensor has no layout of it.
void check_absent(const char *name, const lasp_layout &given, const char *why) {
  check_type(name, given, DType::kFloat32);
  if (given.dtype != LASP_DTYPE_DEFAULT || given.flags != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "%s: must be LASP_LAYOUT_INIT, since %s", name, why);
}

// Only these two types are computed beside `of`, the type of what the sentence calls `of_name`.
void require_mix(const char *name, DType type, std::initializer_list<DType> served, const char *of_name, DType of) {
  if (std::find(served.begin(), served.end(), type) != served.end()) return;
  throw fail(LASP_ERROR_UNSUPPORTED, "%s.dtype = %s, %s = %s: this mix of types is not computed", name,
             dtype_name(static_cast<int64_t>(type)).c_str(), of_name, dtype_name(static_cast<int64_t>(of)).c_str());
}

void check_decay_types(Problem &p, const lasp_problem &given) {
  p.decay_dtype = p.d_decay_dtype = DType::kFloat32;
  if (p.decay == Decay::kNone || p.decay == Decay::kHead) {
    const char *why = p.decay == Decay::kNone ? "decay is LASP_DECAY_NONE"
                                              : "a decay per head, [H], is always contiguous float32";
    check_absent("decay_layout", given.decay_layout, why);
    check_absent("d_decay_layout", given.d_decay_layout, why);
    return;
  }
  p.decay_dtype = check_type("decay_layout", given.decay_layout, DType::kFloat32);
  p.d_decay_dtype = check_type("d_decay_layout", given.d_decay_layout, DType::kFloat32);
  require_mix("decay_layout", p.decay_dtype, {DType::kFloat32, p.dtype}, "dtype", p.dtype);
  if (p.backward)
    require_mix("d_decay_layout", p.d_decay_dtype, {p.decay_dtype, DType::kFloat32}, "decay_layout.dtype",
                p.decay_dtype);
}

void check_beta_types(Problem &p, const lasp_problem &given) {
  if (!p.delta) {
    check_absent("beta_layout", given.beta_layout, "write is LASP_WRITE_ADDITIVE");
    check_absent("d_beta_layout", given.d_beta_layout, "write is LASP_WRITE_ADDITIVE");
    return;
  }
  p.beta_dtype = check_type("beta_layout", given.beta_layout, DType::kFloat32);
  p.d_beta_dtype = check_type("d_beta_layout", given.d_beta_layout, DType::kFloat32);
  require_mix("beta_layout", p.beta_dtype, {DType::kFloat32, p.dtype}, "dtype", p.dtype);
  if (p.backward)
    require_mix("d_beta_layout", p.d_beta_dtype, {p.beta_dtype, DType::kFloat32}, "beta_layout.dtype",
                p.beta_dtype);
}

void check_types(Problem &p, const lasp_problem &given) {
  const auto type_of = [&](const char *name, const lasp_layout &layout, bool used) {
    const DType type = check_type(name, layout, p.dtype);
    if (used) require_mix(name, type, {p.dtype}, "dtype", p.dtype);
    return type;
  };
  const auto gradient_type = [&](const char *name, const lasp_layout &layout) {
    const DType type = check_type(name, layout, p.dtype);
    if (p.backward) require_mix(name, type, {p.dtype, DType::kFloat32}, "dtype", p.dtype);
    return type;
  };
  require_flag("backward", given.backward);
  p.backward = given.backward == 1;
  type_of("q", given.q, true);
  type_of("k", given.k, true);
  type_of("v", given.v, true);
  type_of("o", given.o, true);
  type_of("d_o", given.d_o, p.backward);
  p.dq_dtype = gradient_type("dq", given.dq);
  p.dk_dtype = gradient_type("dk", given.dk);
  p.dv_dtype = gradient_type("dv", given.dv);
  check_decay_types(p, given);
  check_beta_types(p, given);
}

void check_tokens(Problem &p, const lasp_problem &given) {
  require_positive("batch", given.batch);
  if (given.tokens < 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "tokens = %lld: must not be negative", ll(given.tokens));
  if (given.max_sequences < 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "max_sequences = %lld: must not be negative", ll(given.max_sequences));
  p.batch = given.batch;
  p.tokens = given.tokens;
  p.packed = given.max_sequences > 0;
  p.num_sequences = p.packed ? given.max_sequences : given.batch;
  if (p.packed && given.batch != 1)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "batch = %lld: must be 1 with max_sequences", ll(given.batch));
  if (given.max_sequences > kMostSequences)
    throw fail(LASP_ERROR_UNSUPPORTED, "max_sequences = %lld: more than 2^24", ll(given.max_sequences));
}

void check_runs(const lasp_problem &given, int32_t nranks) {
  if (given.runs == nullptr) throw fail(LASP_ERROR_INVALID_ARGUMENT, "runs: null, but ownership = LASP_OWN_RUNS");
  if (given.num_runs < 1 || given.num_runs > kMostListedRuns)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "num_runs = %lld: must be 1 to 2^24", ll(given.num_runs));
  const std::span<const lasp_run> runs(given.runs, static_cast<size_t>(given.num_runs));
  int64_t total = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const lasp_run &run = runs[i];
    if (run.tokens < 0)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "runs[%zu].tokens = %lld: must not be negative", i, ll(run.tokens));
    if (run.rank < 0 || run.rank >= nranks)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "runs[%zu].rank = %d: must be 0 to %d", i, run.rank, nranks - 1);
    if (run.reserved != 0)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "runs[%zu].reserved = %d: must be 0", i, run.reserved);
    if (__builtin_add_overflow(total, run.tokens, &total) || total > int64_t{1} << 60)
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "runs: more than 2^60 tokens");
  }
  const TokenRanges ranges = listed_ranges(nranks, runs);
  std::vector<int32_t> of_rank(static_cast<size_t>(nranks), 0);
  for (const int32_t rank : ranges.owner)
    if (++of_rank[static_cast<size_t>(rank)] > kMostRuns)
      throw fail(LASP_ERROR_UNSUPPORTED, "runs: rank %d has more than %d that are not neighbours", rank, kMostRuns);
}

void check_ownership(Problem &p, const lasp_problem &given, int32_t nranks) {
  require_one_of("ownership", given.ownership,
                 {LASP_OWN_CONTIGUOUS, LASP_OWN_ZIGZAG, LASP_OWN_ZIGZAG_EACH, LASP_OWN_RUNS}, "one of LASP_OWN_*",
                 ownership_name);
  p.ownership = given.ownership;
  p.each = p.ownership == LASP_OWN_ZIGZAG_EACH;
  const std::string name = ownership_name(p.ownership);
  if (p.ownership == LASP_OWN_RUNS) {
    check_runs(given, nranks);
  } else if (given.runs != nullptr || given.num_runs != 0) {
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "runs: given, but ownership = %s", name.c_str());
  }
  if (p.ownership == LASP_OWN_CONTIGUOUS) return;
  if (p.ownership != LASP_OWN_RUNS && p.tokens % 2 != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "tokens = %lld: must be even with ownership = %s", ll(p.tokens),
               name.c_str());
  if (p.each && !p.packed)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "ownership = %s: of packed sequences, but max_sequences = 0",
               name.c_str());
  if (p.bidirectional)
    throw fail(LASP_ERROR_UNSUPPORTED, "ownership = %s: not with mask = LASP_MASK_BIDIRECTIONAL", name.c_str());
  if (given.segment != 0)
    throw fail(LASP_ERROR_UNSUPPORTED, "ownership = %s: not with segment = %lld", name.c_str(), ll(given.segment));
}

// What a packed plan does not serve.
void check_packed(const Problem &p) {
  if (!p.packed) return;
  if (p.bidirectional)
    throw fail(LASP_ERROR_UNSUPPORTED, "max_sequences = %lld: not with mask = LASP_MASK_BIDIRECTIONAL",
               ll(p.num_sequences));
  if (p.broadcast_final_state)
    throw fail(LASP_ERROR_UNSUPPORTED,
               "broadcast_final_state = 1: not with max_sequences, where each pass has sequences of its own");
}

void check_settings(Problem &p, const lasp_problem &given) {
  if (given.schedule != LASP_SCHEDULE_AUTO && find_schedule(given.schedule) == nullptr)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "schedule = %d: must be one of LASP_SCHEDULE_*", given.schedule);
  if (given.pieces < 0 || given.pieces > 65536)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "pieces = %d: must be 0 to 65536", given.pieces);
  require_one_of("cache", given.cache, {LASP_CACHE_INCOMING, LASP_CACHE_CHUNKS}, "one of LASP_CACHE_*");
  require_one_of("chunk", given.chunk, {0, 16, 32, 64, 128, 256}, "0, 16, 32, 64, 128 or 256");
  require_flag("broadcast_final_state", given.broadcast_final_state);
  p.schedule = given.schedule;
  p.pieces = given.pieces;
  p.cache_chunks = given.cache == LASP_CACHE_CHUNKS;
  p.broadcast_final_state = given.broadcast_final_state == 1;
  // Larger chunks make larger GEMMs, but more work above the diagonal; docs/reference/performance.md and bench/
  // have the sweep. The delta rule multiplies more matrices of a chunk's square.
  p.chunk = given.chunk != 0 ? given.chunk : p.delta ? 64 : 128;
}

void check_segment(Problem &p, const lasp_problem &given) {
  p.segment = given.segment;
  if (p.segment == 0) return;
  if (p.segment < 0 || p.segment % p.chunk != 0)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "segment = %lld: must be 0 or a positive multiple of the chunk, %d",
               ll(p.segment), p.chunk);
  if (p.delta)
    throw fail(LASP_ERROR_UNSUPPORTED, "segment = %lld: not with write = LASP_WRITE_DELTA", ll(p.segment));
  if (p.bidirectional)
    throw fail(LASP_ERROR_UNSUPPORTED, "segment = %lld: not with mask = LASP_MASK_BIDIRECTIONAL", ll(p.segment));
  if (p.schedule != LASP_SCHEDULE_AUTO && !find_schedule(p.schedule)->serial)
    throw fail(LASP_ERROR_UNSUPPORTED,
               "schedule = %s: with a segment only LASP_SCHEDULE_RING and LASP_SCHEDULE_ALL_SCAN keep one order of "
               "sums",
               schedule_name(p.schedule).c_str());
}

// What passes that are those of a group of one cannot serve.
void check_relay(const Problem &p) {
  if (p.schedule != LASP_SCHEDULE_RELAY || p.may_relay()) return;
  const auto refuse = [](const std::string &why) {
    throw fail(LASP_ERROR_UNSUPPORTED, "schedule = LASP_SCHEDULE_RELAY: not with %s", why.c_str());
  };
  if (p.packed) refuse("max_sequences = " + std::to_string(p.num_sequences));
  if (p.bidirectional) refuse("mask = LASP_MASK_BIDIRECTIONAL, where states go both ways");
  refuse("ownership = " + ownership_name(p.ownership));
}

void check_layouts(Problem &p, const lasp_problem &given) {
  const int64_t k = p.head_dim_k, v = p.head_dim_v;
  const auto tensor = [&](const char *name, const lasp_layout &layout, int64_t heads, int64_t dim, DType type) {
    return check_strides(name, layout, {p.batch, p.tokens, heads, dim, size_of(type), false});
  };
  const auto input = [&](const char *name, const lasp_layout &layout, int64_t heads, int64_t dim, DType type) {
    return check_strides(name, layout, {p.batch, p.tokens, heads, dim, size_of(type), true});
  };
  p.q = input("q", given.q, p.heads_q, k, p.dtype);
  p.k = input("k", given.k, p.heads_k, k, p.dtype);
  p.v = input("v", given.v, p.heads_v, v, p.dtype);
  p.o = tensor("o", given.o, p.heads, v, p.dtype);
  p.dq = tensor("dq", given.dq, p.heads_q, k, p.dq_dtype);
  p.dk = tensor("dk", given.dk, p.heads_k, k, p.dk_dtype);
  p.dv = tensor("dv", given.dv, p.heads_v, v, p.dv_dtype);
  p.d_o = input("d_o", given.d_o, p.heads, v, p.dtype);
  if (p.decay == Decay::kScalar || p.decay == Decay::kChannel) {
    const int64_t dim = p.decay == Decay::kScalar ? 1 : k;
    p.decay_layout = input("decay_layout", given.decay_layout, p.heads, dim, p.decay_dtype);
    p.d_decay_layout = tensor("d_decay_layout", given.d_decay_layout, p.heads, dim, p.d_decay_dtype);
  }
  if (p.delta) {
    p.beta_layout = input("beta_layout", given.beta_layout, p.heads, 1, p.beta_dtype);
    p.d_beta_layout = tensor("d_beta_layout", given.d_beta_layout, p.heads, 1, p.d_beta_dtype);
    checked_bytes("the transitions [rows, H, K, K]", {p.map_rows(), p.heads, k, k, 4});
  }
  checked_bytes("the state buffers [N, H, K, V]", {p.num_sequences, p.heads, k, v, 4});
  // Chunk states, in the state cache and the workspace: at most one per token.
  checked_bytes("the chunk states", {p.batch, p.tokens + p.num_sequences, p.heads, k, v, 4});
}

// What the plan keeps on the host per batch row and chunk, and per chunk and head, stays below a gigabyte: a slip
// of the keyboard in `tokens` shall be a sentence and not a machine without memory. 2^24 chunks of 128 are 2^31
// tokens.
void check_bookkeeping(const Problem &p) {
  constexpr int64_t kMostChunks = int64_t{1} << 24, kMostItems = int64_t{1} << 28;
  const int64_t short_chunks = p.packed ? std::min(p.num_sequences, p.tokens) : 0;
  const int64_t per_row = p.tokens / p.chunk + 1 + short_chunks;
  if (p.batch > kMostChunks / per_row)
    throw fail(
        LASP_ERROR_UNSUPPORTED,
        "tokens = %lld, batch = %lld: more than 2^24 chunks of %d tokens on one rank; use a larger chunk or more "
        "ranks",
        ll(p.tokens), ll(p.batch), p.chunk);
  if (p.heads > kMostItems / (p.batch * per_row))
    throw fail(
        LASP_ERROR_UNSUPPORTED,
        "heads = %d, tokens = %lld, batch = %lld: more than 2^28 chunks of %d tokens over all heads on one rank",
        p.heads, ll(p.tokens), ll(p.batch), p.chunk);
}

}  // namespace

void require_own_tokens(const lasp_problem &given, int32_t rank) {
  if (given.ownership != LASP_OWN_RUNS) return;
  int64_t tokens = 0;
  for (int64_t i = 0; i < given.num_runs; ++i)
    if (given.runs[i].rank == rank) tokens += given.runs[i].tokens;
  if (tokens != given.tokens)
    throw fail(LASP_ERROR_INVALID_ARGUMENT, "tokens = %lld: runs has %lld of rank %d", ll(given.tokens), ll(tokens),
               rank);
}

Problem validate(const lasp_problem &given, int32_t nranks) {
  Problem p;
  check_heads(p, given);
  check_kinds(p, given);
  check_scale(p, given);
  check_types(p, given);
  check_tokens(p, given);
  check_settings(p, given);
  check_ownership(p, given, nranks);
  check_packed(p);
  check_segment(p, given);
  check_relay(p);
  check_layouts(p, given);
  check_bookkeeping(p);
  checked_bytes("the states of all ranks", {p.map_rows(), p.heads, p.head_dim_k, p.head_dim_v, 4, nranks});
  return p;
}

}  // namespace lasp
