// The cases of delta_fast_test.cpp.
#pragma once

#include <cmath>
#include <vector>

#include "device_memory.h"

namespace lasp::gpu {

struct DeltaFastCase {
  const char *name = "";
  DType dtype = DType::kBFloat16;
  int32_t heads = 2, heads_q = 0, heads_k = 0;  // 0: as many
  int64_t batch = 1, tokens = 256;
  int32_t columns = 128;  // of V: a multiple of 16 from 32 to 256; K is 128
  std::vector<Run> runs;
  Decay decay = Decay::kNone;
  DType decay_dtype = DType::kFloat32;
  bool odd_decays = false;  // they begin one element behind where two of them would
  float strongest = 0.1f;   // log decays are drawn from [-strongest, 0]; negative: all are that
  bool mixed = false;       // of each channel, or head, from a range of its own, over 4 powers of ten
  float beta = 1;           // beta from [0, beta]; negative: all -beta
  float alike = 0;          // how much keys have in common
  float length = 1;         // of keys
  bool grows = false;  // of each 576 tokens the first 256 let a state grow by 2^40, the others leave 2^-42 of it
  bool state = true, transition = false, backward = true;
  bool staged = false;  // gradients of q, k and v in float32, which stretches need above 128 columns
  bool exact = false;   // and never rounded to less
  bool pairs = false;   // the launch adds dq and dk of two heads each
  int64_t padding = 0;  // elements between tokens
  int32_t spacing = 256;
  bool maps = false;    // the walk back has what the walk forward knows of parts
  bool beside = false;  // both walks go beside their preparation
};

inline std::vector<DeltaFastCase> delta_fast_cases() {
  std::vector<DeltaFastCase> all;
  const auto add = [&](const char *name, auto change) {
    DeltaFastCase c;
    c.name = name;
    change(c);
    if (c.runs.empty())
      for (int64_t b = 0; b < c.batch; ++b) c.runs.push_back(make_run(b, 0, int32_t(c.tokens)));
    all.push_back(c);
  };
  add("one chunk", [](DeltaFastCase &c) { c.tokens = 64; });
  add("two chunks", [](DeltaFastCase &c) { c.tokens = 128; });
  add("eight chunks", [](DeltaFastCase &c) { c.tokens = 512; });
  add("float16", [](DeltaFastCase &c) { c.tokens = 512, c.dtype = DType::kFloat16; });
  add("one token", [](DeltaFastCase &c) { c.tokens = 1, c.heads = 64; });
  add("tail 63", [](DeltaFastCase &c) { c.tokens = 63; });
  add("tail 75, batch", [](DeltaFastCase &c) { c.tokens = 75, c.batch = 2, c.transition = true; });
  add("tail 500, per token", [](DeltaFastCase &c) { c.tokens = 500, c.decay = Decay::kScalar; });
  add("M", [](DeltaFastCase &c) { c.tokens = 200, c.transition = true, c.decay = Decay::kScalar; });
  add("M beta 2", [](DeltaFastCase &c) { c.tokens = 512, c.transition = true, c.beta = -2; });
  add("per head", [](DeltaFastCase &c) { c.tokens = 320, c.decay = Decay::kHead; });
  // One walk back takes these in several windows, the last one in parts.
  add("windows, pairs, float16", [](DeltaFastCase &c) {
    c.tokens = 1100, c.heads = 132, c.heads_q = c.heads_k = 66, c.pairs = true, c.dtype = DType::kFloat16;
  });
  add("windows of parts",
      [](DeltaFastCase &c) { c.tokens = 2560, c.heads = 66, c.decay = Decay::kHead, c.strongest = 0.002f; });
  add("per token, 16-bit g, padded", [](DeltaFastCase &c) {
    c.tokens = 320, c.decay = Decay::kScalar, c.decay_dtype = DType::kBFloat16, c.padding = 64;
  });
  add("strong", [](DeltaFastCase &c) { c.tokens = 320, c.decay = Decay::kScalar, c.strongest = 20; });
  // Decays of chunks on both sides of what is narrow (is_narrow): near 2^-64, or in float16 2^-4.
  add("narrow, barely",
      [](DeltaFastCase &c) { c.tokens = 640, c.decay = Decay::kScalar, c.strongest = -0.692f, c.beta = 2; });
  add("narrow or not", [](DeltaFastCase &c) { c.tokens = 1000, c.decay = Decay::kScalar, c.strongest = 1.386f; });
  add("narrow or not, float16", [](DeltaFastCase &c) {
    c.tokens = 1000, c.decay = Decay::kScalar, c.strongest = 0.087f, c.dtype = DType::kFloat16;
  });
  add("not narrow, float16", [](DeltaFastCase &c) {
    c.tokens = 320, c.decay = Decay::kScalar, c.strongest = 0.45f, c.dtype = DType::kFloat16;
  });
  add("grouped", [](DeltaFastCase &c) {
    c.tokens = 320, c.heads = 4, c.heads_q = 2, c.heads_k = 1, c.decay = Decay::kScalar;
  });
  const auto in_pairs = [](DeltaFastCase &c) { c.heads = 4, c.heads_q = c.heads_k = 2, c.pairs = true; };
  // Of many lengths, one of them 0 and one 1, with gaps between some.
  const auto in_runs = [](DeltaFastCase &c) {
    c.tokens = 700;
    c.runs = {make_run(0, 0, 64), make_run(0, 64, 0), make_run(0, 70, 257), make_run(0, 330, 1),
              make_run(0, 331, 369)};
  };
  add("pairs", [&](DeltaFastCase &c) { in_pairs(c), c.tokens = 320, c.decay = Decay::kScalar; });
  add("pairs, float16, no decay",
      [&](DeltaFastCase &c) { in_pairs(c), c.tokens = 520, c.dtype = DType::kFloat16; });
  add("pairs of fours, exact", [&](DeltaFastCase &c) {
    in_pairs(c), c.heads_k = 1, c.tokens = 200, c.decay = Decay::kScalar, c.staged = c.exact = true;
  });
  add("pairs, runs", [&](DeltaFastCase &c) { in_pairs(c), in_runs(c), c.decay = Decay::kHead; });
  add("staged", [](DeltaFastCase &c) { c.tokens = 75, c.staged = true, c.decay = Decay::kScalar; });
  add("runs", [&](DeltaFastCase &c) { in_runs(c), c.decay = Decay::kScalar; });
  add("beta 2", [](DeltaFastCase &c) { c.tokens = 1024, c.beta = -2; });
  add("beta to 2", [](DeltaFastCase &c) { c.tokens = 1024, c.beta = 2; });
  add("alike 0.9", [](DeltaFastCase &c) { c.tokens = 1024, c.alike = 0.9f; });
  add("alike 0.9, gates", [](DeltaFastCase &c) { c.tokens = 1024, c.alike = 0.9f, c.decay = Decay::kScalar; });
  add("alike 0.9, beta to 2, gates",
      [](DeltaFastCase &c) { c.tokens = 1024, c.alike = 0.9f, c.decay = Decay::kScalar, c.beta = 2; });
  add("alike 0.9, beta 2", [](DeltaFastCase &c) { c.tokens = 1024, c.alike = 0.9f, c.beta = -2; });
  add("alike 0.9, beta to 2, float16", [](DeltaFastCase &c) {
    c.tokens = 1024, c.alike = 0.9f, c.decay = Decay::kScalar, c.beta = 2, c.dtype = DType::kFloat16;
  });
  add("parts", [](DeltaFastCase &c) {
    c.tokens = 8700, c.heads = 1, c.decay = Decay::kScalar, c.strongest = 0.01f;
    c.runs = {make_run(0, 0, 8400), make_run(0, 8400, 300)};
  });
  add("parts, M", [](DeltaFastCase &c) { c.tokens = 8200, c.heads = 1, c.transition = true, c.beta = 2; });
  add("parts, M, float16", [](DeltaFastCase &c) {
    c.tokens = 1100, c.heads = 3, c.transition = true, c.decay = Decay::kScalar, c.strongest = 0.001f;
    c.dtype = DType::kFloat16;  // in longer runs M falls below what float16 has
  });
  // So many blocks that M of parts has blocks of its own.
  add("parts, M of many heads", [](DeltaFastCase &c) { c.tokens = 5120, c.heads = 32, c.columns = 64; });
  // Of parts of 576 tokens all, or some, forget what enters them.
  add("forgetting parts", [](DeltaFastCase &c) {
    c.tokens = 1900, c.heads = 1, c.decay = Decay::kScalar, c.strongest = 0.2f, c.transition = true;
    c.runs = {make_run(0, 0, 1700), make_run(0, 1700, 200)};
  });
  add("some forget", [](DeltaFastCase &c) {
    c.tokens = 1700, c.heads = 4, c.decay = Decay::kScalar, c.strongest = 0.2f, c.mixed = true, c.transition = true;
  });
  // Decays alone would be below 2^-40 after 40 tokens. But each token multiplies what lies along its key by -2,
  // too.
  add("long keys forget nothing", [](DeltaFastCase &c) {
    c.tokens = 1700, c.heads = 1, c.decay = Decay::kScalar, c.strongest = -0.698f;
    c.alike = 1, c.length = std::sqrt(3.0f), c.beta = -1;
  });
  // The last five chunks of a part leave less than 2^-40 of a state, but it grows by as much before them.
  add("growth before decay", [](DeltaFastCase &c) {
    c.tokens = 1700, c.heads = 1, c.decay = Decay::kScalar, c.grows = true;
    c.alike = 1, c.length = std::sqrt(3.0f), c.beta = -1;
  });
  add("columns 64",
      [](DeltaFastCase &c) { c.tokens = 200, c.columns = 64, c.decay = Decay::kScalar, c.transition = true; });
  const auto more_columns = [](DeltaFastCase &c, int32_t columns) { c.columns = columns, c.staged = true; };
  add("columns 192", [&](DeltaFastCase &c) {
    more_columns(c, 192), c.tokens = 320, c.decay = Decay::kScalar, c.transition = true;
  });
  add("columns 256, no decay",
      [&](DeltaFastCase &c) { more_columns(c, 256), c.tokens = 1100, c.dtype = DType::kFloat16; });
  add("columns 256, runs", [&](DeltaFastCase &c) { more_columns(c, 256), in_runs(c), c.decay = Decay::kScalar; });
  add("columns 256, beta 2, alike 0.9",
      [&](DeltaFastCase &c) { more_columns(c, 256), c.tokens = 1024, c.beta = -2, c.alike = 0.9f; });
  // Cut in parts of whole stretches, as one walk back needs them; the second slice of a block is padding.
  add("columns 160, parts", [&](DeltaFastCase &c) {
    more_columns(c, 160), c.tokens = 2000, c.heads = 4, c.decay = Decay::kHead, c.strongest = 0.002f;
  });
  add("columns 64, parts", [](DeltaFastCase &c) {
    c.tokens = 2000, c.heads = 4, c.columns = 64, c.decay = Decay::kHead, c.strongest = 0.002f;
  });
  // One walk back takes this in several windows.
  add("columns 144, windows", [&](DeltaFastCase &c) { more_columns(c, 144), c.tokens = 520, c.heads = 132; });
  add("no states", [](DeltaFastCase &c) { c.tokens = 256, c.state = false, c.decay = Decay::kScalar; });
  add("channel, one chunk", [](DeltaFastCase &c) { c.tokens = 64, c.decay = Decay::kChannel; });
  add("channel", [](DeltaFastCase &c) { c.tokens = 512, c.decay = Decay::kChannel, c.transition = true; });
  add("channel, float16",
      [](DeltaFastCase &c) { c.tokens = 512, c.decay = Decay::kChannel, c.dtype = DType::kFloat16; });
  add("channel, tail 75, batch", [](DeltaFastCase &c) {
    c.tokens = 75, c.batch = 2, c.decay = Decay::kChannel, c.transition = true, c.staged = true;
  });
  add("channel, one token", [](DeltaFastCase &c) { c.tokens = 1, c.heads = 64, c.decay = Decay::kChannel; });
  add("channel, 16-bit g, padded", [](DeltaFastCase &c) {
    c.tokens = 320, c.decay = Decay::kChannel, c.decay_dtype = DType::kBFloat16, c.padding = 64;
  });
  add("channel, odd decays",
      [](DeltaFastCase &c) { c.tokens = 320, c.decay = Decay::kChannel, c.odd_decays = true; });
  add("channel, 16-bit g, odd decays", [](DeltaFastCase &c) {
    c.tokens = 320, c.decay = Decay::kChannel, c.decay_dtype = DType::kBFloat16, c.odd_decays = true;
  });
  add("channel, 16-bit g, float16", [](DeltaFastCase &c) {
    c.tokens = 640, c.decay = Decay::kChannel, c.decay_dtype = c.dtype = DType::kFloat16;
  });
  // So many heads: where decay is strong, few tokens decide.
  add("channel, strong",
      [](DeltaFastCase &c) { c.tokens = 320, c.heads = 16, c.decay = Decay::kChannel, c.strongest = 5; });
  add("channel, strong but narrow",
      [](DeltaFastCase &c) { c.tokens = 320, c.heads = 16, c.decay = Decay::kChannel, c.strongest = 1.5f; });
  add("channel, strongest",
      [](DeltaFastCase &c) { c.tokens = 320, c.heads = 16, c.decay = Decay::kChannel, c.strongest = 300; });
  add("channel, mixed", [](DeltaFastCase &c) {
    c.tokens = 1024, c.decay = Decay::kChannel, c.strongest = 20, c.mixed = true, c.alike = 0.9f, c.beta = 2;
  });
  add("channel, mixed, float16", [](DeltaFastCase &c) {
    c.tokens = 320, c.decay = Decay::kChannel, c.strongest = 20, c.mixed = true, c.dtype = DType::kFloat16;
  });
  add("channel, weak, beta 2",
      [](DeltaFastCase &c) { c.tokens = 1024, c.decay = Decay::kChannel, c.strongest = 0.001f, c.beta = -2; });
  add("channel, weak, alike 0.9",
      [](DeltaFastCase &c) { c.tokens = 1024, c.decay = Decay::kChannel, c.strongest = 0.001f, c.alike = 0.9f; });
  add("channel, alike 0.9, beta 2",
      [](DeltaFastCase &c) { c.tokens = 1024, c.decay = Decay::kChannel, c.alike = 0.9f, c.beta = -2; });
  add("channel, grouped", [](DeltaFastCase &c) {
    c.tokens = 320, c.heads = 4, c.heads_q = 2, c.heads_k = 1, c.decay = Decay::kChannel;
  });
  add("channel, runs", [&](DeltaFastCase &c) { in_runs(c), c.decay = Decay::kChannel; });
  add("channel, parts", [](DeltaFastCase &c) {
    c.tokens = 4300, c.heads = 1, c.decay = Decay::kChannel, c.strongest = 0.01f, c.transition = true;
    c.runs = {make_run(0, 0, 4000), make_run(0, 4000, 300)};
  });
  // More chunks than there are blocks that prepare, which take one after the other.
  add("channel, many chunks", [](DeltaFastCase &c) {
    c.tokens = 200, c.batch = 3, c.heads = 32, c.columns = 32, c.decay = Decay::kChannel, c.strongest = 2.2f;
  });
  // Walks beside their preparation, of more chunks than there are blocks that prepare.
  const auto beside = [](DeltaFastCase &c) {
    c.tokens = 1100, c.heads = 32, c.decay = Decay::kChannel, c.beside = true;
  };
  add("channel, beside", [&](DeltaFastCase &c) { beside(c), c.columns = 80, c.strongest = 2.2f; });
  add("channel, beside, float16", [&](DeltaFastCase &c) {
    beside(c), c.columns = 32, c.dtype = DType::kFloat16, c.padding = 8, c.state = false;
  });
  add("channel, no decay, no states",
      [](DeltaFastCase &c) { c.tokens = 256, c.state = false, c.decay = Decay::kChannel, c.strongest = 0; });
  return all;
}

}  // namespace lasp::gpu
