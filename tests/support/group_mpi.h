// Runs a case with one rank per MPI process and brings the results to rank 0 of the communicator.
#pragma once

#include <mpi.h>

#include "support/group.h"

namespace lasp_test {

// Collective over `mpi`. On its rank 0 as run_case; on the others empty.
Outputs run_case_mpi(const Case &c, const CaseData &data, MPI_Comm mpi, const RunOptions &options);

}  // namespace lasp_test
