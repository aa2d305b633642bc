// Wrong calls of lasp_mpi_comm_create, before, between and after MPI_Init and MPI_Finalize. Run by two processes.
#include <lasp/lasp_mpi.h>

#include <cstdio>
#include <cstring>

namespace {

int failures = 0;

// `sentence`: how lasp_last_error() begins then, whatever it said before.
void expect_refused(const char *what, const char *sentence, MPI_Comm mpi, bool null_out = false) {
  lasp_set_last_error(LASP_OK, "an older sentence");
  auto *const sentinel = reinterpret_cast<lasp_comm *>(&failures);
  lasp_comm *comm = sentinel;
  const lasp_status status = lasp_mpi_comm_create(mpi, null_out ? nullptr : &comm);
  const bool said = std::strncmp(lasp_last_error(), sentence, std::strlen(sentence)) == 0;
  if (status == LASP_ERROR_INVALID_ARGUMENT && comm == sentinel && said) return;
  ++failures;
  std::printf("FAILED: %s: %s, expected LASP_ERROR_INVALID_ARGUMENT%s: \"%s\"\n", what, lasp_status_name(status),
              comm == sentinel ? "" : "; *comm was written", lasp_last_error());
}

}  // namespace

int main(int argc, char **argv) {
  expect_refused("before MPI_Init", "mpi: MPI is not initialised", MPI_COMM_WORLD);
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);

  expect_refused("null comm", "comm is null", MPI_COMM_WORLD, true);
  expect_refused("MPI_COMM_NULL", "mpi is MPI_COMM_NULL", MPI_COMM_NULL);
  MPI_Comm own = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &own);
  MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, 1 - rank, 7, &between);
  expect_refused("intercommunicator", "mpi is an intercommunicator", between);

  // What is right still works after all that.
  lasp_comm *comm = nullptr;
  int32_t seen_rank = -1, seen_ranks = -1;
  if (lasp_mpi_comm_create(MPI_COMM_WORLD, &comm) != LASP_OK ||
      lasp_comm_get_rank(comm, &seen_rank, &seen_ranks) != LASP_OK || seen_rank != rank || seen_ranks != 2 ||
      lasp_comm_destroy(comm) != LASP_OK) {
    ++failures;
    std::printf("FAILED: a valid communicator: \"%s\"\n", lasp_last_error());
  }
  MPI_Comm_free(&between);
  MPI_Comm_free(&own);
  MPI_Finalize();
  expect_refused("after MPI_Finalize", "mpi: MPI is not initialised", MPI_COMM_WORLD);
  if (failures == 0) std::printf("all calls refused as expected\n");
  return failures == 0 ? 0 : 1;
}
