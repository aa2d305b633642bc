// Cases of halos: their text, and drawn ones.
#include <algorithm>
#include <ostream>
#include <random>

#include "support/halo_run.h"

namespace lasp_test {

std::ostream &operator<<(std::ostream &out, const HaloCase &c) {
  out << (c.each ? "zigzag of each, tokens" : c.zigzag ? "zigzag, tokens" : "tokens");
  for (const int64_t t : c.tokens) out << ' ' << t;
  if (!c.cu_seqlens.empty()) out << ", packed at";
  for (const int64_t t : c.cu_seqlens) out << ' ' << t;
  return out << ", batch " << c.batch << ", rows " << c.rows << ", channels " << c.channels << ", types " << c.dtype
             << ' ' << c.d_dtype << ", gap " << c.gap << (c.token_major ? ", token major" : "")
             << (c.one_row ? ", one row" : "");
}

HaloCase drawn_halo(uint32_t seed, int32_t nranks) {
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  HaloCase c;
  const int64_t row_choices[] = {1, 2, 3, 3, 7, 64}, channel_choices[] = {1, 2, 5, 8, 33, 300};
  c.rows = row_choices[below(6)];
  c.channels = channel_choices[below(6)];
  int64_t total = 0;
  for (int32_t r = 0; r < nranks; ++r) {
    const int64_t most[] = {0, 1, 3, c.rows + 1, 2 * c.rows + 20};
    c.tokens.push_back(below(most[below(5)] + 1));
    total += c.tokens.back();
  }
  c.zigzag = below(3) == 0;
  if (c.zigzag) {
    c.tokens.assign(c.tokens.size(), 2 * c.tokens[0]);
    total = nranks * c.tokens[0];
  }
  if (below(2) == 0) {
    c.cu_seqlens = {0, below(4) == 0 ? below(total + 1) : total};  // else there is padding
    for (int64_t i = below(6); i > 0; --i) c.cu_seqlens.push_back(below(total + 1));
    std::sort(c.cu_seqlens.begin(), c.cu_seqlens.end());
  } else {
    c.batch = 1 + below(3);
  }
  c.dtype = LASP_FLOAT32 + static_cast<int32_t>(below(3));
  c.d_dtype = below(2) == 0 ? c.dtype : LASP_FLOAT32 + static_cast<int32_t>(below(3));
  c.gap = below(3) == 0 ? 1 + below(9) : 0;
  c.token_major = below(3) == 0;
  c.one_row = below(8) == 0;
  if (below(5) == 0) {  // a zigzag of each sequence
    c.each = true, c.zigzag = false, c.batch = 1;
    c.cu_seqlens = {0};
    for (int64_t i = 1 + below(4); i > 0; --i) {
      const int64_t part = below(3) == 0 ? 0 : c.rows + below(5);
      c.cu_seqlens.push_back(c.cu_seqlens.back() + 2 * nranks * part);
    }
    c.tokens.assign(c.tokens.size(), c.cu_seqlens.back() / nranks + 2 * below(3));
  }
  return c;
}

}  // namespace lasp_test
