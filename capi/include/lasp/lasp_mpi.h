/* A comm over an MPI communicator: liblasp_mpi, a library of its own on top of lasp.h's custom transport, so that
 * liblasp itself never needs MPI. Link both: -llasp_mpi -llasp. */
#ifndef LASP_LASP_MPI_H
#define LASP_LASP_MPI_H

#include <mpi.h>

#include "lasp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes this rank's end of a group out of `mpi`, which it duplicates (so this call is collective over `mpi`) and
 * does not keep. MPI must be initialised, at least at MPI_THREAD_FUNNELED with all calls into the library from
 * the main thread, and must not be finalised before lasp_comm_destroy(*comm). Rank order is `mpi`'s.
 * Messages are staged in the library's own memory, so that the caller's is free as soon as a call returns, even
 * when a rank was lost. Errors: LASP_ERROR_INVALID_ARGUMENT (null pointer, MPI_COMM_NULL, an intercommunicator,
 * MPI not initialised or already finalised), LASP_ERROR_TRANSPORT (MPI itself failed); lasp_last_error() says which.
 * Since 0.1. */
LASP_API lasp_status lasp_mpi_comm_create(MPI_Comm mpi, lasp_comm **comm);

#ifdef __cplusplus
}
#endif
#endif /* LASP_LASP_MPI_H */
