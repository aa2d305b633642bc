// The one case table. Every case runs on every transport, number of ranks and schedule, so dimensions are small
// except where a dimension is the point.
#include <stdexcept>
#include <tuple>

#include "support/case.h"
#include "support/guarded_buffer.h"

namespace lasp_test {
namespace {

constexpr const char *kDecayNames[] = {"none", "head", "scalar", "channel"};

// Edges at every multiple of 30 and 80 that even splits of 240 tokens over 2, 3, 4 or 8 ranks have, with an empty
// sequence at most of them, at the start and at the end.
const std::vector<int64_t> kEdgesOf240 = {0,   0,   1,   30,  30,  60,  80,  80,  90,  120, 120,
                                          120, 150, 160, 160, 180, 180, 210, 239, 240, 240};

class Table {
 public:
  std::vector<Case> cases;
  bool delta = false;  // the write of the cases that follow

  // Starts a case from the decay kind; the caller edits what comes back.
  Case &add(const std::string &name, int32_t decay) {
    Case c;
    c.name = (delta ? "delta_" : "") + std::string(kDecayNames[decay]) + "_" + name;
    c.decay = decay;
    c.delta = delta;
    cases.push_back(c);
    return cases.back();
  }

  void shapes(int32_t d) {
    Case *c = &add("batch", d);
    c->batch = 2, c->tokens = 150, c->heads_q = c->heads_k = c->heads_v = 3, c->head_dim_v = 24, c->quick = true;
    c = &add("long", d);
    c->tokens = 600, c->head_dim_k = c->head_dim_v = 32, c->chunk = 64, c->split = Split::ragged,
    c->cpu_threads = 2;
    c = &add("grouped_values", d);
    c->tokens = 100, c->heads_v = 6, c->head_dim_v = 8, c->chunk = 16;
    c = &add("grouped_queries", d);
    c->tokens = 100, c->heads_q = 6, c->head_dim_k = 8, c->chunk = 32, c->cpu_threads = 3;
    c = &add("one_key_head", d);
    c->tokens = 70, c->heads_q = 4, c->heads_k = 1, c->heads_v = 2, c->quick = true;
    c = &add("no_states", d);
    c->tokens = 131, c->states = false, c->scale = 0.7f, c->chunk = 128;
    c = &add("cache_incoming", d);
    c->tokens = 300, c->cache = LASP_CACHE_INCOMING, c->chunk = 32, c->quick = true;
    c = &add("chunk_256", d);
    c->tokens = 530, c->heads_q = c->heads_k = c->heads_v = 1, c->chunk = 256;
    c = &add("several_default_chunks", d);
    c->tokens = 1500, c->heads_q = c->heads_k = c->heads_v = 1, c->head_dim_k = c->head_dim_v = 64;
    c = &add("broadcast", d);
    c->batch = 2, c->tokens = 90, c->broadcast = true, c->pieces = 3;
  }

  void splits(int32_t d) {
    Case *c = &add("uneven_batch", d);
    c->batch = 3, c->tokens = 133, c->split = Split::ragged, c->chunk = 16;
    c = &add("sparse_ranks", d);
    c->batch = 3, c->tokens = 120, c->split = Split::sparse, c->chunk = 32, c->quick = true;
    c = &add("sparse_ranks_reversed", d);
    c->batch = 2, c->tokens = 61, c->split = Split::sparse_reversed, c->broadcast = true;
    c = &add("three_tokens", d);
    c->tokens = 3, c->batch = 2;
    c = &add("one_token", d);
    c->tokens = 1, c->quick = true;
    c = &add("no_tokens", d);
    c->tokens = 0, c->batch = 2;
    c = &add("one_rank_has_all", d);
    c->tokens = 18, c->split = Split::sparse;
  }

  void packing(int32_t d) {
    Case *c = &add("packed_at_rank_edges", d);
    c->tokens = 240, c->cu_seqlens = kEdgesOf240, c->chunk = 16, c->quick = true;
    c = &add("packed_ragged", d);
    c->tokens = 240, c->cu_seqlens = kEdgesOf240, c->split = Split::ragged, c->chunk = 64;
    c = &add("packed_sparse", d);
    c->tokens = 140, c->cu_seqlens = {0, 0, 1, 1, 18, 100, 140}, c->split = Split::sparse;
    c->cache = LASP_CACHE_INCOMING;
    c = &add("packed_across_all", d);
    c->tokens = 200, c->cu_seqlens = {0, 3, 197, 200}, c->states = false, c->heads_q = 4;
    // Sequences that begin (end) exactly at a rank's edge and reach over the whole rank: with 3 ranks, with 4
    // and 8.
    c = &add("packed_from_rank_edge", d);
    c->tokens = 240, c->cu_seqlens = {0, 80, 240}, c->quick = true;
    c = &add("packed_to_rank_edge", d);
    c->tokens = 240, c->cu_seqlens = {0, 160, 240}, c->quick = true;
    c = &add("packed_whole_ranks", d);
    c->tokens = 240, c->cu_seqlens = {0, 60, 180, 240}, c->chunk = 32;
    c = &add("packed_padding", d);  // with 8 ranks the last two hold nothing else
    c->tokens = 240, c->cu_seqlens = {0, 7, 7, 90, 151, 151}, c->chunk = 16, c->quick = true;
    c = &add("packed_all_empty", d);
    c->tokens = 0, c->cu_seqlens = {0, 0, 0};
  }

  void layouts(int32_t d) {
    for (const auto &[layout, name] :
         {std::pair{Layout::head_major, "head_major"}, std::pair{Layout::packed_qkv, "packed_qkv"},
          std::pair{Layout::padded, "padded"}, std::pair{Layout::mixed, "mixed"}}) {
      Case &c = add(name, d);
      c.batch = 2, c.tokens = 97, c.head_dim_v = 24, c.layout = layout, c.split = Split::ragged;
      c.quick = layout == Layout::padded || layout == Layout::mixed;
      Case &sparse = add(std::string(name) + "_sparse", d);
      sparse.batch = 2, sparse.tokens = 55, sparse.heads_q = 4, sparse.layout = layout,
      sparse.split = Split::sparse;
      sparse.dtype = LASP_BFLOAT16, sparse.decay_dtype = LASP_BFLOAT16;
    }
    Case &expanded = add("expanded", d);
    expanded.batch = 2, expanded.tokens = 97, expanded.head_dim_v = 24, expanded.layout = Layout::expanded;
    expanded.split = Split::ragged, expanded.quick = true;
    Case &shared = add("expanded_bfloat16", d);
    shared.batch = 3, shared.tokens = 75, shared.heads_q = 4, shared.heads_k = 2, shared.dtype = LASP_BFLOAT16;
    shared.layout = Layout::expanded, shared.split = Split::sparse, shared.aligned = true;
    // As many heads and as wide for all, so that a tensor read by any other's strides is read from within.
    Case &c = add("mixed_square", d);
    c.batch = 2, c.tokens = 75, c.layout = Layout::mixed, c.chunk = 32, c.cache = LASP_CACHE_INCOMING,
    c.quick = true;
  }

  void dtypes(int32_t d) {
    for (const auto &[dtype, name] : {std::pair{LASP_BFLOAT16, "bfloat16"}, std::pair{LASP_FLOAT16, "float16"}}) {
      Case &c = add(name, d);
      c.batch = 2, c.tokens = 150, c.heads_v = 4, c.dtype = dtype, c.decay_dtype = dtype, c.quick = true;
      Case &mixed = add(std::string(name) + "_decay_float32", d);
      mixed.tokens = 260, mixed.head_dim_k = 32, mixed.dtype = dtype, mixed.chunk = 64, mixed.split = Split::ragged;
      mixed.cache = LASP_CACHE_INCOMING;
    }
  }

  void lengths(int32_t d) {
    for (const int64_t tokens : {127, 128, 129, 255, 257}) {
      Case &c = add("length_" + std::to_string(tokens), d);
      c.tokens = tokens, c.heads_q = c.heads_k = c.heads_v = 1, c.head_dim_v = 8;
    }
  }

  void widths(int32_t d) {
    const std::pair<int32_t, int32_t> kWidths[] = {{8, 256}, {24, 64}, {64, 24}, {128, 192}, {192, 8}, {256, 128}};
    for (const auto &[k, v] : kWidths) {
      Case &c = add("width_" + std::to_string(k) + "x" + std::to_string(v), d);
      c.tokens = 75, c.heads_q = c.heads_k = c.heads_v = 1, c.head_dim_k = k, c.head_dim_v = v, c.chunk = 32;
    }
  }

  void strengths(int32_t d) {
    if (d == LASP_DECAY_NONE) return;
    for (const auto &[g, name] : {std::pair{-60.0, "decay_minus_60"}, std::pair{-1e-6, "decay_minus_1e_6"}}) {
      Case &c = add(name, d);
      c.tokens = 200, c.constant_decay = g, c.quick = true;
    }
    Case &c = add("decay_mixed_strong", d);
    c.tokens = 200, c.mean_decay = 12.0, c.chunk = 64;
  }

  void exact(int32_t d) {
    Case *c = &add("exact", d);
    c->exact = true, c->scale = 1.0f, c->quick = true;
    if (d == LASP_DECAY_HEAD) {  // sums stay exact over 16 tokens, so many short sequences reach over the ranks
      c->tokens = 200, c->cu_seqlens = {0, 16, 24, 40, 40, 44, 60, 76, 92, 104, 120, 136, 152, 168, 184, 200};
      c->split = Split::ragged, c->chunk = 32;
      c->states = false;
      c = &add("exact_over_ranks", d);  // one sequence that a rank of 17 tokens lies in the middle of
      c->exact = true, c->scale = 1.0f, c->tokens = 19, c->head_dim_k = c->head_dim_v = 8, c->split = Split::sparse;
      c->states = false, c->quick = true;
      return;
    }
    c->tokens = 600, c->batch = 2, c->heads_q = 4, c->chunk = 64;
    c = &add("exact_packed", d);
    c->exact = true, c->scale = 1.0f, c->tokens = 240, c->cu_seqlens = kEdgesOf240, c->chunk = 16;
    c = &add("exact_bfloat16", d);
    c->exact = true, c->scale = 1.0f, c->tokens = 140, c->split = Split::sparse, c->dtype = LASP_BFLOAT16;
  }

  // What a GPU's tensor-core kernels take: wide heads, 16-bit tensors, aligned rows. Their chunks are 64 tokens
  // long. Shapes and dtypes take turns, so that the decay kinds together have them all.
  Case &wide(const std::string &name, int32_t d) {
    constexpr std::pair<int32_t, int32_t> kShapes[] = {{128, 128}, {64, 64}, {128, 64}};
    Case &c = add("wide_" + name, d);
    const int32_t turn = wide_count_++ + d;
    std::tie(c.head_dim_k, c.head_dim_v) = kShapes[turn % 3];
    c.dtype = turn % 2 == 0 ? LASP_BFLOAT16 : LASP_FLOAT16;
    c.decay_dtype = turn % 4 < 2 ? int32_t{LASP_FLOAT32} : c.dtype;
    c.heads_q = c.heads_k = c.heads_v = 1;
    c.aligned = true;
    return c;
  }

  // Heads of q and k that heads of v share, and states that tiles of 64 or 128 are wider than.
  void other_tiles(int32_t d) {
    const auto add_tiles = [&](const char *name, int32_t k, int32_t v) -> Case & {
      Case &c = add(name, d);
      c.tokens = 90, c.heads_q = c.heads_k = c.heads_v = 2, c.head_dim_k = k, c.head_dim_v = v, c.aligned = true;
      c.dtype = d % 2 == 0 ? LASP_BFLOAT16 : LASP_FLOAT16;
      return c;
    };
    Case *c = &add_tiles("tiles_one_query", 128, 64);
    c->heads_q = c->heads_k = 1, c->split = Split::ragged, c->quick = true;
    c = &add_tiles("tiles_pairs", 32, 64);
    c->heads_q = c->heads_k = 1, c->cu_seqlens = {0, 40, 40, 90}, c->cache = LASP_CACHE_INCOMING;
    c = &add_tiles("tiles_96", 96, 96);
    c->heads_q = c->heads_k = c->heads_v = 1;
  }

  void tensor_cores(int32_t d) {
    for (const int64_t tokens : {1, 63, 64, 65, 200, 300}) {
      Case &c = wide("length_" + std::to_string(tokens), d);
      c.tokens = tokens, c.split = tokens == 200 ? Split::ragged : Split::even;
      if (tokens == 1) c.batch = 4, c.heads_q = c.heads_k = c.heads_v = 2;  // enough elements for a mean error
      c.cache = tokens == 300 ? LASP_CACHE_INCOMING : LASP_CACHE_CHUNKS;
    }
    Case *c = &wide("packed", d);
    c->tokens = 230, c->cu_seqlens = {0, 0, 5, 70, 70, 133, 230, 230}, c->quick = true;
    c = &wide("grouped", d);
    c->tokens = 90, c->heads_v = 2, c->head_dim_k = c->head_dim_v = 128, c->states = false;
    c = &wide("head_major", d);
    c->tokens = 130, c->batch = 2, c->layout = Layout::head_major, c->split = Split::ragged;
    c = &wide("packed_qkv", d);
    c->tokens = 100, c->heads_q = c->heads_k = 2, c->heads_v = 2, c->layout = Layout::packed_qkv;
    c = &wide("unaligned", d);
    c->tokens = 70, c->aligned = false;
    if (d == LASP_DECAY_NONE) return;
    c = &wide("strong", d);
    c->tokens = 150, c->constant_decay = -60.0;
    c = &add("strong_square", d);  // what is left of a pair of tokens is below float16
    c->tokens = 150, c->heads_q = c->heads_k = c->heads_v = 2, c->constant_decay = -60.0;
    c->head_dim_k = c->head_dim_v = 128, c->dtype = LASP_FLOAT16, c->decay_dtype = LASP_FLOAT32, c->aligned = true;
    if (d != LASP_DECAY_HEAD) {  // what is left is a few units of the smallest float16
      c = &add("strong_units", d);
      c->tokens = 90, c->constant_decay = -15.0, c->head_dim_k = c->head_dim_v = 64, c->aligned = true;
      c->dtype = LASP_FLOAT16, c->decay_dtype = LASP_FLOAT32;
    }
    c = &wide("mixed_strong", d);
    c->tokens = 150, c->mean_decay = 12.0, c->split = Split::sparse;
    c->decay_dtype =
        LASP_FLOAT32;  // a few large gradients among nothings: 16 bits round them too unevenly to bound
  }

  // LASP_OWN_ZIGZAG: every number of ranks to 5, and 8, divides 240 tokens twice.
  void zigzags(int32_t d) {
    Case *c = &add("zigzag", d);
    c->batch = 2, c->tokens = 240, c->pieces = 3, c->quick = true, c->broadcast = true;
    c = &add("zigzag_packed", d);
    c->tokens = 240, c->cu_seqlens = kEdgesOf240, c->cache = LASP_CACHE_INCOMING, c->heads_v = 4;
    c = &add("zigzag_wide", d);
    c->tokens = 960, c->head_dim_k = c->head_dim_v = 128, c->dtype = LASP_BFLOAT16, c->aligned = true;
    c->cu_seqlens = {0, 100, 100, 730, 940}, c->heads_q = c->heads_k = c->heads_v = 1;
    for (auto each = cases.end() - 3; each != cases.end(); ++each) each->ownership = LASP_OWN_ZIGZAG;
    // Their lengths are divided by up to 16.
    c = &add("zigzag_each", d);
    c->tokens = 960, c->cu_seqlens = {0, 240, 240, 720}, c->pieces = 3, c->heads_v = 4, c->head_dim_k = 8;
    c->quick = true, c->ownership = LASP_OWN_ZIGZAG_EACH;
    c = &add("zigzag_each_wide", d);
    c->tokens = 960, c->head_dim_k = c->head_dim_v = 128, c->dtype = LASP_BFLOAT16, c->aligned = true;
    c->cu_seqlens = {0, 480, 480, 720, 960}, c->heads_q = c->heads_k = c->heads_v = 1;
    c->cache = LASP_CACHE_INCOMING, c->ownership = LASP_OWN_ZIGZAG_EACH;
    c = &add("runs", d);
    c->batch = 2, c->tokens = 150, c->pieces = 2, c->quick = true;
    c = &add("runs_packed", d);
    c->tokens = 240, c->cu_seqlens = kEdgesOf240, c->broadcast = false, c->chunk = 32;
    c = &add("runs_wide", d);
    c->tokens = 900, c->head_dim_k = c->head_dim_v = 128, c->dtype = LASP_BFLOAT16, c->aligned = true;
    c->cache = LASP_CACHE_INCOMING;
    for (auto each = cases.end() - 3; each != cases.end(); ++each) each->ownership = LASP_OWN_RUNS;
  }

  // Keys that are alike, betas up to 2 and of exactly 1, in tensors of every type, and the lengths that fla tests:
  // 63, 75, 500, and seven short sequences.
  void delta_rule(int32_t d) {
    Case *c = &add("correlated_keys", d);
    c->tokens = 300, c->key_correlation = 0.9, c->constant_beta = 1.0, c->head_dim_k = 64, c->quick = true;
    c = &add("correlated_keys_mixed", d);
    c->tokens = 257, c->key_correlation = 0.9, c->head_dim_k = c->head_dim_v = 32, c->chunk = 128;
    c = &add("beta_to_2", d);
    c->tokens = 300, c->most_beta = 2.0, c->head_dim_k = c->head_dim_v = 32, c->split = Split::ragged;
    c = &add("beta_1", d);
    c->tokens = 260, c->constant_beta = 1.0, c->head_dim_k = 128, c->head_dim_v = 128, c->heads_q = c->heads_k = 1;
    c->heads_v = 1;
    c = &add("no_write", d);
    c->tokens = 150, c->constant_beta = 0.0, c->chunk = 32;
    c = &add("beta_bfloat16", d);
    c->tokens = 140, c->dtype = c->decay_dtype = c->beta_dtype = LASP_BFLOAT16, c->layout = Layout::mixed;
    c->cache = LASP_CACHE_INCOMING;
    c = &add("beta_float16", d);
    c->tokens = 140, c->dtype = c->beta_dtype = LASP_FLOAT16, c->heads_v = 4, c->cpu_threads = 2;
    for (const int64_t tokens : {63, 75, 500}) {
      c = &add("length_" + std::to_string(tokens), d);
      c->tokens = tokens, c->batch = tokens == 500 ? 1 : 2, c->heads_v = 4, c->head_dim_k = 32;
    }
    c = &add("seven_sequences", d);
    c->tokens = 256, c->cu_seqlens = {0, 15, 100, 100, 101, 164, 230, 256}, c->head_dim_k = 32, c->heads_v = 4;
    c = &add("threads_and_walks", d);  // a forward pass from the cache goes another way than the first
    c->tokens = 381, c->head_dim_k = 128, c->cpu_threads = 2, c->chunk = 32, c->cache = LASP_CACHE_INCOMING;
    c = &add("threads_and_columns", d);
    c->tokens = 333, c->heads_q = c->heads_k = c->heads_v = 1, c->head_dim_v = 64, c->cpu_threads = 3;
    c->chunk = 32;
  }

  // What the delta rule's tensor-core kernels take: lengths around their chunks of 64 and checkpoints every 256.
  void delta_on_tensor_cores(int32_t d) {
    const auto start = [&](const std::string &name, int64_t tokens, int32_t k = 128, int32_t v = 128) {
      Case &c = add("wide_" + name, d);
      c.tokens = tokens, c.head_dim_k = k, c.head_dim_v = v, c.heads_q = c.heads_k = c.heads_v = 1;
      c.dtype = d == LASP_DECAY_HEAD ? LASP_FLOAT16 : LASP_BFLOAT16, c.aligned = true;
      return &c;
    };
    Case *c = start("length_65", 65);
    c->batch = 2, c->decay_dtype = c->beta_dtype = c->dtype, c->quick = true;
    c = start("odd_widths", 70, 48, 144);
    c->quick = true;
    if (d >= LASP_DECAY_SCALAR) {
      c = start("seven_sequences", 256);
      c->cu_seqlens = {0, 15, 100, 100, 101, 164, 230, 256};
      c = start("open_gates", 150);
      c->open_gates = 0.5, c->decay_dtype = c->beta_dtype = LASP_BFLOAT16, c->split = Split::ragged;
    }
    if (d == LASP_DECAY_CHANNEL) return;  // the rest is long on a CPU, and nothing there knows the decay
    c = start("shared_widths", 130, 96, 192);
    c->heads_v = 2;
    c = start("packed", 330, 128, 64);
    c->cu_seqlens = {0, 0, 5, 70, 70, 330, 330}, c->heads_v = 2, c->quick = true;
    if (d == LASP_DECAY_NONE) {
      c = start("incoming", 330, 64, 64);
      c->split = Split::ragged, c->cache = LASP_CACHE_INCOMING, c->layout = Layout::head_major;
      c = start("beta_to_2", 270);
      c->most_beta = 2.0, c->key_correlation = 0.9, c->states = false;
    } else {
      c = start("unaligned", 70, 64, 128);
      c->heads_q = 2, c->aligned = false, c->layout = Layout::packed_qkv;
    }
  }

  void bidirectional() {
    const auto start = [this](const char *name) {
      Case &c = add(name, LASP_DECAY_NONE);
      c.name = std::string("bidirectional_") + name;
      c.mask = LASP_MASK_BIDIRECTIONAL;
      return &c;
    };
    Case *c = start("batch");
    c->batch = 3, c->tokens = 150, c->head_dim_v = 24, c->split = Split::ragged, c->quick = true;
    c = start("ragged");
    c->batch = 2, c->tokens = 240, c->split = Split::ragged, c->broadcast = true;
    c = start("grouped");
    c->tokens = 100, c->heads_q = 4, c->heads_k = 1, c->states = false, c->layout = Layout::head_major;
    c = start("sparse");
    c->batch = 2, c->tokens = 60, c->split = Split::sparse, c->layout = Layout::packed_qkv;
    c->cache = LASP_CACHE_INCOMING;
    c = start("bfloat16");
    c->tokens = 150, c->dtype = LASP_BFLOAT16;
    c = start("mixed");
    c->batch = 2, c->tokens = 75, c->layout = Layout::mixed, c->quick = true;
    c = start("no_tokens");
    c->tokens = 0;
    c = start("exact");
    c->tokens = 300, c->batch = 2, c->exact = true, c->scale = 1.0f, c->quick = true;
  }

 private:
  int32_t wide_count_ = 0;
};

std::vector<Case> build() {
  Table table;
  for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay) {
    table.shapes(decay);
    table.splits(decay);
    table.zigzags(decay);
    table.packing(decay);
    table.layouts(decay);
    table.dtypes(decay);
    table.lengths(decay);
    table.widths(decay);
    table.strengths(decay);
    table.exact(decay);
    table.tensor_cores(decay);
    table.other_tiles(decay);
  }
  table.bidirectional();
  table.delta = true;
  for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay) {
    table.shapes(decay);
    table.splits(decay);
    table.zigzags(decay);
    table.packing(decay);
    table.layouts(decay);
    table.dtypes(decay);
    table.lengths(decay);
    table.widths(decay);
    table.strengths(decay);
    table.exact(decay);
    table.delta_rule(decay);
    table.delta_on_tensor_cores(decay);
  }
  return table.cases;
}

const std::vector<Case> &whole_table() {
  static const auto *const cases = new std::vector<Case>(build());
  return *cases;
}

// Under the delta rule ranks and threads share the same for every decay that is there: a quick run has one and
// none.
bool is_quick(const Case &c) {
  return c.quick && !(c.delta && (c.decay == LASP_DECAY_HEAD || c.decay == LASP_DECAY_SCALAR));
}

std::vector<Case> selected() {
  std::vector<Case> cases;
  for (const Case &c : whole_table()) {
    if (!quick_run() || is_quick(c)) cases.push_back(c);
  }
  return cases;
}

}  // namespace

const std::vector<Case> &all_cases() {
  static const auto *const cases = new std::vector<Case>(selected());
  return *cases;
}

const Case &case_named(const std::string &name) {
  for (const Case &c : whole_table()) {
    if (c.name == name) return c;
  }
  throw std::runtime_error("no case named " + name);
}

}  // namespace lasp_test
