/* Four ranks as MPI processes. */
#include <lasp/lasp_mpi.h>
#include <stdio.h>

#include "naive.h"

int main(int argc, char **argv) {
  lasp_comm *comm = NULL;
  int failed = 1, any = 1, provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  if (lasp_mpi_comm_create(MPI_COMM_WORLD, &comm) == LASP_OK) {
    failed = attend(comm);
    failed |= lasp_comm_destroy(comm) != LASP_OK;
  } else {
    fprintf(stderr, "%s\n", lasp_last_error());
  }
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}
