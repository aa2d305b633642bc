// The combinations of a command line's lists.
#include <algorithm>

#include "failure.h"
#include "options.h"

namespace bench {

std::vector<Config> make_configs(const Options &options, int cpus, int default_ranks) {
  if (options.models) return model_configs(options, cpus);
  const std::vector<int64_t> all_ranks =
      options.ranks.empty() ? std::vector<int64_t>{default_ranks} : options.ranks;
  std::vector<Config> configs;
  // One loop per list, the outermost slowest; the shape changes as rarely as can be, for the sake of the reference.
  const auto each = [](const auto &list, const auto &body) {
    for (const auto value : list) body(value);
  };
  Config c;
  c.passes = options.passes;
  c.device = options.device;
  c.graph = options.graph;
  c.decay_gradient = options.decay_gradient;
  c.shape.rounded_decay = options.rounded_decay;
  int64_t tokens_given = 0;
  const auto add = [&](int32_t schedule) {
    if (c.ranks == 1 && schedule != options.schedule.front()) return;
    c.schedule = schedule;
    configs.push_back(c);
  };
  const auto with_threads = [&](int64_t threads) {
    c.threads = static_cast<int32_t>(threads);
    each(options.cache, [&](int32_t cache) {
      c.cache = cache;
      each(options.chunk, [&](int64_t chunk) {
        c.chunk = static_cast<int32_t>(chunk);
        each(options.segment, [&](int64_t segment) {
          c.segment = segment;
          each(options.schedule, add);
        });
      });
    });
  };
  const auto with_ranks = [&](int64_t ranks) {
    c.ranks = static_cast<int32_t>(ranks);
    c.shape.tokens = options.tokens_per_rank ? tokens_given * ranks : tokens_given;
    if (options.device == LASP_DEVICE_CUDA)
      with_threads(1);
    else if (options.threads.empty())
      with_threads(std::max<int64_t>(1, cpus / ranks));
    else
      each(options.threads, with_threads);
  };
  const auto with_decay = [&](int32_t decay) {
    c.shape.decay = decay;
    if (c.shape.bidirectional() && (decay != LASP_DECAY_NONE || c.shape.delta())) return;
    each(all_ranks, with_ranks);
  };
  const auto with_heads = [&](int64_t heads) {
    const auto or_all = [heads](int64_t given) { return static_cast<int32_t>(given > 0 ? given : heads); };
    c.shape.heads_q = or_all(options.heads_q);
    c.shape.heads_k = or_all(options.heads_k);
    c.shape.heads_v = or_all(options.heads_v);
    for (const int32_t part : {c.shape.heads_q, c.shape.heads_k, c.shape.heads_v})
      if (c.shape.heads() % part != 0)
        throw UsageError("--heads: " + std::to_string(part) + " does not divide " +
                         std::to_string(c.shape.heads()));
    each(options.mask, [&](int32_t mask) {
      c.shape.mask = mask;
      each(options.write, [&](int32_t write) {
        c.shape.write = write;
        each(options.decay, with_decay);
      });
    });
  };
  each(options.dtype, [&](int32_t dtype) {
    c.shape.dtype = dtype;
    each(options.batch, [&](int64_t batch) {
      c.shape.batch = batch;
      each(options.tokens, [&](int64_t tokens) {
        tokens_given = tokens;
        each(options.head_dim_k, [&](int64_t k) {
          c.shape.head_dim_k = static_cast<int32_t>(k);
          each(options.head_dim_v, [&](int64_t v) {
            c.shape.head_dim_v = static_cast<int32_t>(v);
            each(options.heads, with_heads);
          });
        });
      });
    });
  });
  if (configs.empty())
    throw UsageError("--mask bidirectional: needs --decay none and --write additive; nothing is left to measure");
  return configs;
}

}  // namespace bench
