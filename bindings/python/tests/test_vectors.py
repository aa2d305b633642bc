"""The library's stored vectors through the package: on one rank, on ranks as threads by every schedule, over a
transport written in Python, and token by token."""

import numpy as np
import pytest

import liblasp
from support import (BOUNDS, FLOAT32_BOUND, Mailboxes, all_vectors, on_threads, raise_first, recurrence,
                     relative_error, split)

VECTORS = all_vectors()
GROUPS = [(1, "auto"), (2, "ring"), (3, "all_gather"), (4, "all_scan"), (4, "doubling"), (4, "head_scatter"), (3, "auto")]


def problem_of(vector, tokens, **fields):
    case = vector.case
    return liblasp.Problem(batch=case["B"], tokens=tokens, heads_q=case["Hq"], heads_k=case["Hk"], heads_v=case["Hv"],
                           head_dim_k=case["K"], head_dim_v=case["V"], decay=case["decay"], scale=case["scale"],
                           write="delta" if case["delta"] else "additive", max_sequences=len(case["cu_seqlens"] or [0]) - 1, **fields)


def local(array, begin, end):
    """This rank's tokens: a view with the whole tensor's strides, or a copy where there is one row."""
    return None if array is None else array if array.ndim == 1 else array[:, begin:end]


def run_rank(vector, comm, begin, end, schedule):
    """Forward and backward of one rank's tokens, which are views into the whole arrays."""
    q, k, v, g, d_o, beta = (local(vector[name], begin, end) for name in ("q", "k", "v", "g", "do", "beta"))
    states = {"initial_state": vector["initial_state"], "beta": beta, "cu_seqlens": vector.case["cu_seqlens"]}
    layout = liblasp.Problem.like(q, k, v, decay=g, beta=beta).strides
    layout = {**layout, **lasp_strides("d_o", vector["do"])} if begin != end else {}
    with liblasp.Context(comm, time_limit=60, cpu_threads=1) as context:
        plan = context.plan(problem_of(vector, end - begin, schedule=schedule, strides=layout))
        o, final_state = plan.forward(q, k, v, g, final_state=True, **states)
        states.update(d_final_state=vector["d_final_state"], d_initial_state=True)
        grads = plan.backward(d_o, q, k, v, g, **states)
    return o, final_state, grads


def lasp_strides(name, array):
    return {name: tuple(step // array.itemsize for step in array.strides[:3])}


def gathered(vector, ranks):
    """The tensors of the whole sequence out of the ranks'."""
    together = {name: np.concatenate([rank[2]._asdict()[name] for rank in ranks], 1) for name in ("dq", "dk", "dv")}
    together["o"] = np.concatenate([rank[0] for rank in ranks], 1)
    together["final_state"] = sum(rank[1] for rank in ranks)
    together["d_initial_state"] = sum(rank[2].d_initial_state for rank in ranks)
    if vector.case["delta"]:
        together["dbeta"] = np.concatenate([rank[2].d_beta for rank in ranks], 1)
    if vector["g"] is not None:
        parts = [rank[2].d_decay for rank in ranks]
        together["dg"] = sum(parts) if vector["g"].ndim == 1 else np.concatenate(parts, 1)
    return together


def compare(vector, together):
    size = 0.0
    if vector.case["decay"] == "head":
        size = recurrence(vector["q"], vector["k"], vector["v"], vector["g"], vector["do"], vector.case["scale"],
                          vector["initial_state"], vector["d_final_state"], vector.case["cu_seqlens"],
                          vector["beta"])["dg_size"]
    for name, actual in together.items():
        expected = vector[name]
        if expected is None:
            continue
        of_head = name == "dg" and vector.case["decay"] == "head"
        if vector.case["exact"] and not of_head:  # ln(1/2) itself is no float32
            assert np.array_equal(actual, expected.astype(np.float32)), name
        else:
            assert relative_error(actual, expected, size if of_head else 0.0) <= FLOAT32_BOUND, name


@pytest.mark.parametrize("nranks,schedule", GROUPS)
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_threads(vector, nranks, schedule):
    parts = split(vector.case["T"], nranks)
    comms = liblasp.Comm.threads(nranks) if nranks > 1 else [liblasp.Comm.self_()]
    ranks = raise_first(on_threads(comms, lambda rank, comm: run_rank(vector, comm, *parts[rank], schedule)))
    compare(vector, gathered(vector, ranks))


@pytest.mark.parametrize("vector", [v for v in VECTORS if "basic" in v.name or v.case["delta"]],
                         ids=lambda vector: vector.name)
def test_transport_in_python(vector):
    parts = split(vector.case["T"], 3)
    ends = Mailboxes(3).ends()
    comms = [end.comm() for end in ends]
    ranks = raise_first(on_threads(comms, lambda rank, comm: run_rank(vector, comm, *parts[rank], "doubling")))
    compare(vector, gathered(vector, ranks))
    assert comms[0].traffic().bytes_sent > 0
    for comm in comms:
        comm.close()
    assert [end.closed for end in ends] == [1, 1, 1]


@pytest.mark.parametrize("vector", [v for v in VECTORS if not v.case["cu_seqlens"]],
                         ids=lambda vector: vector.name)
def test_step(vector):
    """Ten tokens by forward, the others by step, in runs of one and of many."""
    whole = [vector[name] for name in ("q", "k", "v", "g", "beta")]
    first = {"initial_state": vector["initial_state"]}
    o = np.empty(vector["o"].shape, np.float32)
    with liblasp.Context(cpu_threads=1) as context:
        state = None
        for begin, end in ((0, 10), (10, 11), (11, 12), (12, vector.case["T"])):
            q, k, v, g, beta = (None if x is None else np.ascontiguousarray(local(x, begin, end)) for x in whole)
            plan = context.plan(problem_of(vector, end - begin))
            if state is None:
                o[:, begin:end], state = plan.forward(q, k, v, g, beta=beta, final_state=True, **first)
            else:
                o[:, begin:end] = plan.step(q, k, v, g, beta=beta, state=state)
    # A step multiplies by exp(g) rounded, the same error each time for a decay per head, and rounds the product:
    # half a unit of 2^-24 each, T times.
    bound = FLOAT32_BOUND + vector.case["T"] * 2.0 ** -24
    assert relative_error(o, vector["o"]) <= bound
    assert relative_error(state, vector["final_state"]) <= bound


def rounded(array, dtype):
    """To float16, or to bfloat16 as uint16, and the values that result."""
    if dtype == "float16":
        return array.astype(np.float16), array.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    short = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return short, widened(short)


def widened(array):
    return (array.astype(np.uint32) << 16).view(
        np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("vector", [v for v in VECTORS if v.name in ("scalar_basic", "channel_grouped_queries")],
                         ids=lambda vector: vector.name)
def test_half_types(vector, dtype):
    case = vector.case
    (q, qf), (k, kf), (v, vf), (d_o, d_of) = (rounded(vector[name], dtype) for name in ("q", "k", "v", "do"))
    expected = recurrence(qf, kf, vf, vector["g"], d_of, case["scale"])
    with liblasp.Context() as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=vector["g"], scale=case["scale"]))
        o, final_state = plan.forward(q, k, v, vector["g"], final_state=True)
        grads = plan.backward(d_o, q, k, v, vector["g"])
    assert o.dtype == q.dtype and grads.d_decay.dtype == np.float32
    assert relative_error(final_state, expected["final_state"]) <= FLOAT32_BOUND
    for actual, name in ((o, "o"), (grads.dq, "dq"), (grads.dk, "dk"), (grads.dv, "dv")):
        # float16 below 2^-14 is a multiple of 2^-24: an absolute 2^-25 for each element
        slack = 2.0 ** -25 * np.sqrt(actual.size) / np.linalg.norm(expected[name]) if dtype == "float16" else 0.0
        assert relative_error(widened(actual), expected[name]) <= BOUNDS[dtype] + slack, name
