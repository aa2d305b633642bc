// Runs a case over NCCL with a process per rank, on however many GPUs there are: see nccl_worker.h.
#pragma once

#include <memory>
#include <string>

#include "gpu/nccl_messages.h"
#include "gpu/worker_processes.h"
#include "support/group.h"

namespace lasp_test {

class NcclProcesses {
 public:
  // Throws when there are GPUs and NCCL and no group comes of them. This process itself never uses a GPU.
  explicit NcclProcesses(int32_t nranks);

  const std::string &why_unusable() const { return hello_.why_unusable; }  // one sentence; "" when there is a group
  const std::string &why_ended() const { return workers_.why_ended(); }    // one sentence; "" while all is well
  std::string description() const;

  // As run_case: a case of the table, or with `stored` of the vectors. Throws when a rank dies or does not answer
  // in time; the group has then ended.
  Outputs run(const Case &c, bool stored, RunOptions options);
  // Ends the group; "" when each process ended as it should.
  std::string close();

 private:
  const int32_t nranks_;
  WorkerProcesses workers_;
  Hello hello_;
};

// The program's group, of LASP_TEST_NCCL_RANKS ranks (8), made at first use.
NcclProcesses &nccl_processes();

}  // namespace lasp_test
