// How long a sequence a model trains on: the memory and the time of one step of liblasp.torch.time_segments,
// counted by formula for the model of examples/pytorch. docs/guide/long-sequences.md explains the formula.
#pragma once

#include <cstdint>
#include <optional>

namespace bench {

// The weights are matrices alone. The numbers are kept such that products of a few of them are exact in double.
struct FitModel {
  int64_t d_model = 0, layers = 0, heads = 0, d_ff = 0, vocabulary = 0;

  int64_t head_dim() const { return d_model / heads; }
  double attention_parameters() const;  // of one block: q, k, v, gate and output
  double unit_parameters() const;       // of one block: the gated linear unit
  double block_parameters() const;      // of all blocks
  double head_parameters() const;       // of the last layer; the embedding has as many
  double parameters() const { return block_parameters() + 2 * head_parameters(); }
  double state_bytes() const;  // float32 states of all layers
};

// How several GPUs keep the model, as in examples/pytorch/train.py: whole; the optimizer's moments in shares
// (torch's ZeroRedundancyOptimizer); parameters and moments in shares.
enum class Sharding { kDdp, kZero, kFsdp2 };

struct FitSetting {
  FitModel model;
  int64_t gpus = 1;
  Sharding sharding = Sharding::kDdp;
  double memory_bytes = 0;  // of one GPU, to be filled
  double flop_rate = 0;     // of one GPU, per second
  bool shards() const { return sharding == Sharding::kFsdp2 && gpus > 1; }
};

// Tokens of one sequence, and tokens of a segment on each GPU.
struct Cut {
  int64_t tokens = 0, segment = 0;
  int64_t segments(int64_t gpus) const { return (tokens + segment * gpus - 1) / (segment * gpus); }
  bool operator==(const Cut &) const = default;
};

// Bytes on one GPU at the moment of a step that takes most: at the loss or in the backward pass of the last block,
// whose own memory is `work`, or, in a short step, when all gradients are there.
struct FitMemory {
  double parameters = 0, gathered = 0, gradients = 0, buckets = 0, moments = 0, copies = 0, activations = 0,
         state_cache = 0, cut_states = 0, token_ids = 0, work = 0;
  bool at_loss = false;
  double total() const;
};

FitMemory step_memory(const FitSetting &setting, Cut cut);
double step_flop(const FitSetting &setting, Cut cut);  // of all GPUs
double step_seconds(const FitSetting &setting, Cut cut);

// Shorter segments are launches more than arithmetic.
inline constexpr int64_t kLeastSegment = 256;

// The longest sequence in segments of this many tokens, and of all powers of two; none: not one segment fits.
std::optional<Cut> longest(const FitSetting &setting, int64_t segment);
std::optional<Cut> longest(const FitSetting &setting);
// The largest segment for this length: all of a GPU's tokens, or a power of two. Where the length does not fit, the
// segment that takes least.
Cut best_cut(const FitSetting &setting, int64_t tokens);

}  // namespace bench
