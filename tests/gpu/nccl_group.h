// Runs a case over NCCL: one thread and one GPU per rank, all in this process.
#pragma once

#include <memory>
#include <vector>

#include "support/group.h"
#include "support/nccl.h"

namespace lasp_test {

using NcclGroup = std::vector<std::unique_ptr<gpu::NcclRank>>;

// The communicators of this many GPUs, made at first use and kept.
const NcclGroup &nccl_group(int32_t nranks);

// As run_case. Ranks meet on the host before the first pass and after the last: nobody allocates or frees device
// memory while another rank's kernels wait for theirs, which within one process may wait for each other.
Outputs run_case_nccl(const Case &c, const CaseData &data, const NcclGroup &group, const RunOptions &options);

// 2, 4 and 8, as far as there are so many GPUs.
std::vector<int32_t> nccl_group_sizes();

}  // namespace lasp_test
