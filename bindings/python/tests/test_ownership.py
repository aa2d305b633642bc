"""Ranks that own several runs of tokens: zigzag, and a list of runs, against one rank that has all of them."""
import numpy as np
import pytest

import liblasp
from support import FLOAT32_BOUND, on_threads, raise_first, random_problem, recurrence, relative_error

TOKENS, RANKS = 48, 3
LISTED = [(7, 1), (0, 0), (11, 0), (5, 2), (9, 1), (16, 0)]


def owned(ownership):
    """The tokens of each rank, in the order of its tensors."""
    parts = LISTED if ownership == "runs" else [
        (TOKENS // (2 * RANKS), min(part, 2 * RANKS - 1 - part)) for part in range(2 * RANKS)]
    tokens, begin = [[] for _ in range(RANKS)], 0
    for count, rank in parts:
        tokens[rank] += range(begin, begin + count)
        begin += count
    return tokens


@pytest.mark.parametrize("ownership", ["zigzag", "runs"])
@pytest.mark.parametrize("cu_seqlens", [None, [0, 5, 30, 30, 48]])
def test_ranks_have_several_runs(ownership, cu_seqlens):
    q, k, v, g, d_o = random_problem(11, tokens=TOKENS)
    wanted = recurrence(q, k, v, g, d_o, 8 ** -0.5, cu_seqlens=cu_seqlens)
    tokens = owned(ownership)

    def body(rank, comm):
        with comm, liblasp.Context(comm, cpu_threads=1) as context:
            own = [np.ascontiguousarray(x[:, tokens[rank]]) for x in (q, k, v, g, d_o)]
            problem = liblasp.Problem.like(*own[:3], decay=own[3], ownership=ownership,
                                           runs=LISTED if ownership == "runs" else (),
                                           max_sequences=len(cu_seqlens) - 1 if cu_seqlens else 0)
            plan = context.plan(problem)
            packing = {"cu_seqlens": np.array(cu_seqlens)} if cu_seqlens else {}
            o = plan.forward(*own[:4], **packing)
            found = plan.backward(own[4], *own[:4], **packing)
            return {"o": o, "dq": found.dq, "dk": found.dk, "dv": found.dv, "dg": found.d_decay}

    results = on_threads(liblasp.Comm.threads(RANKS), body)
    raise_first(results)
    for name in ("o", "dq", "dk", "dv", "dg"):
        whole = np.empty(wanted[name].shape)
        for rank, result in enumerate(results):
            whole[:, tokens[rank]] = result[name]
        assert relative_error(whole, wanted[name]) <= FLOAT32_BOUND, name


def test_wrong_runs():
    with liblasp.Context(cpu_threads=1) as context:
        with pytest.raises(liblasp.InvalidArgument, match="runs"):
            context.plan(liblasp.Problem(16, head_dim=8, ownership="runs"))
        with pytest.raises(liblasp.InvalidArgument, match="runs"):
            context.plan(liblasp.Problem(16, head_dim=8, ownership="runs", runs=[(10, 0), (7, 0)]))
        with pytest.raises(liblasp.InvalidArgument, match="runs"):
            context.plan(liblasp.Problem(16, head_dim=8, ownership="runs", runs=[(10, 0), (6, 1)]))
        with pytest.raises(liblasp.InvalidArgument, match=r"runs\[0\]"):
            liblasp.Problem(16, head_dim=8, ownership="runs", runs=[10])
