"""liblasp.torch over MPI by mpi4py, two processes: forward and backward agree with one rank. SKIPPED without mpi4py."""

import sys

import torch

try:
    import mpi4py  # noqa: F401
except ImportError:  # the environment that has torch may be without it: then the system's
    sys.path.append("/usr/lib/python3/dist-packages")
try:
    from mpi4py import MPI
except ImportError as reason:
    print(f"SKIPPED: mpi4py cannot be imported ({reason}; on Debian: apt install python3-mpi4py)")
    sys.exit(77)

import liblasp
import liblasp.torch as lt
from test_torch_support import BOUNDS, make_problem, relative_error, shard_of

torch.set_num_threads(1)
world = MPI.COMM_WORLD
x, d_o, _ = make_problem("scalar", batch=1, tokens=40, states=False)
begin, end = (0, 24) if world.rank == 0 else (24, 40)


def run(begin, end, group):
    mine = {name: shard_of(name, value, begin, end) for name, value in x.items()}
    o = lt.linear_attention(mine["q"], mine["k"], mine["v"], mine["decay"], group=group)
    o.backward(d_o[:, begin:end])
    return [o.detach(), *(mine[name].grad for name in ("q", "k", "v", "decay"))]


with liblasp.Comm.mpi(world) as comm:
    with lt.SequenceGroup(comm, time_limit=60) as group:
        assert (group.rank, group.size) == (world.rank, 2)
        ours = run(begin, end, group)
        assert group.traffic()["bytes_sent"] > 0
for mine, whole in zip(ours, run(0, 40, None)):
    assert relative_error(mine, whole[:, begin:end]) <= 2 * BOUNDS[torch.float32]
