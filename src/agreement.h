// The comparison of problems at plan creation: every rank sends every other a short record, so that a disagreement
// is an error on each of them and never a hang.
#pragma once

#include <lasp/lasp.h>

#include <optional>

#include "comm.h"
#include "cost_model.h"
#include "problem.h"
#include "status.h"
#include "work.h"

namespace lasp {

struct Agreed {
  TokenRanges ranges;
  Link link;  // rank 0's, so that all ranks choose the same schedule
};

// `refusal` is this rank's own, found before: it is told to the others, then thrown. Throws
// LASP_ERROR_DISAGREEMENT, LASP_ERROR_PEER_REFUSED or a 5xx status, on every rank alike.
Agreed agree(Comm &comm, const lasp_problem &given, const Problem &problem, int32_t device, const Link &link,
             const std::optional<Error> &refusal, int64_t time_limit_ms);

}  // namespace lasp
