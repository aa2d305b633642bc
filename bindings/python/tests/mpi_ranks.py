"""Two MPI processes by mpi4py, over liblasp_mpi: forward agrees with one rank. SKIPPED without mpi4py."""

import sys

import numpy as np

try:
    from mpi4py import MPI
except ImportError as reason:
    print(f"SKIPPED: mpi4py cannot be imported ({reason}; on Debian: apt install python3-mpi4py)")
    sys.exit(77)

import liblasp
from support import FLOAT32_BOUND, random_problem, relative_error

q, k, v, g, d_o = random_problem(8, tokens=50)
world = MPI.COMM_WORLD
half = slice(0, 30) if world.rank == 0 else slice(30, 50)
mine = [np.ascontiguousarray(x[:, half]) for x in (q, k, v, g, d_o)]
with liblasp.Comm.mpi(world) as comm, liblasp.Context(comm, time_limit=60, cpu_threads=1) as context:
    assert (comm.rank, comm.nranks) == (world.rank, 2)
    plan = context.plan(liblasp.Problem.like(*mine[:3], decay=mine[3]))
    o = plan.forward(*mine[:4])
    dk = plan.backward(mine[4], *mine[:4]).dk
    assert comm.traffic().bytes_sent > 0
with liblasp.Context(cpu_threads=1) as context:
    plan = context.plan(liblasp.Problem.like(q, k, v, decay=g))
    assert relative_error(o, plan.forward(q, k, v, g)[:, half]) <= 2 * FLOAT32_BOUND
    assert relative_error(dk, plan.backward(d_o, q, k, v, g).dk[:, half]) <= 2 * FLOAT32_BOUND
try:
    liblasp.Comm.mpi(MPI.COMM_NULL)
    sys.exit("MPI_COMM_NULL was taken")
except liblasp.InvalidArgument as error:
    assert "MPI_COMM_NULL" in str(error), error
