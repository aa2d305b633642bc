"""What an extra of the wheel brings, run by the Python that it was installed for: extras.py torch|jax|mpi. Each computes
sums and gradients that are exact."""

import os
import sys

import numpy as np

import liblasp

home = os.path.dirname(os.path.realpath(liblasp.__file__))
assert home.startswith(os.path.realpath(sys.prefix)), home
SUMS, GRADIENT = [8, 16, 24], [24, 16, 8]  # with q, k, v of ones, three tokens, K = 8: of o, and of its sum by v


def loaded(name):
    """Whether a file of the wheel whose name begins so is in the process."""
    with open("/proc/self/maps") as maps:
        return any(line.split()[-1].startswith(os.path.join(home, name)) for line in maps)


def try_torch():
    import torch

    from liblasp.torch import delta_rule, linear_attention

    q, k, v = (torch.ones(1, 3, 1, 8, requires_grad=True) for _ in range(3))
    o = linear_attention(q, k, v, scale=1.0)
    o.sum().backward()
    assert o[0, :, 0, 0].tolist() == SUMS, o
    assert v.grad[0, :, 0, 0].tolist() == GRADIENT, v.grad
    key = torch.nn.functional.one_hot(torch.tensor([[[0], [0], [1]]]), 8).float()
    o = delta_rule(torch.ones_like(key), key, torch.ones_like(key), torch.ones(1, 3, 1), scale=1.0)
    assert o[0, :, 0, 0].tolist() == [1, 1, 2], o  # the second token writes what the first has written
    return f"torch {torch.__version__}"


def try_jax():
    import jax
    import jax.numpy as jnp

    from liblasp.jax import delta_rule, linear_attention

    x = jnp.ones((1, 3, 1, 8))

    def total(v):
        o = linear_attention(x, x, v, scale=1.0)
        return o.sum(), o

    (_, o), dv = jax.jit(jax.value_and_grad(total, has_aux=True))(x)
    assert loaded("_lasp_jax"), "XLA's handlers are not the wheel's"
    assert o[0, :, 0, 0].tolist() == SUMS, o
    assert dv[0, :, 0, 0].tolist() == GRADIENT, dv
    key = jax.nn.one_hot(jnp.array([[[0], [0], [1]]]), 8)
    o = delta_rule(jnp.ones_like(key), key, jnp.ones_like(key), jnp.ones((1, 3, 1)), scale=1.0)
    assert o[0, :, 0, 0].tolist() == [1, 1, 2], o
    return f"JAX {jax.__version__}"


def try_mpi():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert world.size == 2, world.size
    mine = np.ones((1, 1 + world.rank, 1, 8), np.float32)
    with liblasp.Comm.mpi(world) as comm, liblasp.Context(comm, time_limit=60, cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(mine, mine, mine, scale=1.0))
        o = plan.forward(mine, mine, mine)
        dv = plan.backward(mine, mine, mine, mine).dv
    here = slice(0, 1) if world.rank == 0 else slice(1, 3)
    assert o[0, :, 0, 0].tolist() == SUMS[here], o
    assert dv[0, :, 0, 0].tolist() == GRADIENT[here], dv
    assert loaded("lib/liblasp.so"), "the library is not the wheel's"
    return f"rank {world.rank} of 2, {MPI.Get_library_version().split(',')[0]}"


print(f"[{sys.argv[1]}] computes: {({'torch': try_torch, 'jax': try_jax, 'mpi': try_mpi}[sys.argv[1]])()}")
