// Each rank's result travels to rank 0 as plain bytes.
#include "support/group_mpi.h"

#include <lasp/lasp_mpi.h>

#include "support/rank_bytes.h"

namespace lasp_test {
namespace {

std::vector<RankResult> gather(const RankResult &mine, MPI_Comm mpi) {
  int rank = 0, nranks = 1;
  MPI_Comm_rank(mpi, &rank);
  MPI_Comm_size(mpi, &nranks);
  const Bytes own = bytes_of(mine);
  const int count = static_cast<int>(own.size());
  std::vector<int> counts(nranks), offsets(nranks, 0);
  MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, mpi);
  for (int r = 1; r < nranks; ++r) offsets[r] = offsets[r - 1] + counts[r - 1];
  Bytes all(rank == 0 ? offsets.back() + counts.back() : 0);
  MPI_Gatherv(own.data(), count, MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE, 0, mpi);
  std::vector<RankResult> results(rank == 0 ? nranks : 0);
  for (size_t r = 0; r < results.size(); ++r) {
    ByteReader reader(all.data() + offsets[r], counts[r]);
    fields(reader, results[r]);
  }
  return results;
}

}  // namespace

Outputs run_case_mpi(const Case &c, const CaseData &data, MPI_Comm mpi, const RunOptions &options) {
  RankResult mine;
  lasp_comm *comm = nullptr;
  if (lasp_mpi_comm_create(mpi, &comm) == LASP_OK) {
    mine = run_rank(c, data, comm, options);
    if (lasp_comm_destroy(comm) != LASP_OK)
      mine.complaints += std::string("lasp_comm_destroy: ") + lasp_last_error();
  } else {
    mine.complaints = std::string("lasp_mpi_comm_create: ") + lasp_last_error();
  }
  std::vector<RankResult> ranks = gather(mine, mpi);
  return ranks.empty() ? Outputs() : assemble(c, std::move(ranks));
}

}  // namespace lasp_test
