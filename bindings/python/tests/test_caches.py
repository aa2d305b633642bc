"""The state cache between forward and backward: a plan's own is read only where its latest forward wrote it."""

import threading

import numpy as np
import pytest

import liblasp
import support
from support import FLOAT32_BOUND, on_threads, raise_first, random_problem, recurrence, relative_error

Q, K, V, G, D_O = random_problem(21, tokens=40, heads=2, head_dim=16)
OTHER = random_problem(22, tokens=40, heads=2, head_dim=16)
EXPECTED = recurrence(Q, K, V, G, D_O, 0.25)


@pytest.fixture
def plan():
    with liblasp.Context(cpu_threads=1) as context:
        yield context.plan(liblasp.Problem.like(Q, K, V, decay=G))


def backward(plan, **options):
    return plan.backward(D_O, Q, K, V, G, **options)


def correct(gradients):
    for name in ("dq", "dk", "dv"):
        assert relative_error(getattr(gradients, name), EXPECTED[name]) <= FLOAT32_BOUND, name


def refused(words, call):
    error = support.refused(words, call, status=liblasp.raw.LASP_ERROR_INVALID_ARGUMENT)
    assert "cache=" in str(error)  # what to do


def filled(plan):
    """A plan whose own memory holds no zeros, as that of a program which has run for long."""
    plan._keep_for(np.ndarray, Q)
    plan._cache[:] = 127  # as float32 3.4e38
    return plan


def test_backward_before_any_forward(plan):
    refused("^backward: no forward has run on this plan", lambda: backward(filled(plan)))
    plan.forward(Q, K, V, G)
    correct(backward(plan))
    correct(backward(plan))  # a second time: the cache is only read


def test_reuse_before_any_forward(plan):
    refused(r"^forward\(reuse_cache=True\): no forward has run",
            lambda: filled(plan).forward(Q, K, V, G, reuse_cache=True))
    o = plan.forward(Q, K, V, G)
    assert np.array_equal(plan.forward(Q, K, V, G, reuse_cache=True), o)
    correct(backward(plan))


def test_forward_was_given_a_cache(plan):
    mine = plan.new_cache()
    plan.forward(Q, K, V, G, cache=mine)
    refused("was given a cache", lambda: backward(filled(plan)))
    refused("was given a cache", lambda: plan.forward(Q, K, V, G, reuse_cache=True))
    correct(backward(plan, cache=mine))
    plan.forward(*OTHER[:4])  # the plan's own
    plan.forward(Q, K, V, G, cache=mine)
    refused("was given a cache", lambda: backward(plan))  # that of the forward before, whose inputs these are not
    correct(backward(plan, cache=mine))


def test_a_refused_forward_changes_nothing(plan):
    plan.forward(Q, K, V, G)
    with pytest.raises(liblasp.InvalidArgument, match="q has shape"):  # by the package
        plan.forward(Q[:, 1:], K, V, G)
    with pytest.raises(liblasp.InvalidArgument, match="k is null"):  # by the library
        plan.forward(Q, None, V, G)
    correct(backward(plan))


class OtherKind(np.ndarray):
    """A type of its own, whose arrays NumPy makes too: the cache is one."""


def test_two_types_of_one_framework(plan):
    plan.forward(Q.view(OtherKind), K, V, G)
    correct(backward(plan))


def test_bound_calls(plan):
    """The look at the cache is at the call, not where it was bound."""
    out, grads = np.empty_like(Q), {name: np.empty_like(Q) for name in ("dq", "dk", "dv")}
    d_decay = np.empty_like(G)
    call = plan.bind_backward(D_O, Q, K, V, G, out=grads, d_decay=d_decay)
    again = plan.bind_forward(Q, K, V, G, out=out, reuse_cache=True)
    refused("^backward: no forward has run", call)
    refused("no forward has run", again)
    plan.bind_forward(Q, K, V, G, out=out)()
    call()
    correct(liblasp.Gradients(**grads, d_decay=d_decay, d_beta=None, d_initial_state=None))
    assert relative_error(d_decay, EXPECTED["dg"]) <= FLOAT32_BOUND
    again()
    assert relative_error(out, EXPECTED["o"]) <= FLOAT32_BOUND
    mine = plan.new_cache()
    plan.bind_forward(Q, K, V, G, out=out, cache=mine)()
    refused("was given a cache", call)
    refused("was given a cache", lambda: backward(plan))
    plan.bind_backward(D_O, Q, K, V, G, out=grads, cache=mine)()
    correct(liblasp.Gradients(**grads, d_decay=None, d_beta=None, d_initial_state=None))


def memory_of(array):
    return array.ctypes.data, array.nbytes


def test_pointers(plan):
    """A forward by addresses is a forward with a cache that was given."""
    cache, workspace, o = plan.new_cache(), np.empty(plan.info.workspace_forward_bytes + 64, np.uint8), np.empty_like(Q)
    workspace = workspace[-workspace.ctypes.data % 64:]
    given = {"q": Q, "k": K, "v": V, "decay": G, "o": o, "state_cache": cache, "workspace": workspace}
    plan.forward(*OTHER[:4])
    plan.run_pointers("forward", 0, {name: memory_of(array) for name, array in given.items()})
    assert relative_error(o, EXPECTED["o"]) <= FLOAT32_BOUND
    refused("was given a cache", lambda: backward(plan))
    correct(backward(plan, cache=cache))


def test_a_rank_without_tokens_is_held_to_the_same():
    """So that all ranks refuse, and none waits for another."""
    both = threading.Barrier(2)

    def body(rank, comm):
        tokens = slice(0, 40) if rank == 0 else slice(0, 0)
        mine = [np.ascontiguousarray(x[:, tokens]) for x in (D_O, Q, K, V, G)]
        with liblasp.Context(comm, cpu_threads=1, time_limit=20) as context:
            plan = context.plan(liblasp.Problem.like(*mine[1:4], decay=mine[4]))
            both.wait()  # what one rank refuses breaks the group of the other
            refused("no forward has run", lambda: plan.backward(*mine))
            return True

    assert raise_first(on_threads(liblasp.Comm.threads(2), body)) == [True, True]
