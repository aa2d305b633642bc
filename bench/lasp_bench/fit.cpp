#include "fit.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "config.h"

namespace bench {
namespace {

constexpr double kFloat = 4, kHalf = 2;             // bytes of float32 and bfloat16
constexpr int64_t kTile = 4096;                     // of liblasp.torch.linear_cross_entropy
constexpr int64_t kMostTokens = int64_t{1} << 40;   // 2^40, as elsewhere in lasp-bench
constexpr int64_t kMostSegment = int64_t{1} << 26;  // more than any memory holds
constexpr int32_t kChunk = 64;                      // of the GPU kernels

double real(int64_t number) { return static_cast<double>(number); }

// What autograd keeps for one token in one block, whose two compiled halves meet at linear_attention. In bfloat16
// (d = d_model): x, normed x, qkvg (4d), silu(q), silu(k), o, o normed and gated, x after attention, the same
// normed: 12 d; up (2F), value times gate (F): 3 F. In float32 the factors of three norms: two, and one a head.
double kept_for_token(const FitModel &m) {
  return kHalf * (12 * real(m.d_model) + 3 * real(m.d_ff)) + kFloat * (2 + real(m.heads));
}

// The states that a forward pass leaves for its backward pass, one layer's, as on an H100
// (src/cuda/backend/stream_choices.cpp): float32 for the parts of a sequence's runs, and for K = V = 128 one in
// bfloat16 every 256 tokens (docs/internals/kernels.md).
double state_cache(const FitModel &m, int64_t tokens) {
  constexpr int64_t kMultiprocessors = 132, kColumns = 32, kParts = 4, kCheckpoint = 256;
  const int64_t blocks = m.heads * std::max<int64_t>(1, m.head_dim() / kColumns);
  const int64_t runs = std::max<int64_t>(1, kMultiprocessors / blocks);
  const double states = runs > 1 ? real(runs * kParts) : 1;
  const double checkpoints = m.head_dim() == 128 ? real((tokens + kCheckpoint - 1) / kCheckpoint) : 0;
  return m.state_bytes() / real(m.layers) * (states + checkpoints * kHalf / kFloat);
}

// A tile's logits live twice in float32. Beside them: the head's gradient, its copy in bfloat16; x, the same
// normed, and its gradient.
double loss_work(const FitModel &m, int64_t segment) {
  return 2 * kFloat * real(std::min(segment, kTile)) * real(m.vocabulary) + (kFloat + kHalf) * m.head_parameters() +
         3 * kHalf * real(segment * m.d_model);
}

// The gradients of x, up, and value times gate. The gradients of attention are smaller, and what the unit kept has
// gone by then.
double block_work(const FitModel &m, int64_t segment) {
  return kHalf * real(segment) * (real(m.d_model) + 3 * real(m.d_ff));
}

}  // namespace

double FitModel::attention_parameters() const { return 5 * real(d_model) * real(d_model); }
double FitModel::unit_parameters() const { return 3 * real(d_model) * real(d_ff); }
double FitModel::block_parameters() const { return real(layers) * (attention_parameters() + unit_parameters()); }
double FitModel::head_parameters() const { return real(vocabulary) * real(d_model); }
double FitModel::state_bytes() const { return kFloat * real(layers * heads) * real(head_dim() * head_dim()); }

double FitMemory::total() const {
  return parameters + gathered + gradients + buckets + moments + copies + activations + state_cache + cut_states +
         token_ids + work;
}

FitMemory step_memory(const FitSetting &setting, Cut cut) {
  const FitModel &m = setting.model;
  const double all = kFloat * m.parameters(), gpus = real(setting.gpus);
  const bool shards = setting.shards();
  const int64_t segments = cut.segments(setting.gpus);
  // What stays from step to step, and from segment to segment.
  FitMemory kept;
  kept.parameters = shards ? all / gpus : all;
  kept.moments = 2 * all / (setting.sharding == Sharding::kDdp ? 1 : gpus);
  // FSDP2 gathers a block ahead of the one at work, and keeps embedding and head.
  const double of_block = kFloat * m.block_parameters() / real(m.layers);
  if (shards) kept.gathered = 2 * of_block + 2 * kFloat * m.head_parameters();
  if (!shards && setting.gpus > 1) kept.buckets = all;
  // Sums over several segments wait whole, beside buckets and shares, until the last pass reduces them.
  if (segments > 1) kept.gradients = all;
  // Those of the cuts, and two more: what the segment at work leaves, and the gradient of that.
  kept.cut_states = m.state_bytes() * (segments > 1 ? real(segments - 1) + 2 : 1);
  kept.token_ids = 8 * real(cut.tokens);

  // At the loss and in the backward pass of the last block all activations are there.
  FitMemory most = kept;
  most.copies = kHalf * m.block_parameters();
  most.activations = real(cut.segment * m.layers) * kept_for_token(m);
  most.state_cache = real(m.layers) * state_cache(m, cut.segment);
  const double loss = loss_work(m, cut.segment), block = block_work(m, cut.segment);
  most.at_loss = loss >= block;
  most.work = std::max(loss, block);

  // A step of one segment has all gradients only when activations have gone. DDP's are its buckets.
  FitMemory end = kept;
  if (segments == 1 && end.buckets == 0) end.gradients = shards ? all / gpus + of_block : all;
  return end.total() > most.total() ? end : most;
}

// Two operations a parameter and token forward, four backward. The first pass leaves out the last segment, and in
// all segments but the first it ends with the last state; FSDP2's hooks want it whole.
double step_flop(const FitSetting &setting, Cut cut) {
  const FitModel &m = setting.model;
  Shape one;
  one.tokens = 1;
  one.heads_q = one.heads_k = one.heads_v = static_cast<int32_t>(m.heads);
  one.head_dim_k = one.head_dim_v = static_cast<int32_t>(m.head_dim());
  one.decay = LASP_DECAY_HEAD;
  const double forward = real(m.layers) * count_flop(one, kChunk, false);
  const double backward = real(m.layers) * count_flop(one, kChunk, true);
  const double trained = 6 * (m.block_parameters() + m.head_parameters()) + forward + backward;

  const int64_t segment = cut.segment * setting.gpus, segments = cut.segments(setting.gpus);
  const double whole = 2 * (m.block_parameters() + m.head_parameters()) + forward;
  const double after_last_state =
      2 * (m.head_parameters() + real(m.d_model) * real(m.d_model) + m.unit_parameters());
  double first_pass = real((segments - 1) * segment) * whole;
  if (!setting.shards() && segments > 2) first_pass -= real((segments - 2) * segment) * after_last_state;
  return real(cut.tokens) * trained + first_pass;
}

double step_seconds(const FitSetting &setting, Cut cut) {
  return step_flop(setting, cut) / real(setting.gpus) / setting.flop_rate;
}

// From the second segment on, each adds the same.
std::optional<Cut> longest(const FitSetting &setting, int64_t segment) {
  const int64_t whole = segment * setting.gpus;
  const auto bytes = [&](int64_t segments) { return step_memory(setting, {segments * whole, segment}).total(); };
  if (bytes(1) > setting.memory_bytes) return std::nullopt;
  if (bytes(2) > setting.memory_bytes) return Cut{whole, segment};
  const double more = std::floor((setting.memory_bytes - bytes(2)) / (bytes(3) - bytes(2)));
  const auto segments = static_cast<int64_t>(std::min(2 + more, std::floor(real(kMostTokens) / real(whole))));
  return Cut{std::max<int64_t>(1, segments) * whole, segment};
}

std::optional<Cut> longest(const FitSetting &setting) {
  std::optional<Cut> best;
  for (int64_t segment = kLeastSegment; segment <= kMostSegment; segment *= 2) {
    const std::optional<Cut> found = longest(setting, segment);
    if (found && (!best || found->tokens >= best->tokens)) best = found;
  }
  return best;
}

Cut best_cut(const FitSetting &setting, int64_t tokens) {
  const int64_t share = (tokens + setting.gpus - 1) / setting.gpus;
  Cut least{tokens, share};
  double least_bytes = step_memory(setting, least).total();
  for (auto segment = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(share)));
       least_bytes > setting.memory_bytes && segment >= kLeastSegment; segment /= 2) {
    const Cut cut{tokens, std::min(segment, share)};
    const double bytes = step_memory(setting, cut).total();
    if (bytes < least_bytes) least = cut, least_bytes = bytes;
  }
  return least;
}

}  // namespace bench
