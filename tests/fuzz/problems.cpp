#include "problems.h"

#include <cmath>

#include "support/strided_layout.h"

namespace lasp_fuzz {
namespace {

using lasp_test::strided;

constexpr int32_t lasp_problem::*kInt32Fields[] = {&lasp_problem::heads_q,     &lasp_problem::heads_k,
                                                   &lasp_problem::heads_v,     &lasp_problem::head_dim_k,
                                                   &lasp_problem::head_dim_v,  &lasp_problem::dtype,
                                                   &lasp_problem::decay,       &lasp_problem::write,
                                                   &lasp_problem::scale_given, &lasp_problem::mask,
                                                   &lasp_problem::schedule,    &lasp_problem::pieces,
                                                   &lasp_problem::cache,       &lasp_problem::chunk,
                                                   &lasp_problem::backward,    &lasp_problem::broadcast_final_state,
                                                   &lasp_problem::ownership};
constexpr int64_t lasp_problem::*kInt64Fields[] = {&lasp_problem::batch, &lasp_problem::tokens,
                                                   &lasp_problem::max_sequences, &lasp_problem::segment};
constexpr lasp_layout lasp_problem::*kLayouts[] = {&lasp_problem::q,
                                                   &lasp_problem::k,
                                                   &lasp_problem::v,
                                                   &lasp_problem::o,
                                                   &lasp_problem::dq,
                                                   &lasp_problem::dk,
                                                   &lasp_problem::dv,
                                                   &lasp_problem::d_o,
                                                   &lasp_problem::decay_layout,
                                                   &lasp_problem::d_decay_layout,
                                                   &lasp_problem::beta_layout,
                                                   &lasp_problem::d_beta_layout};

// Kinds of problems, by the bits of the first flags.
enum Flags : uint8_t {
  kPacked = 1,
  kStrided = 2,
  kSegment = 4,
  kGrouped = 8,
  kForwardOnly = 16,
  kIncoming = 32,
  kBroadcast = 64,
  kNarrowDecay = 128
};

void choose_kinds(Draw &in, lasp_problem &p, uint8_t flags) {
  p.decay = in.below(4);
  p.dtype = LASP_FLOAT32 + in.below(3);
  if ((flags & kNarrowDecay) != 0 && (p.decay == LASP_DECAY_SCALAR || p.decay == LASP_DECAY_CHANNEL))
    p.decay_layout.dtype = p.d_decay_layout.dtype = p.dtype;
  if (p.decay == LASP_DECAY_NONE && in.rarely(4)) p.mask = LASP_MASK_BIDIRECTIONAL;
  p.schedule = in.below(5);
  p.pieces = in.rarely(4) ? in.below(5) : 0;
  p.cache = (flags & kIncoming) != 0 ? LASP_CACHE_INCOMING : LASP_CACHE_CHUNKS;
  p.backward = (flags & kForwardOnly) == 0;
  p.broadcast_final_state = (flags & kBroadcast) != 0;
  if (in.rarely(8)) p.scale_given = 1, p.scale = in.take<float>();
}

void choose_sizes(Draw &in, lasp_problem &p, uint8_t flags, int32_t most_dim) {
  constexpr int32_t kHeads[] = {1, 2, 4, 6}, kDims[] = {8, 8, 16, 8, 24, 16, 40, 64};
  constexpr int32_t kLargeChunks[] = {0, 64, 128, 256};
  p.heads_q = p.heads_k = p.heads_v = in.one_of(kHeads);
  if ((flags & kGrouped) != 0) {
    const int32_t whole = p.heads_q;
    p.heads_k = in.below(2) != 0 ? 1 : whole;
    p.heads_v = in.below(2) != 0 ? p.heads_k : whole;
    if (in.rarely(4)) p.heads_q = whole % 2 == 0 ? whole / 2 : 1;
  }
  p.chunk = in.rarely(24) ? in.one_of(kLargeChunks) : 16 + 16 * in.below(2);
  const int32_t most = p.chunk == 16 || p.chunk == 32 ? most_dim : 8;  // tiles of a large chunk are large enough
  p.head_dim_k = std::min(in.one_of(kDims), most);
  p.head_dim_v = std::min(in.one_of(kDims), most);
}

// Room for so many sequences, and the ranks' shares of some tokens.
void pack(Draw &in, std::span<lasp_problem> ranks) {
  const int32_t count = 1 + in.below(7);
  int64_t left = in.below(120);
  for (lasp_problem &p : ranks) {
    p.batch = 1;
    p.tokens = &p == &ranks.back() ? left : in.below(256) % (left + 1);
    left -= p.tokens;
    p.max_sequences = count;
  }
}

// Legal strides of the three orders in use: heads before tokens, a row wider than needed, batch inside.
lasp_layout strides_in(int32_t style, int64_t batch, int64_t tokens, int64_t heads, int64_t dim) {
  switch (style) {
    case 0: return strided(heads * tokens * dim, dim, tokens * dim);
    case 1: return strided(tokens * (heads * dim + 8), heads * dim + 8, dim);
    default: return strided(heads * dim, batch * heads * dim, dim);
  }
}

void lay_out(lasp_problem &p, int32_t style, uint16_t which) {
  const int64_t heads = std::max({p.heads_q, p.heads_k, p.heads_v}), k = p.head_dim_k, v = p.head_dim_v;
  const int64_t decay = p.decay == LASP_DECAY_CHANNEL ? k : 1;
  const int64_t own_heads[] = {p.heads_q, p.heads_k, p.heads_v, heads, p.heads_q,
                               p.heads_k, p.heads_v, heads,     heads, heads};
  const int64_t dims[] = {k, k, v, v, k, k, v, v, decay, decay};
  for (size_t i = 0; i < 10; ++i)
    if (((which >> i) & 1) != 0 && (i < 8 || p.decay == LASP_DECAY_SCALAR || p.decay == LASP_DECAY_CHANNEL)) {
      lasp_layout &layout = p.*kLayouts[i];
      const int32_t dtype = layout.dtype;
      layout = strides_in(style, p.batch, p.tokens, own_heads[i], dims[i]);
      layout.dtype = dtype;
    }
}

// Numbers that would legally cost a table of a gigabyte, or its time, become small; larger ones stay: they are
// refused.
void tame(lasp_problem &p) {
  constexpr int64_t kBeyond = int64_t{1} << 34;
  const auto below = [](auto &value, auto bound, auto refused) {
    if (value >= bound && value < refused) value &= bound - 1;
  };
  below(p.batch, int64_t{16}, kBeyond);
  below(p.tokens, int64_t{2048}, kBeyond);
  below(p.max_sequences, int64_t{64}, (int64_t{1} << 24) + 1);
  for (int32_t lasp_problem::*heads : {&lasp_problem::heads_q, &lasp_problem::heads_k, &lasp_problem::heads_v})
    below(p.*heads, int32_t{64}, int32_t{1} << 29);
  for (int32_t lasp_problem::*dim : {&lasp_problem::head_dim_k, &lasp_problem::head_dim_v})
    below(p.*dim, int32_t{32}, int32_t{512});
}

void damage(Draw &in, std::span<lasp_problem> ranks) {
  const auto one = static_cast<size_t>(in.below(static_cast<int32_t>(ranks.size())));
  const bool all = in.rarely(2);
  const int32_t kind = in.below(15), field = in.byte();
  const int32_t small = in.nasty32();
  const int64_t large = kind > 8 ? in.nasty64() : 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!all && r != one) continue;
    lasp_problem &p = ranks[r];
    if (kind <= 8) {
      p.*kInt32Fields[static_cast<size_t>(field) % std::size(kInt32Fields)] = small;
    } else if (kind <= 12) {
      p.*kInt64Fields[static_cast<size_t>(field) % std::size(kInt64Fields)] = large;
    } else {
      lasp_layout &layout = p.*kLayouts[static_cast<size_t>(field) % std::size(kLayouts)];
      switch (field / 12 % 6) {
        case 0: layout.dtype = small; break;
        case 1: layout.flags = small; break;
        case 2: layout.reserved[field % 2] = large; break;
        case 3: layout.batch = large; break;
        case 4: layout.token = large; break;
        default: layout.head = large;
      }
    }
    tame(p);
  }
}

void count_features(const lasp_problem &p, uint8_t flags, size_t nranks) {
  const int32_t kind = (p.decay * 3 + p.dtype - LASP_FLOAT32) * 5 + p.schedule;
  seen(kind * 8 + (flags & (kPacked | kSegment)) % 8 + ((flags & kGrouped) != 0 ? 2 : 0));  // below 480
  seen(512 + (p.decay * 3 + p.dtype - LASP_FLOAT32) * 32 + (flags >> 3));                   // below 896
  seen(1024 + (static_cast<int32_t>(nranks) * 8 + p.schedule) * 2 + p.mask);
}

}  // namespace

void plausible(Draw &in, std::span<lasp_problem> ranks, const ProblemOptions &options) {
  constexpr int32_t kUsual = 128;  // the chunk that 0 means
  lasp_problem p = LASP_PROBLEM_INIT;
  auto flags = in.byte();
  if (options.packed && !in.rarely(16)) flags |= kPacked;
  choose_kinds(in, p, flags);
  choose_sizes(in, p, flags, options.most_dim);
  if ((flags & kSegment) != 0) {
    p.segment = (p.chunk != 0 ? p.chunk : kUsual) * (1 + in.below(3));
    if (!in.rarely(8)) {  // or the combinations that are refused
      p.mask = LASP_MASK_CAUSAL;
      if (p.schedule == LASP_SCHEDULE_ALL_GATHER || p.schedule >= LASP_SCHEDULE_DOUBLING)
        p.schedule = LASP_SCHEDULE_ALL_SCAN;
    }
  }
  p.batch = 1 + in.below(3) % 2;
  for (lasp_problem &rank : ranks) rank = p;
  if ((flags & kPacked) != 0) {
    pack(in, ranks);
  } else {
    for (lasp_problem &rank : ranks) rank.tokens = in.below(40);
  }
  if (p.segment != 0 && !in.rarely(4) && ranks.size() > 1)  // cuts at multiples, as the segment wants them
    for (size_t r = 0; r + 1 < ranks.size(); ++r) {
      const int64_t excess = ranks[r].tokens % p.segment;
      ranks[r].tokens -= excess;
      ranks[r + 1].tokens += excess;
    }
  if ((flags & kStrided) != 0) {
    const int32_t style = in.below(3);
    const auto which = in.take<uint16_t>();
    for (lasp_problem &rank : ranks) lay_out(rank, style, static_cast<uint16_t>(~which));
  }
  count_features(p, flags, ranks.size());
  if (options.damage && in.rarely(4))
    for (int32_t times = 1 + in.below(2); times > 0; --times) damage(in, ranks);
}

lasp_problem raw_problem(Draw &in) {
  lasp_problem p = LASP_PROBLEM_INIT;
  in.take(&p, sizeof p);
  if (p.chunk == 0 && !in.rarely(8)) p.chunk = 16;  // the default's tiles cost most of an execution
  tame(p);
  return p;
}

}  // namespace lasp_fuzz
