"""What the package refuses on one rank, before the library sees it, the other ranks learn of at once: they would wait
for their limits. A rank that reuses its cache exchanges nothing, and nobody is told."""

import threading
import time

import numpy as np
import pytest

import liblasp
from support import on_threads, raise_first, random_problem

LIMIT = 8.0  # seconds; a rank that nobody tells waits this long
SOON = LIMIT / 2
Q, K, V, G, D_O = random_problem(51, tokens=8)


def no_memory(*arguments):
    raise MemoryError


def without_memory(plan):
    plan._new_o = plan._new_gradient = no_memory
    return plan


# By name: the call that rank 1 cannot make, the error there, and rank 0's call.
REFUSED = {
    "forward, an array": (lambda plan: plan.forward(Q[:, 1:], K, V, G), liblasp.InvalidArgument, "forward"),
    "forward, a flag": (lambda plan: plan.forward(Q, K, V, G, reuse_cache="no"), liblasp.InvalidArgument, "forward"),
    "forward, a stream": (lambda plan: plan.forward(Q, K, V, G, stream=-1), liblasp.InvalidArgument, "forward"),
    "forward, no memory": (lambda plan: without_memory(plan).forward(Q, K, V, G), MemoryError, "forward"),
    "forward, pointers": (lambda plan: plan.run_pointers("forward", 0, {"q": 5}), liblasp.InvalidArgument, "forward"),
    "forward, a name": (lambda plan: plan.run_pointers("forward", 0, {"Q": (0, 0)}),
                        liblasp.InvalidArgument, "forward"),
    "backward, an array": (lambda plan: plan.backward(D_O, Q, K, V, G[0]), liblasp.InvalidArgument, "backward"),
    "backward, a name": (lambda plan: plan.backward(D_O, Q, K, V, G, out={"d_q": Q}),
                         liblasp.InvalidArgument, "backward"),
    "backward, no memory": (lambda plan: without_memory(plan).backward(D_O, Q, K, V, G), MemoryError, "backward"),
    "backward, a bound stream": (lambda plan: plan.bind_backward(D_O, Q, K, V, G, out=dict(
        dq=np.empty_like(Q), dk=np.empty_like(Q), dv=np.empty_like(Q)))("default"),
                                 liblasp.InvalidArgument, "backward"),
}
RIGHT = {"forward": lambda plan: plan.forward(Q, K, V, G), "backward": lambda plan: plan.backward(D_O, Q, K, V, G)}


@pytest.mark.parametrize("name", REFUSED)
def test_the_others_are_told(name):
    refused, kind, call = REFUSED[name]
    both = threading.Barrier(2)

    def body(rank, comm):
        with liblasp.Context(comm, time_limit=LIMIT, cpu_threads=1) as context:
            plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G, schedule="all_gather"))
            o = plan.forward(Q, K, V, G)
            both.wait()
            began = time.monotonic()
            if rank == 1:
                with pytest.raises(kind):
                    refused(plan)
            else:
                with pytest.raises(liblasp.PeerLost, match="rank 1") as caught:
                    while True:  # rank 0 waits for nobody in a forward: in the next call it is told
                        RIGHT[call](plan)
                assert caught.value.rank == 1
            with pytest.raises(liblasp.CommFailed):  # the group is broken, here too
                plan.forward(Q, K, V, G, out=o)
            assert time.monotonic() - began < SOON

    raise_first(on_threads(liblasp.Comm.threads(2), body))


def test_a_cache_that_nobody_wrote():
    """The refusal of the plan's own cache is told as well."""
    both = threading.Barrier(2)

    def body(rank, comm):
        with liblasp.Context(comm, time_limit=LIMIT, cpu_threads=1) as context:
            plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G))
            cache = plan.new_cache()
            plan.forward(Q, K, V, G, cache=cache)
            both.wait()
            began = time.monotonic()
            kind, words = (liblasp.InvalidArgument, "cache=") if rank == 1 else (liblasp.PeerLost, "rank 1")
            with pytest.raises(kind, match=words):
                while True:
                    plan.backward(D_O, Q, K, V, G, cache=None if rank == 1 else cache)
            assert time.monotonic() - began < SOON

    raise_first(on_threads(liblasp.Comm.threads(2), body))


def test_a_reused_cache_concerns_nobody_else():
    def body(rank, comm):
        with liblasp.Context(comm, time_limit=LIMIT, cpu_threads=1) as context:
            plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G))
            o = plan.forward(Q, K, V, G)
            if rank == 1:
                with pytest.raises(liblasp.InvalidArgument):
                    plan.forward(Q[:, 1:], K, V, G, reuse_cache=True)
                with pytest.raises(MemoryError):
                    without_memory(plan).forward(Q, K, V, G, reuse_cache=True)
                plan._new_o, plan._new_gradient = plan._outputs.new_o, plan._outputs.new_gradient
            assert np.array_equal(plan.forward(Q, K, V, G, reuse_cache=True), o)
            plan.backward(D_O, Q, K, V, G)

    raise_first(on_threads(liblasp.Comm.threads(2), body))
