// What is drawn, and how often: small problems mostly, since edges (of chunks, ranks and sequences) lie closest
// there.
#include "differential/draw.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>

#include "support/group_params.h"

namespace lasp_test {
namespace {

constexpr const char *kDtypes[] = {"default", "float32", "bfloat16", "float16"};
constexpr const char *kDecayNames[] = {"none", "head", "scalar", "channel"};
constexpr const char *kSplits[] = {"even", "ragged", "sparse", "sparse_reversed", "free"};
constexpr const char *kLayouts[] = {"contiguous", "head_major", "packed_qkv", "padded", "mixed"};

int64_t tokens(Dice &dice) {
  switch (dice.between(0, 9)) {
    case 0: return dice.between(0, 4);
    case 1:
    case 2:
    case 3: return dice.between(5, 40);
    case 4: return dice.between(160, 400);
    default: return dice.between(41, 160);
  }
}

void decay(Dice &dice, Case &c) {
  constexpr double kConstants[] = {-1e-6, -0.01, -0.7,   -5.0,
                                   -20.0, -60.0, -200.0, -std::numeric_limits<double>::infinity()};
  c.decay = static_cast<int32_t>(dice.between(LASP_DECAY_NONE, LASP_DECAY_CHANNEL));
  c.mean_decay = std::pow(10.0, -4.0 + 4.5 * dice.uniform());
  if (dice.one_in(4)) c.constant_decay = dice.one_of(kConstants);
  if (c.decay == LASP_DECAY_NONE && dice.one_in(4)) c.mask = LASP_MASK_BIDIRECTIONAL;
}

// Integers of at most 2 on both sides of 514 = 4 * 128 + 2 in a state and 32 * 2 * 514 in a result: below 2^24.
void make_exact(Case &c) {
  c.exact = true, c.scale = 1.0f;
  c.tokens = std::min<int64_t>(c.tokens, 128);
  c.head_dim_k = std::min(c.head_dim_k, 32), c.head_dim_v = std::min(c.head_dim_v, 32);
}

void shape(Dice &dice, Case &c) {
  constexpr int32_t kDims[] = {8, 8, 16, 16, 24, 32, 40, 64, 72, 128};
  constexpr int64_t kMostWork = 3'000'000;  // elements of state, times tokens: what the oracle's time follows
  c.batch = dice.between(1, 3);
  c.tokens = tokens(dice);
  draw_heads(dice, c);
  c.head_dim_k = dice.one_of(kDims), c.head_dim_v = dice.one_of(kDims);
  decay(dice, c);
  if (dice.one_in(2)) c.scale = static_cast<float>(0.05 + 2.0 * dice.uniform());
  if (c.decay == LASP_DECAY_NONE && dice.one_in(4)) make_exact(c);
  const int64_t per_token = c.batch * c.heads() * c.head_dim_k * c.head_dim_v;
  c.tokens = std::min(c.tokens, std::max<int64_t>(kMostWork / per_token, 8));
  if (dice.one_in(3) && c.mask == LASP_MASK_CAUSAL) draw_packing(dice, c);
}

void memory(Dice &dice, Case &c) {
  constexpr int32_t kChunks[] = {0, 0, 16, 16, 32, 64, 128, 256};
  c.dtype = static_cast<int32_t>(dice.between(LASP_FLOAT32, LASP_FLOAT16));
  c.decay_dtype = dice.one_in(2) ? c.dtype : int32_t{LASP_FLOAT32};
  c.layout = static_cast<Layout>(dice.between(0, 4));
  c.states = !dice.one_in(4);
  c.cache = dice.one_in(2) ? LASP_CACHE_CHUNKS : LASP_CACHE_INCOMING;
  c.chunk = dice.one_of(kChunks);
  c.pieces = static_cast<int32_t>(dice.between(0, 5));
  c.cpu_threads = static_cast<int32_t>(dice.one_in(3) ? dice.between(2, 3) : 1);
  c.broadcast = dice.one_in(3) && c.cu_seqlens.empty();
  c.aligned = dice.one_in(2);
}

// One order of sums for every split: ranks are then cut at multiples of the segment.
void segment(Dice &dice, Drawn &d) {
  constexpr int32_t kChunks[] = {16, 16, 16, 32, 64, 128};
  constexpr int32_t kSchedules[] = {LASP_SCHEDULE_AUTO, LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_SCAN};
  d.problem.chunk = dice.one_of(kChunks);
  d.problem.segment = d.problem.chunk * (dice.one_in(2) ? 1 : dice.between(1, 5));
  d.options.schedule = dice.one_of(kSchedules);
}

}  // namespace

// One of the three has all H heads; each of the others has a divisor of them.
void draw_heads(Dice &dice, Case &c) {
  const int32_t all = static_cast<int32_t>(dice.between(1, 6));
  int32_t *const counts[] = {&c.heads_q, &c.heads_k, &c.heads_v};
  for (int32_t *count : counts) {
    do *count = static_cast<int32_t>(dice.between(1, all));
    while (all % *count != 0);
    if (dice.one_in(2)) *count = all;
  }
  *dice.one_of(counts) = all;
}

void draw_delta_rule(uint64_t seed, uint64_t index, Case &c) {
  constexpr double kCorrelations[] = {0.0, 0.0, 0.5, 0.9}, kMost[] = {1.0, 1.0, 2.0};
  Dice dice(seed + 0xde17a, index);
  if (c.mask != LASP_MASK_CAUSAL || c.segment > 0 || !dice.one_in(3)) return;
  c.delta = true;
  c.beta_dtype = dice.one_in(2) ? c.dtype : int32_t{LASP_FLOAT32};
  c.most_beta = dice.one_of(kMost), c.key_correlation = dice.one_of(kCorrelations);
  if (dice.one_in(5)) c.constant_beta = 1.0;
}

// Offsets anywhere; equal ones are empty sequences, which also stand at both ends.
void draw_packing(Dice &dice, Case &c) {
  c.batch = 1;
  c.cu_seqlens.assign(static_cast<size_t>(dice.between(1, 12)) + 1, 0);
  for (int64_t &offset : c.cu_seqlens) offset = dice.between(0, c.tokens);
  for (size_t i = 1; i < c.cu_seqlens.size(); ++i) {
    if (dice.one_in(6)) c.cu_seqlens[i] = c.cu_seqlens[i - 1];
  }
  std::sort(c.cu_seqlens.begin(), c.cu_seqlens.end());
  c.cu_seqlens.front() = 0;
  c.cu_seqlens.back() = dice.one_in(4) ? c.cu_seqlens.back() : c.tokens;  // or there is padding
}

// Half of the splits are any at all; ranks without tokens come in runs too, and at both ends.
void draw_split(Dice &dice, Case &c, int32_t nranks) {
  c.split = dice.one_in(2) ? Split::free : static_cast<Split>(dice.between(0, 3));
  if (c.split != Split::free) return;
  for (int32_t rank = 0; rank + 1 < nranks; ++rank) {
    const bool again = rank > 0 && dice.one_in(5);
    c.cuts.push_back(again            ? c.cuts.back()
                     : dice.one_in(8) ? static_cast<double>(dice.between(0, 1))
                                      : dice.uniform());
  }
  std::sort(c.cuts.begin(), c.cuts.end());
}

Drawn draw(uint64_t seed, uint64_t index) {
  Dice dice(seed, index);
  Drawn d;
  d.problem.name = "drawn_" + std::to_string(index);
  d.data_seed = seed;
  shape(dice, d.problem);
  memory(dice, d.problem);
  d.nranks = static_cast<int32_t>(dice.between(1, kMostRanks));
  draw_split(dice, d.problem, d.nranks);
  if (d.nranks == 1 && dice.one_in(2)) d.transport = Transport::self;
  d.options.schedule = static_cast<int32_t>(dice.between(LASP_SCHEDULE_AUTO, LASP_SCHEDULE_HEAD_SCATTER));
  if (d.problem.mask == LASP_MASK_CAUSAL && dice.one_in(3)) segment(dice, d);
  draw_delta_rule(seed, index, d.problem);
  d.options.backward = !dice.one_in(10);
  d.options.recompute = d.options.backward && dice.one_in(2);
  d.options.repeats = dice.one_in(4) ? 2 : 1;
  // The library asks for a final_state that is to be broadcast.
  d.options.optional_outputs = d.problem.broadcast || !dice.one_in(8);
  d.options.null_when_empty = dice.one_in(2);
  // A packed plan does not step: then nothing is left to decode.
  d.prefill = d.problem.cu_seqlens.empty() ? dice.between(0, d.problem.tokens) : d.problem.tokens;
  for (int64_t &run : d.runs) run = dice.one_in(2) ? 1 : dice.between(1, 50);
  if (serves(LASP_SCHEDULE_RELAY, d.problem) && dice.one_in(6)) d.options.schedule = LASP_SCHEDULE_RELAY;
  return d;
}

std::string describe(const Drawn &d) {
  const Case &c = d.problem;
  std::ostringstream out;
  out << "B " << c.batch << " T " << c.tokens << " heads " << c.heads_q << "/" << c.heads_k << "/" << c.heads_v
      << " K " << c.head_dim_k << " V " << c.head_dim_v << " " << kDtypes[c.dtype] << " decay "
      << kDecayNames[c.decay];
  if (c.decay != LASP_DECAY_NONE) {
    out << " (" << kDtypes[c.decay == LASP_DECAY_HEAD ? int32_t{LASP_FLOAT32} : c.decay_dtype] << ", "
        << (c.constant_decay != 0.0 ? "all " : "mean -")
        << (c.constant_decay != 0.0 ? c.constant_decay : c.mean_decay) << ")";
  }
  if (c.mask == LASP_MASK_BIDIRECTIONAL) out << " bidirectional";
  if (c.delta) {
    out << " delta (" << kDtypes[c.beta_dtype] << ", " << (c.constant_beta >= 0.0 ? "all " : "to ")
        << (c.constant_beta >= 0.0 ? c.constant_beta : c.most_beta) << ", keys alike " << c.key_correlation << ")";
  }
  out << " scale " << c.scale << " chunk " << c.chunk << (c.cache == LASP_CACHE_CHUNKS ? " chunks" : " incoming");
  if (c.segment > 0) out << " segment " << c.segment;
  out << (c.exact ? " exact" : "") << (c.states ? "" : " no_states") << (c.broadcast ? " broadcast" : "") << " "
      << kLayouts[static_cast<int>(c.layout)] << (c.aligned ? " aligned" : "");
  if (!c.cu_seqlens.empty()) {
    out << " cu_seqlens ";
    for (const int64_t offset : c.cu_seqlens) out << (&offset == &c.cu_seqlens[0] ? "" : ",") << offset;
  }
  out << " | ranks " << d.nranks << (d.transport == Transport::self ? " self " : " threads ")
      << kSplits[static_cast<int>(c.split)];
  for (const int64_t count : tokens_of_ranks(c, d.nranks)) out << " " << count;
  out << " " << schedule_name(d.options.schedule) << " pieces " << c.pieces << " cpu_threads " << c.cpu_threads;
  out << (d.options.backward ? "" : " forward_only") << (d.options.recompute ? " recompute" : "")
      << (d.options.repeats > 1 ? " twice" : "") << (d.options.optional_outputs ? "" : " no_optional_outputs")
      << (d.options.null_when_empty ? " null_when_empty" : "") << " prefill " << d.prefill;
  return out.str();
}

}  // namespace lasp_test
