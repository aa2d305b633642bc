// Packing arrays: sequences laid end to end and cut over one to four ranks anywhere, with offsets that are damaged
// or raw. All ranks accept or none does, and what they say of every sequence is the same and true.
#include <memory>

#include "group.h"
#include "problems.h"

namespace lasp_fuzz {
namespace {

constexpr int32_t kMostRanks = 4;

// Made once: over an honest transport nothing may break a group.
Group &group(int32_t nranks, bool verify) {
  static std::unique_ptr<Group> groups[2][kMostRanks];
  std::unique_ptr<Group> &one = groups[verify][nranks - 1];
  if (one == nullptr) one = std::make_unique<Group>(Group::Options{.nranks = nranks, .verify_messages = verify});
  return *one;
}

struct Ranks {
  lasp_problem problems[kMostRanks];
  lasp_plan *plans[kMostRanks] = {};
  lasp_plan_info infos[kMostRanks];
};

// Offsets by themselves: lengths of any kind, and arrays of nothing but raw numbers.
void raw_offsets(Draw &in, Memory &memory, std::span<lasp_problem> ranks) {
  const int32_t count = in.below(20);
  auto *offsets =
      reinterpret_cast<int64_t *>(memory.take(static_cast<uint64_t>(count + 1) * 8, alignof(int64_t), 0));
  const bool sorted = !in.rarely(2);
  for (int32_t i = sorted ? 1 : 0; i <= count; ++i) {
    const int64_t length = in.below(in.rarely(4) ? 200 : 8);
    if (in.rarely(12) || __builtin_add_overflow(sorted ? offsets[i - 1] : 0, length, &offsets[i]))
      offsets[i] = in.nasty64();
  }
  int64_t left = offsets[count];
  if (left < 0 || left > 4096) left = in.below(64);
  for (lasp_problem &p : ranks) {
    p.tokens = &p == &ranks.back() ? left : in.below(256) % (left + 1);
    left -= p.tokens;
    if (in.rarely(24)) p.tokens = in.below(300);
    if (in.rarely(16)) p.token_begin = in.rarely(2) ? in.nasty64() : in.below(64);
    p.cu_seqlens = offsets;
    p.num_sequences = count;
  }
}

void compare(const Ranks &ranks, int32_t nranks) {
  const lasp_plan_info &first = ranks.infos[0];
  int64_t begin = 0;
  for (int32_t r = 0; r < nranks; ++r) {
    const lasp_plan_info &info = ranks.infos[r];
    if (info.token_begin != begin || info.total_tokens != first.total_tokens || info.rank != r ||
        info.schedule != first.schedule || info.pieces != first.pieces || info.chunk != first.chunk ||
        info.num_sequences != first.num_sequences)
      broken("ranks whose plans differ");
    begin += ranks.problems[r].tokens;
  }
  if (begin != first.total_tokens) broken("tokens that do not add up");
  const bool packed = ranks.problems[0].cu_seqlens != nullptr;
  for (int64_t n = 0; n < first.num_sequences; ++n) {
    lasp_sequence_info s = LASP_SEQUENCE_INFO_INIT;
    for (int32_t r = 0; r < nranks; ++r) {
      lasp_sequence_info other = LASP_SEQUENCE_INFO_INIT;
      if (lasp_plan_get_sequence(ranks.plans[r], n, &other) != LASP_OK) broken("no sequence");
      if (r == 0) s = other;
      if (std::memcmp(&s, &other, sizeof s) != 0) broken("ranks that place a sequence differently");
    }
    if (packed && (s.begin != ranks.problems[0].cu_seqlens[n] || s.end != ranks.problems[0].cu_seqlens[n + 1]))
      broken("a sequence that is elsewhere");
    if (s.first_rank < 0 || s.first_rank > s.last_rank || s.last_rank >= nranks) broken("ranks that there are not");
    const auto holds = [&](int32_t rank, int64_t token) {
      const int64_t from = ranks.infos[rank].token_begin;
      return token >= from && token < from + ranks.problems[rank].tokens;
    };
    if (s.begin < s.end && (!holds(s.first_rank, s.begin) || !holds(s.last_rank, s.end - 1)))
      broken("a sequence whose ranks do not hold its ends");
  }
}

}  // namespace

void prepare() {
  for (int32_t nranks = 1; nranks <= kMostRanks; ++nranks) group(nranks, false), group(nranks, true);
}

void one_input(Draw &in) {
  Memory memory;
  constexpr int32_t kRanks[] = {1, 1, 1, 2, 1, 1, 3, 4};
  const int32_t nranks = in.one_of(kRanks);
  Group &ranks = group(nranks, in.rarely(4));
  Ranks r;
  const std::span<lasp_problem> problems(r.problems, static_cast<size_t>(nranks));
  const bool raw = in.rarely(3);
  plausible(in, memory, problems, {.damage = !raw, .packed = true, .most_dim = 8});
  if (raw) {
    for (lasp_problem &p : problems) p.batch = 1;
    raw_offsets(in, memory, problems);
  }
  lasp_problem *given[kMostRanks];
  for (int32_t i = 0; i < nranks; ++i) given[i] = memory.place(in, r.problems[i]);
  const auto &statuses = ranks.all(
      [&](int32_t i) { return lasp_plan_create(ranks.context(i), given[i], &r.plans[i]); }, in.below(4) % nranks);
  for (int32_t i = 0; i < nranks; ++i) {
    if ((statuses[static_cast<size_t>(i)] == LASP_OK) != (statuses[0] == LASP_OK))
      broken("ranks that do not agree");
    if ((r.plans[i] != nullptr) != (statuses[0] == LASP_OK)) broken("a plan beside an error, or none");
    if (statuses[static_cast<size_t>(i)] >= 500) broken("an honest group that lost somebody");
  }
  if (statuses[0] != LASP_OK) return;
  for (int32_t i = 0; i < nranks; ++i) {
    std::memset(&r.problems[i], 0, sizeof r.problems[i]);
    std::memcpy(&r.problems[i], given[i], std::min(given[i]->size, sizeof r.problems[i]));
    r.infos[i] = LASP_PLAN_INFO_INIT;
    if (lasp_plan_get_info(r.plans[i], &r.infos[i]) != LASP_OK) broken("no info of a live plan");
  }
  compare(r, nranks);
  for (int32_t i = 0; i < nranks; ++i)
    if (lasp_plan_destroy(r.plans[i]) != LASP_OK) broken("a plan that cannot be destroyed");
}

}  // namespace lasp_fuzz
