// Runs a case on all ranks of a group and puts the ranks' results together into global tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/rank_run.h"

namespace lasp_test {

struct Outputs {
  lasp_status plan_status = LASP_OK;  // rank 0's
  std::string complaints;             // of all ranks and of the gathering; empty when all is well
  TensorSet tensors;                  // empty where absent
  bool tensor_cores = false;          // on any rank
  std::vector<RankResult> ranks;      // as they came
};

Outputs assemble(const Case &c, std::vector<RankResult> ranks);

// One std::thread per rank over lasp_comm_create_threads, or a group of one by lasp_comm_create_self.
enum class Transport { self, threads };
// On a GPU half of the runs of a case use the default stream, the others streams of their own.
Outputs run_case(const Case &c, const CaseData &data, Transport transport, int32_t nranks,
                 const RunOptions &options);

// Runs `body(rank)` on `nranks` threads at once and waits for all.
void on_threads(int32_t nranks, const std::function<void(int32_t)> &body);

const char *schedule_name(int32_t schedule);

}  // namespace lasp_test
