// Sizes, splits, data and oracle results of a case.
#include "support/case.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>

#include "support/dtype.h"

namespace lasp_test {

const char *const kTensorNames[kTensors] = {"o",       "final_state",     "dq",    "dk", "dv",
                                            "d_decay", "d_initial_state", "d_beta"};

int64_t Case::heads() const { return std::max({heads_q, heads_k, heads_v}); }

int64_t Case::num_sequences() const {
  return cu_seqlens.empty() ? batch : static_cast<int64_t>(cu_seqlens.size()) - 1;
}

double Case::scale_value() const {
  if (zero_scale) return 0;
  return scale != 0.0f ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim_k));
}

std::vector<int64_t> tokens_of_ranks(const Case &c, int32_t nranks) {
  if (c.ownership == LASP_OWN_ZIGZAG || c.ownership == LASP_OWN_ZIGZAG_EACH)
    return std::vector<int64_t>(nranks, c.tokens / nranks);
  if (c.ownership == LASP_OWN_RUNS) {
    std::vector<int64_t> sums(nranks, 0);
    for (const lasp_run &run : listed_runs(c, nranks)) sums[run.rank] += run.tokens;
    return sums;
  }
  std::vector<int64_t> tokens(nranks, 0);
  if (c.segment > 0) {  // the same split of whole segments; the last one may be short
    Case segments = c;
    segments.segment = 0;
    segments.tokens = (c.tokens + c.segment - 1) / c.segment;
    tokens = tokens_of_ranks(segments, nranks);
    int64_t end = 0;
    for (int64_t &count : tokens) {
      const int64_t begin = std::min(end * c.segment, c.tokens);
      end += count;
      count = std::min(end * c.segment, c.tokens) - begin;
    }
    return tokens;
  }
  int64_t left = c.tokens;
  for (int32_t r = 0; r < nranks; ++r) {
    const bool last = r == nranks - 1;
    int64_t wanted = left;
    if (c.split == Split::even) {
      wanted = c.tokens / nranks + (r < c.tokens % nranks ? 1 : 0);
    } else if (c.split == Split::ragged) {
      wanted = last ? left : left * (1 + (r * 5 + 3) % 7) / (8 + nranks - r);
    } else if (c.split == Split::free) {
      const double end = last ? 1.0 : c.cuts.at(static_cast<size_t>(r));
      wanted = left - c.tokens + static_cast<int64_t>(std::llround(end * static_cast<double>(c.tokens)));
    } else if (!last) {
      wanted = std::array<int64_t, 3>{0, 1, 17}[r % 3];
    }
    tokens[r] = std::min(wanted, left);
    left -= tokens[r];
  }
  if (c.split == Split::sparse_reversed) std::reverse(tokens.begin(), tokens.end());
  return tokens;
}

std::vector<lasp_run> listed_runs(const Case &c, int32_t nranks) {
  std::vector<lasp_run> runs;
  int64_t left = c.tokens;
  for (int64_t i = 0; left > 0; ++i) {
    const bool last = i == 3 * nranks;
    const int64_t tokens = last || i % 4 == 2 ? 0 : std::min(left, 1 + c.tokens * (1 + i * 5 % 7) / (9 * nranks));
    // Of three ranks and more the second has none. Ranks' later runs are in another order than their first ones.
    int64_t rank = i < nranks ? i : i * i * 3 % nranks;
    if (nranks > 2 && rank == 1) rank = 0;
    runs.push_back({last ? left : tokens, static_cast<int32_t>(rank), 0});
    left -= runs.back().tokens;
  }
  if (runs.empty()) runs.push_back({0, 0, 0});
  return runs;
}

std::vector<TokenRun> runs_of_rank(const Case &c, int32_t rank, int32_t nranks) {
  if (c.ownership == LASP_OWN_ZIGZAG_EACH) {
    std::vector<TokenRun> own;
    for (size_t n = 0; n + 1 < c.cu_seqlens.size(); ++n) {
      const int64_t begin = c.cu_seqlens[n], part = (c.cu_seqlens[n + 1] - begin) / (2 * nranks);
      own.push_back({begin + rank * part, part});
      own.push_back({begin + (2 * nranks - 1 - rank) * part, part});
    }
    // Whose padding is which nobody can tell.
    const int64_t used = c.cu_seqlens.empty() ? 0 : c.cu_seqlens.back(), padding = (c.tokens - used) / nranks;
    own.push_back({used + rank * padding, padding});
    return own;
  }
  if (c.ownership == LASP_OWN_ZIGZAG) {
    const int64_t part = c.tokens / nranks / 2;
    return {{rank * part, part}, {(2 * nranks - 1 - rank) * part, part}};
  }
  if (c.ownership == LASP_OWN_RUNS) {
    std::vector<TokenRun> own;
    int64_t begin = 0;
    for (const lasp_run &run : listed_runs(c, nranks)) {
      if (run.rank == rank && run.tokens > 0) own.push_back({begin, run.tokens});
      begin += run.tokens;
    }
    return own;
  }
  const std::vector<int64_t> tokens = tokens_of_ranks(c, nranks);
  return {{std::accumulate(tokens.begin(), tokens.begin() + rank, int64_t{0}), tokens[rank]}};
}

namespace {

// visit(place in the order of ranks, place in the order of tokens, numbers of a token) for each token of each row.
template <class Visit>
void each_token(const Case &c, int32_t nranks, size_t size, Visit visit) {
  const int64_t width = c.tokens == 0 ? 0 : static_cast<int64_t>(size) / (c.batch * c.tokens);
  for (int64_t b = 0; b < c.batch; ++b) {
    int64_t at = b * c.tokens;
    for (int32_t rank = 0; rank < nranks; ++rank)
      for (const TokenRun &run : runs_of_rank(c, rank, nranks))
        for (int64_t t = run.begin; t < run.begin + run.count; ++t, ++at)
          visit(at * width, (b * c.tokens + t) * width, width);
  }
}

}  // namespace

std::vector<float> in_order_of_ranks(const Case &c, int32_t nranks, const std::vector<float> &x) {
  std::vector<float> to(x.size());
  each_token(c, nranks, x.size(), [&](int64_t of_rank, int64_t of_token, int64_t width) {
    std::copy_n(x.begin() + of_token, width, to.begin() + of_rank);
  });
  return to;
}

std::vector<double> in_order_of_tokens(const Case &c, int32_t nranks, const std::vector<double> &x) {
  std::vector<double> to(x.size());
  each_token(c, nranks, x.size(), [&](int64_t of_rank, int64_t of_token, int64_t width) {
    std::copy_n(x.begin() + of_rank, width, to.begin() + of_token);
  });
  return to;
}

std::vector<SequenceOwner> sequence_owners(const Case &c, int32_t nranks) {
  const auto rank_of = [&](int64_t token) {
    int32_t owner = nranks - 1;
    for (int32_t rank = 0; rank < nranks; ++rank)
      for (const TokenRun &run : runs_of_rank(c, rank, nranks))
        if (run.begin <= token && token < run.begin + run.count) owner = rank;
    return owner;
  };
  // Behind all tokens: the rank whose run is the last.
  const auto last_rank = [&] {
    int64_t latest = -1;
    int32_t owner = nranks - 1;
    for (int32_t rank = 0; rank < nranks; ++rank)
      for (const TokenRun &run : runs_of_rank(c, rank, nranks))
        if (run.begin >= latest) latest = run.begin, owner = rank;
    return owner;
  };
  std::vector<SequenceOwner> owners;
  if (c.ownership == LASP_OWN_ZIGZAG_EACH) {
    for (int64_t n = 0; n < c.num_sequences(); ++n) owners.push_back({c.cu_seqlens[n], c.cu_seqlens[n + 1], 0, 0});
    return owners;
  }
  for (int64_t n = 0; n < c.num_sequences(); ++n) {
    const int64_t begin = c.cu_seqlens.empty() ? 0 : c.cu_seqlens[n];
    const int64_t end = c.cu_seqlens.empty() ? c.tokens : c.cu_seqlens[n + 1];
    const int32_t first = begin == c.tokens ? last_rank() : rank_of(begin);
    owners.push_back({begin, end, first, begin == end ? first : rank_of(end - 1)});
  }
  return owners;
}

namespace {

// Standard distributions differ between C++ libraries; these do not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }
  double normal() { return std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * M_PI * uniform()); }
  double small_integer() { return static_cast<double>(engine_() % 5) - 2.0; }

 private:
  std::mt19937_64 engine_;
};

uint64_t seed_of(const std::string &name, uint64_t seed) {
  uint64_t hash = 14695981039346656037ull + seed;  // FNV-1a
  for (const char ch : name) hash = (hash ^ static_cast<uint8_t>(ch)) * 1099511628211ull;
  return hash;
}

std::vector<float> values(const Case &c, Random &random, int64_t count, int32_t dtype) {
  std::vector<float> result(count);
  for (float &x : result) x = round_to_dtype(c.exact ? random.small_integer() : random.normal(), dtype);
  return result;
}

std::vector<float> decays(const Case &c, Random &random) {
  const int64_t tokens = c.batch * c.tokens * c.heads();
  const int64_t counts[] = {0, c.heads(), tokens, tokens * c.head_dim_k};
  std::vector<float> g(counts[c.decay]);
  const int32_t dtype = c.decay == LASP_DECAY_HEAD ? LASP_FLOAT32 : c.decay_dtype;
  for (float &x : g) {
    double value = c.constant_decay != 0.0 ? c.constant_decay : c.mean_decay * std::log(random.uniform());
    if (c.open_gates > 0.0 && random.uniform() < c.open_gates) value = 0.0;
    if (c.exact) value = c.decay == LASP_DECAY_HEAD ? -M_LN2 : 0.0;
    x = round_to_dtype(value, dtype);
  }
  return g;
}

// Keys of length 1, and with a share of one direction. An exact case has one-hot keys: with a beta of 0 or 1 a
// token leaves a row of the state, or replaces it.
void make_delta_keys(const Case &c, Random &random, std::vector<float> &k) {
  const auto width = static_cast<size_t>(c.head_dim_k);
  std::vector<double> common(width), row(width);
  double size = 0.0;
  for (double &x : common) x = random.normal(), size += x * x;
  for (double &x : common) x /= std::sqrt(size);
  for (size_t at = 0; at < k.size(); at += width) {
    if (c.exact) {
      std::fill_n(k.begin() + at, width, 0.0f);
      k[at + static_cast<size_t>(random.uniform() * static_cast<double>(width))] = 1.0f;
      continue;
    }
    double length = 0.0;
    for (size_t i = 0; i < width; ++i) length += double{k[at + i]} * k[at + i];
    double sum = 0.0;
    for (size_t i = 0; i < width; ++i) {
      row[i] = std::sqrt(c.key_correlation) * common[i] + std::sqrt((1 - c.key_correlation) / length) * k[at + i];
      sum += row[i] * row[i];
    }
    for (size_t i = 0; i < width; ++i) k[at + i] = round_to_dtype(row[i] / std::sqrt(sum), c.dtype);
  }
}

std::vector<float> betas(const Case &c, Random &random) {
  std::vector<float> beta(static_cast<size_t>(c.batch * c.tokens * c.heads()));
  for (size_t i = 0; i < beta.size(); ++i) {
    double value = c.constant_beta >= 0 ? c.constant_beta : c.most_beta * random.uniform();
    if (c.exact) value = random.uniform() < 0.5 ? 0.0 : 1.0;
    if (c.constant_beta < 0 && i / static_cast<size_t>(c.heads()) % 7 == 3) value = 0.0;
    beta[i] = round_to_dtype(value, c.beta_dtype);
  }
  return beta;
}

// With a decay of 1/2 per token, three tokens in four stay zero, so that sums over 16 tokens are exact.
void keep_every_fourth(std::vector<float> &x, int64_t row) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (i / row % 4 != 0) x[i] = 0.0f;
  }
}

// Along an axis every element becomes the first one's.
void expand(const Case &c, std::vector<float> &x, Operand operand, int64_t heads, int64_t dim) {
  if (x.empty()) return;
  const Axis axis = expanded_axis(operand);
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t t = 0; t < c.tokens; ++t)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t row = axis == Axis::batch ? 0 : b, token = axis == Axis::token ? 0 : t,
                        head = axis == Axis::head ? 0 : h;
          x[((b * c.tokens + t) * heads + h) * dim + d] = x[((row * c.tokens + token) * heads + head) * dim + d];
        }
}

}  // namespace

Axis expanded_axis(Operand operand) {
  switch (operand) {
    case Operand::q: return Axis::token;
    case Operand::k: return Axis::head;
    case Operand::v: return Axis::batch;
    case Operand::d_o: return Axis::head;
    case Operand::decay: return Axis::token;
    default: return Axis::none;
  }
}

CaseData make_data(const Case &c, uint64_t seed) {
  Random random(seed_of(c.name, seed));
  const int64_t rows = c.batch * c.tokens, states = c.num_sequences() * c.heads() * c.head_dim_k * c.head_dim_v;
  CaseData d;
  d.q = values(c, random, rows * c.heads_q * c.head_dim_k, c.dtype);
  d.k = values(c, random, rows * c.heads_k * c.head_dim_k, c.dtype);
  d.v = values(c, random, rows * c.heads_v * c.head_dim_v, c.dtype);
  d.d_o = values(c, random, rows * c.heads() * c.head_dim_v, c.dtype);
  d.g = decays(c, random);
  if (c.layout == Layout::expanded) {
    expand(c, d.q, Operand::q, c.heads_q, c.head_dim_k);
    expand(c, d.k, Operand::k, c.heads_k, c.head_dim_k);
    expand(c, d.v, Operand::v, c.heads_v, c.head_dim_v);
    expand(c, d.d_o, Operand::d_o, c.heads(), c.head_dim_v);
    if (c.decay == LASP_DECAY_SCALAR) expand(c, d.g, Operand::decay, c.heads(), 1);
    if (c.decay == LASP_DECAY_CHANNEL) expand(c, d.g, Operand::decay, c.heads(), c.head_dim_k);
  }
  if (c.states) {
    d.initial_state = values(c, random, states, LASP_FLOAT32);
    d.d_final_state = values(c, random, states, LASP_FLOAT32);
  }
  if (c.delta) {
    make_delta_keys(c, random, d.k);
    d.beta = betas(c, random);
  }
  if (c.exact && c.decay == LASP_DECAY_HEAD) {
    keep_every_fourth(d.q, c.heads_q * c.head_dim_k);
    keep_every_fourth(d.k, c.heads_k * c.head_dim_k);
    keep_every_fourth(d.d_o, c.heads() * c.head_dim_v);
  }
  return d;
}

OracleOutputs oracle_of(const Case &c, const CaseData &data) {
  OracleProblem p;
  p.batch = c.batch, p.tokens = c.tokens;
  p.heads_q = c.heads_q, p.heads_k = c.heads_k, p.heads_v = c.heads_v;
  p.head_dim_k = c.head_dim_k, p.head_dim_v = c.head_dim_v;
  p.decay = static_cast<OracleDecay>(c.decay);
  p.delta = c.delta;
  p.bidirectional = c.mask == LASP_MASK_BIDIRECTIONAL;
  p.scale = c.scale_value();
  p.cu_seqlens = c.cu_seqlens;
  const auto widen = [](const std::vector<float> &x) { return std::vector<double>(x.begin(), x.end()); };
  OracleInputs in = {widen(data.q),    widen(data.k),
                     widen(data.v),    widen(data.g),
                     widen(data.beta), widen(data.initial_state),
                     widen(data.d_o),  widen(data.d_final_state)};
  // log(1/2) is no float32: an exact case means the factor 1/2 itself, which std::exp gives for the double.
  if (c.exact && c.decay == LASP_DECAY_HEAD) std::fill(in.g.begin(), in.g.end(), -M_LN2);
  return run_oracle(p, in);
}

Expected expected_of(const Case &c, const CaseData &data) {
  const OracleOutputs out = oracle_of(c, data);
  Expected expected;
  expected.tensors = {out.o, out.final_state, out.dq, out.dk, out.dv, out.dg, out.d_initial_state, out.d_beta};
  for (const double norm : out.dg_norms) expected.d_decay_norm += norm * norm;
  expected.d_decay_norm = std::sqrt(expected.d_decay_norm);
  if (c.decay == LASP_DECAY_HEAD) {
    for (const double size : out.dg_sizes) expected.d_decay_size += size * size;
    expected.d_decay_size = std::sqrt(expected.d_decay_size);
  }
  return expected;
}

std::ostream &operator<<(std::ostream &out, const Case &c) { return out << c.name; }

const CaseData &cached_data(const Case &c) {
  static auto *const cache = new std::map<std::string, CaseData>;
  const auto found = cache->find(c.name);
  return found != cache->end() ? found->second : cache->emplace(c.name, make_data(c)).first->second;
}

const Expected &cached_expected(const Case &c) {
  static auto *const cache = new std::map<std::string, Expected>;
  const auto found = cache->find(c.name);
  return found != cache->end() ? found->second
                               : cache->emplace(c.name, expected_of(c, cached_data(c))).first->second;
}

bool quick_run() { return std::getenv("LASP_TEST_QUICK") != nullptr; }
bool whole_run() { return std::getenv("LASP_TEST_WHOLE") != nullptr; }

}  // namespace lasp_test
