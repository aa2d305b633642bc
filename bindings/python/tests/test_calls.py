"""What else a user calls: information, groups, threads that run while a call computes, properties of results."""

import threading
import time

import numpy as np
import pytest

import liblasp
from support import FLOAT32_BOUND, on_threads, raise_first, random_problem, recurrence, relative_error, split


def test_version_and_build():
    raw = liblasp.raw
    assert liblasp.__version__ == f"{raw.LASP_VERSION_MAJOR}.{raw.LASP_VERSION_MINOR}.{raw.LASP_VERSION_PATCH}"
    info = liblasp.build_info()
    assert info.version == liblasp.__version__ and info.cpu_count >= 1 and "gcc" in info.compiler or info.compiler


def test_information():
    with liblasp.Comm.self_() as comm, liblasp.Context(comm, cpu_threads=1) as context:
        plan = context.plan(tokens=12, head_dim=8, heads=2, max_sequences=3, schedule="ring")
        assert (comm.rank, comm.nranks) == (0, 1) and "rank 0 of 1" in repr(comm)
        assert plan.info.num_sequences == 3 and plan.info.schedule == liblasp.Schedule.RING
        assert plan.owners(5, 12) == liblasp.Owners(0, 0)
        text = plan.describe()
        assert "schedule: ring" in text and not text.endswith("\0")
        assert len(plan.info.predicted_us) == 16
        plan.prepare()
        context.check()


def test_packings_of_one_plan():
    """Arrays of either type and lists, with padding and without, and a call that was bound with one of them."""
    q, k, v, g, d_o = random_problem(7, tokens=20, heads=2, head_dim=8, decay="scalar")
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=g, max_sequences=3))
        for offsets in ([0, 20], np.array([0, 3, 3, 17], np.int32), np.array([0, 8, 20]), (0,), np.arange(0, 12, 4)[::1]):
            end = int(offsets[-1])
            o = plan.forward(q, k, v, g, cu_seqlens=offsets)
            grads = plan.backward(d_o, q, k, v, g, cu_seqlens=offsets)
            wanted = recurrence(q, k, v, g, d_o, 8 ** -0.5, cu_seqlens=[int(offset) for offset in offsets])
            for name, actual in (("o", o), ("dq", grads.dq), ("dk", grads.dk), ("dv", grads.dv), ("dg", grads.d_decay)):
                assert not actual[:, end:].any(), name
                if end:
                    assert relative_error(actual, wanted[name]) <= FLOAT32_BOUND, name
        out = np.empty_like(o)
        bound = plan.bind_forward(q, k, v, g, out=out, cu_seqlens=[0, 5])
        wanted = plan.forward(q, k, v, g, cu_seqlens=[0, 5])
        plan.forward(q, k, v, g, cu_seqlens=[0, 20])
        bound()
        assert np.array_equal(out, wanted)


def test_groups():
    for rank in range(12):
        groups = liblasp.groups_of_rank(12, 3, rank, stride=2)
        assert liblasp.groups_world_rank(12, 3, groups.sequence_group, groups.sequence_rank, stride=2) == rank
        assert groups.data_ranks == 4 and groups.data_group == groups.sequence_rank
    assert liblasp.predict_exchange("ring", 4, 1000, latency_us=2.0, bandwidth_gbs=1.0) == pytest.approx(9.0)
    assert liblasp.predict_exchange(liblasp.Schedule.RING, 1, 1000, latency_us=2.0, bandwidth_gbs=1.0) == 0.0


def test_the_gil_is_released():
    """A Python thread goes on while a forward of many milliseconds computes: it would stand still, but for its own
    time slices before and after, if the GIL were held."""
    q, k, v, g, _ = random_problem(5, tokens=65536, heads=4, head_dim=64)
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=g, backward=False))
        out = plan.forward(q, k, v, g)
        for _ in range(5):
            ticks, stop = [], threading.Event()

            def tick():
                while not stop.is_set():
                    ticks.append(time.perf_counter())
                    time.sleep(0.0005)

            thread = threading.Thread(target=tick)
            thread.start()
            begin = time.perf_counter()
            plan.forward(q, k, v, g, out=out)
            end = time.perf_counter()
            stop.set()
            thread.join()
            inside = sum(begin + 0.005 < t < end - 0.005 for t in ticks)
            if inside > 5:
                break
    assert end - begin > 0.02, "too quick to tell"
    assert inside > 5, f"{inside} ticks in {end - begin:.3f} s"


def test_results_are_the_same_on_every_group():
    """Of data that is exact in float32, bit for bit."""
    random = np.random.default_rng(6)
    q, k, v, d_o = (random.integers(-2, 3, (1, 48, 2, 8)).astype(np.float32) for _ in range(4))
    with liblasp.Context(cpu_threads=1) as context:
        whole = context.plan(liblasp.Problem.like(q, k, v, scale=1.0))
        o, grads = whole.forward(q, k, v), whole.backward(d_o, q, k, v)

    def body(rank, comm):
        begin, end = parts[rank]
        mine = [np.ascontiguousarray(x[:, begin:end]) for x in (q, k, v, d_o)]
        with liblasp.Context(comm, cpu_threads=1, time_limit=60) as context:
            plan = context.plan(liblasp.Problem.like(*mine[:3], scale=1.0, schedule=schedule))
            return plan.forward(*mine[:3]), plan.backward(mine[3], *mine[:3])

    for nranks, schedule in ((2, "ring"), (3, "all_gather"), (4, "all_scan"), (4, "doubling"), (4, "head_scatter"), (3, "relay")):
        parts = split(48, nranks)
        ranks = raise_first(on_threads(liblasp.Comm.threads(nranks), body))
        assert np.array_equal(np.concatenate([rank[0] for rank in ranks], 1), o)
        assert np.array_equal(np.concatenate([rank[1].dk for rank in ranks], 1), grads.dk)


def test_broadcast_of_the_final_state():
    q, k, v, g, d_o = random_problem(7, tokens=30)

    def body(rank, comm):
        mine = [np.ascontiguousarray(x[:, rank * 10:rank * 10 + 10]) for x in (q, k, v, g)]
        with liblasp.Context(comm, cpu_threads=1, time_limit=60) as context:
            plan = context.plan(liblasp.Problem.like(*mine[:3], decay=mine[3], broadcast_final_state=True))
            return plan.forward(*mine, final_state=True)[1]

    expected = recurrence(q, k, v, g, d_o, 8 ** -0.5)["final_state"]
    for state in raise_first(on_threads(liblasp.Comm.threads(3), body)):
        assert relative_error(state, expected) <= FLOAT32_BOUND


@pytest.mark.parametrize("seed", range(25))
def test_random_shapes(seed):
    """Any legal shape agrees with the recurrence."""
    random = np.random.default_rng(seed)
    heads = ((1, 1, 1), (4, 2, 1), (2, 2, 4))[random.integers(3)]
    widths = (8, 16, 40)[random.integers(3)], (8, 24)[random.integers(2)]
    batch, tokens, dims = int(random.integers(1, 4)), int(random.integers(1, 71)), (0, 1, 3, 4)[random.integers(4)]
    q, k, v = (random.standard_normal(
        (batch, tokens, heads[i], widths[i == 2])).astype(np.float32) for i in range(3))
    d_o = random.standard_normal((batch, tokens, max(heads), widths[1])).astype(np.float32)
    full = (batch, tokens, max(heads), widths[0])
    g = None if not dims else -random.random(full[2:3] if dims == 1 else full[:dims]).astype(np.float32)
    expected = recurrence(q, k, v, g, d_o, widths[0] ** -0.5)
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=g))
        o = plan.forward(q, k, v, g)
        grads = plan.backward(d_o, q, k, v, g)
    assert relative_error(o, expected["o"]) <= FLOAT32_BOUND
    for name in ("dq", "dk", "dv"):
        assert relative_error(getattr(grads, name), expected[name]) <= FLOAT32_BOUND
    if g is not None:
        assert relative_error(grads.d_decay, expected["dg"], expected["dg_size"]) <= FLOAT32_BOUND
