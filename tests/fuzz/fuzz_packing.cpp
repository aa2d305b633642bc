// Packed plans on one to four ranks, their tokens cut anywhere, with sizes that are damaged or raw. All ranks
// accept or none does, and what they say of who holds which tokens is the same and true. (Offsets of passes:
// fuzz_args.cpp.)
#include <algorithm>
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

// Sizes by themselves.
void raw_sizes(Draw &in, std::span<lasp_problem> ranks) {
  const int64_t most = in.rarely(8) ? in.nasty64() : in.below(40);
  for (lasp_problem &p : ranks) {
    p.batch = 1;
    p.tokens = in.rarely(24) ? in.nasty64() : in.below(300);
    p.max_sequences = in.rarely(24) ? in.nasty64() : most;
    if (p.max_sequences > 64 && p.max_sequences <= 1 << 24) p.max_sequences %= 64;
    if (p.tokens > 4096 && p.tokens < int64_t{1} << 34) p.tokens %= 4096;
  }
}

struct Owners {
  lasp_status status = LASP_OK;
  int32_t first = -1, last = -1;
};

void compare(Draw &in, const Ranks &ranks, int32_t nranks) {
  const lasp_plan_info &first = ranks.infos[0];
  // One run each, in the order of ranks; a zigzag's ranks have two, and begin elsewhere.
  const bool in_order = ranks.problems[0].ownership == LASP_OWN_CONTIGUOUS;
  int64_t begin = 0;
  for (int32_t r = 0; r < nranks; ++r) {
    const lasp_plan_info &info = ranks.infos[r];
    if ((in_order && info.token_begin != begin) || info.total_tokens != first.total_tokens || info.rank != r ||
        info.schedule != first.schedule || info.pieces != first.pieces || info.chunk != first.chunk ||
        info.num_sequences != first.num_sequences)
      broken("ranks whose plans differ");
    begin += ranks.problems[r].tokens;
  }
  if (begin != first.total_tokens) broken("tokens that do not add up");
  for (int32_t times = 0; times < 6; ++times) {
    const int64_t from = in.rarely(8) ? in.nasty64() : in.below(128) % (first.total_tokens + 1),
                  to = in.rarely(8) ? in.nasty64() : std::min(from, INT64_MAX - 64) + in.below(64);
    Owners s;
    for (int32_t r = 0; r < nranks; ++r) {
      Owners other;
      other.status = lasp_plan_get_owners(ranks.plans[r], from, to, &other.first, &other.last);
      if (r == 0) s = other;
      if (s.status != other.status || s.first != other.first || s.last != other.last)
        broken("ranks that place a sequence differently");
    }
    const bool there = 0 <= from && from <= to && to <= first.total_tokens;
    if ((s.status == LASP_OK) != there) broken("tokens that there are not");
    if (!there) continue;
    if (s.first < 0 || s.first > s.last || s.last >= nranks) broken("ranks that there are not");
    const auto holds = [&](int32_t rank, int64_t token) {
      const int64_t begins = ranks.infos[rank].token_begin;
      return token >= begins && token < begins + ranks.problems[rank].tokens;
    };
    if (in_order && from < to && (!holds(s.first, from) || !holds(s.last, to - 1)))
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
  plausible(in, problems, {.damage = !raw, .packed = true, .most_dim = 8});
  if (raw) raw_sizes(in, problems);
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
  compare(in, r, nranks);
  for (int32_t i = 0; i < nranks; ++i)
    if (lasp_plan_destroy(r.plans[i]) != LASP_OK) broken("a plan that cannot be destroyed");
}

}  // namespace lasp_fuzz
