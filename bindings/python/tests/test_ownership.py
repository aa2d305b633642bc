"""Ranks that own several runs of tokens: zigzag, and a list of runs, against one rank that has all of them."""
import numpy as np
import pytest

import liblasp
from support import FLOAT32_BOUND, on_threads, raise_first, random_problem, recurrence, relative_error

TOKENS, RANKS = 48, 3
LISTED = [(7, 1), (0, 0), (11, 0), (5, 2), (9, 1), (16, 0)]


EACH = [0, 12, 12, 42]  # and padding


def owned(ownership):
    """The tokens of each rank, in the order of its tensors."""
    if ownership == "zigzag_each":
        own = [[] for _ in range(RANKS)]
        for begin, end in zip(EACH, EACH[1:]):
            part = (end - begin) // (2 * RANKS)
            for rank, tokens in enumerate(own):
                for at in (rank, 2 * RANKS - 1 - rank):
                    tokens += range(begin + at * part, begin + (at + 1) * part)
        return [tokens + list(range(EACH[-1] + 2 * rank, EACH[-1] + 2 * rank + 2)) for rank, tokens in enumerate(own)]
    parts = LISTED if ownership == "runs" else [
        (TOKENS // (2 * RANKS), min(part, 2 * RANKS - 1 - part)) for part in range(2 * RANKS)]
    tokens, begin = [[] for _ in range(RANKS)], 0
    for count, rank in parts:
        tokens[rank] += range(begin, begin + count)
        begin += count
    return tokens


@pytest.mark.parametrize("ownership,cu_seqlens", [(name, packing) for name in ("zigzag", "runs")
                                                  for packing in (None, [0, 5, 30, 30, 48])] + [("zigzag_each", EACH)])
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


def test_halos_of_each_sequence():
    tokens, x = owned("zigzag_each"), np.arange(TOKENS, dtype=np.float32)[None, :, None]

    def body(rank, comm):
        with comm, liblasp.Context(comm, cpu_threads=1) as context:
            plan = context.plan(tokens=TOKENS // RANKS, head_dim=8, ownership="zigzag_each", max_sequences=4)
            with liblasp.Halo(plan, 2, 1) as halo:
                return halo.forward(np.ascontiguousarray(x[:, tokens[rank]]), cu_seqlens=EACH)[..., 0]

    results = on_threads(liblasp.Comm.threads(RANKS), body)
    raise_first(results)
    assert results[1].shape == (2, 4, 2)  # runs, sequences, rows
    assert results[0].tolist() == [[[0, 0]] * 4, [[8, 9], [0, 0], [35, 36], [0, 0]]]
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(tokens=4, head_dim=8, ownership="zigzag_each", max_sequences=1)
        with liblasp.Halo(plan, 3, 1) as halo:
            with pytest.raises(liblasp.Unsupported, match="parts of 2 tokens, which are fewer than the 3 rows"):
                halo.forward(np.zeros((1, 4, 1), np.float32), cu_seqlens=[0, 4])
    assert results[1].tolist() == [[[0, 1], [0, 0], [15, 16], [0, 0]], [[6, 7], [0, 0], [30, 31], [0, 0]]]


def test_steps_of_fewer_tokens():
    q, k, v, g, _ = random_problem(3, batch=2, tokens=5)
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(tokens=5, batch=2, heads=2, head_dim=8, decay="scalar", backward=False)
        state = np.zeros((2, 2, 8, 8), np.float32)
        whole = plan.step(q, k, v, g, state=state)
        parts, again, begin = np.full_like(whole, np.nan), np.zeros_like(state), 0
        for count in (2, 3):
            moved = [np.ascontiguousarray(np.roll(x, -begin, axis=1)) for x in (q, k, v, g)]
            out = np.full_like(whole, np.nan)
            assert plan.step(*moved, state=again, out=out, tokens=count) is out and np.isnan(out[:, count:]).all()
            parts[:, begin:begin + count] = out[:, :count]
            begin += count
        assert np.array_equal(parts, whole) and np.array_equal(again, state)
        with pytest.raises(liblasp.InvalidArgument, match="tokens = 6: must be 0 to the plan's, 5"):
            plan.step(q, k, v, g, state=state, tokens=6)


def test_wrong_runs():
    with liblasp.Context(cpu_threads=1) as context:
        with pytest.raises(liblasp.InvalidArgument, match="runs"):
            context.plan(liblasp.Problem(16, head_dim=8, ownership="runs"))
        with pytest.raises(liblasp.InvalidArgument, match="runs"):
            context.plan(liblasp.Problem(16, head_dim=8, ownership="runs", runs=[(10, 0), (7, 0)]))
        with pytest.raises(liblasp.InvalidArgument, match="runs"):
            context.plan(liblasp.Problem(16, head_dim=8, ownership="runs", runs=[(10, 0), (6, 1)]))
        with pytest.raises(liblasp.InvalidArgument, match="max_sequences = 0"):
            context.plan(liblasp.Problem(16, head_dim=8, ownership="zigzag_each"))
        with pytest.raises(liblasp.InvalidArgument, match=r"runs\[0\]"):
            liblasp.Problem(16, head_dim=8, ownership="runs", runs=[10])
