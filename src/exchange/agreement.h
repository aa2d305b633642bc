// The comparison of problems at plan creation: every rank sends every other a short record, so that a disagreement
// is an error on each of them and never a hang.
#pragma once

#include <lasp/lasp.h>

#include <optional>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "base/status.h"
#include "comm/comm.h"
#include "core/problem.h"
#include "core/token_partition.h"
#include "exchange/cost_model.h"

namespace lasp {

struct Agreed {
  TokenRanges ranges;
  Link link;  // rank 0's, so that all ranks choose the same schedule
};

// What ranks compare beside their problems.
struct Setting {
  int32_t device;  // LASP_DEVICE_*
  bool verify_messages;
  Link link;
};

// What a gather must be able to carry.
inline constexpr size_t kMostRecordBytes = 512;
// Puts every rank's record of `bytes` bytes into `all`, in rank order, or throws: a 5xx status, or this rank's own
// 4xx.
using Gather = FunctionRef<void(const void *own, void *all, size_t bytes)>;
// By messages between host memories.
void gather_by_messages(Comm &comm, const void *own, void *all, size_t bytes, const WaitPolicy &policy);

// `refusal` is this rank's own, found before: it is told to the others, then thrown here; they throw
// LASP_ERROR_PEER_REFUSED. LASP_ERROR_DISAGREEMENT and 5xx are thrown on every rank alike;
// LASP_ERROR_INVALID_ARGUMENT where a group of one has a total of tokens that is not its own. A record carries a
// checksum of its own, whether messages are verified or not: one that arrives changed ends the comm.
Agreed agree(Comm &comm, const lasp_problem &given, const Problem &problem, const Setting &setting,
             const std::optional<Error> &refusal, Gather gather);

// A value that ranks must have in common, and how a sentence shows it (null: it says nothing, as a checksum).
struct CommonValue {
  const char *name;
  std::string (*text)(int64_t value);
  int64_t value;
};
// The same for what is made on top of a plan: at most kMostCommonValues values, in one order on every rank.
inline constexpr size_t kMostCommonValues = 16;
void agree_on_values(Comm &comm, std::span<const CommonValue> values, const std::optional<Error> &refusal,
                     Gather gather);
// What `agree` would find if every other rank had this one's problem: on a detached comm, where nobody can be
// asked.
Agreed assume_agreement(Comm &comm, const lasp_problem &given, const Problem &problem, const Setting &setting);

// A second round, for what is refused only once the problem is known on all ranks: throws `refusal`, or that of
// another rank as LASP_ERROR_PEER_REFUSED.
void agree_on_refusal(Comm &comm, const std::optional<Error> &refusal, Gather gather);

}  // namespace lasp
