// The shapes of --shapes models: those of published models, and their neighbours.
#include <string_view>

#include "failure.h"
#include "options.h"

namespace bench {
namespace {

struct ModelShape {
  const char *name;
  int64_t batch, tokens;
  int32_t heads, heads_qk, dim_k, dim_v, decay;
  int32_t write = LASP_WRITE_ADDITIVE, cache = LASP_CACHE_CHUNKS;
  bool rounded_decay = false;
};

constexpr int32_t kNone = LASP_DECAY_NONE, kHead = LASP_DECAY_HEAD, kToken = LASP_DECAY_SCALAR,
                  kChannel = LASP_DECAY_CHANNEL;

constexpr ModelShape kModels[] = {
    // name, batch, tokens, heads, of q and k, K, V, decay
    {"128 x 128, no decay", 1, 16384, 32, 32, 128, 128, kNone},
    {"128 x 128, per head (Lightning, RetNet)", 1, 16384, 32, 32, 128, 128, kHead},
    {"128 x 128, per token", 1, 16384, 32, 32, 128, 128, kToken},
    {"128 x 128, per channel", 1, 16384, 32, 32, 128, 128, kChannel},
    {"128 x 128, per channel, 16-bit g", 1, 16384, 32, 32, 128, 128, kChannel, LASP_WRITE_ADDITIVE,
     LASP_CACHE_CHUNKS, true},
    {"128 x 128, per head, small cache", 1, 16384, 32, 32, 128, 128, kHead, LASP_WRITE_ADDITIVE,
     LASP_CACHE_INCOMING},
    {"128 x 128, per head, 8 heads", 1, 131072, 8, 8, 128, 128, kHead},
    {"128 x 128, per head, batch 8", 8, 2048, 32, 32, 128, 128, kHead},
    {"256 x 256, per head", 1, 16384, 16, 16, 256, 256, kHead},
    {"256 x 256, per token", 1, 16384, 16, 16, 256, 256, kToken},
    {"256 x 256, per channel", 1, 16384, 16, 16, 256, 256, kChannel},
    {"64 x 64, per head", 1, 16384, 32, 32, 64, 64, kHead},
    {"64 x 64, per token", 1, 16384, 32, 32, 64, 64, kToken},
    {"64 x 64, per channel", 1, 16384, 32, 32, 64, 64, kChannel},
    {"128 x 256, per head", 1, 16384, 16, 16, 128, 256, kHead},
    {"Mamba-2: 128 x 64, one q and k, per token", 1, 16384, 32, 1, 128, 64, kToken},
    {"RetNet: 256 x 512, per head", 1, 16384, 8, 8, 256, 512, kHead},
    {"GLA: 128 x 256, per channel", 1, 16384, 16, 16, 128, 256, kChannel},
    {"GLA: 256 x 512, per channel", 1, 16384, 8, 8, 256, 512, kChannel},
    {"96 x 96, per token", 1, 16384, 32, 32, 96, 96, kToken},
    {"32 x 32, per token", 1, 16384, 32, 32, 32, 32, kToken},
    {"DeltaNet: 128 x 128", 1, 16384, 32, 32, 128, 128, kNone, LASP_WRITE_DELTA},
    {"Gated DeltaNet: 128 x 128, per token", 1, 16384, 32, 32, 128, 128, kToken, LASP_WRITE_DELTA},
    {"Gated DeltaNet: 96 x 192 (OLMo Hybrid), per token", 1, 16384, 30, 30, 96, 192, kToken, LASP_WRITE_DELTA},
    {"Gated DeltaNet: 256 x 512, per token", 1, 16384, 6, 6, 256, 512, kToken, LASP_WRITE_DELTA},
    {"KDA: 128 x 128, per channel", 1, 16384, 32, 32, 128, 128, kChannel, LASP_WRITE_DELTA},
};

}  // namespace

std::vector<Config> model_configs(const Options &options, int cpus) {
  std::vector<Config> configs;
  for (const ModelShape &model : kModels) {
    Config c;
    c.name = model.name;
    c.passes = options.passes;
    c.device = options.device;
    c.graph = options.graph;
    c.decay_gradient = options.decay_gradient;
    c.threads = options.device == LASP_DEVICE_CUDA ? 1 : cpus;
    c.cache = model.cache;
    Shape &s = c.shape;
    s.batch = model.batch;
    s.tokens = options.model_tokens > 0 ? options.model_tokens : model.tokens;
    s.heads_q = s.heads_k = model.heads_qk;
    s.heads_v = model.heads;
    s.head_dim_k = model.dim_k;
    s.head_dim_v = model.dim_v;
    s.decay = model.decay;
    s.write = model.write;
    s.rounded_decay = model.rounded_decay;
    s.dtype = options.dtype.front();
    configs.push_back(c);
  }
  return configs;
}

}  // namespace bench
