"""Halos by the raw layer: rows before a rank's first token, there and back."""

import threading

import numpy as np
import pytest

import liblasp
from liblasp import raw

TOKENS, ROWS, CHANNELS = (4, 1, 3), 2, 5


def buffer(array):
    return array.ctypes.data, array.nbytes


def make_args(**arrays):
    args = raw.lasp_halo_args()
    for name, array in arrays.items():
        field = getattr(args, name)
        field.data, field.bytes = buffer(array)
    return args


def on_ranks(body):
    results, failures = [None] * len(TOKENS), []

    def run(rank, comm):
        try:
            with liblasp.Context(comm, cpu_threads=1, time_limit=20) as context:
                with context.plan(tokens=TOKENS[rank], head_dim_k=8, head_dim_v=8) as plan:
                    results[rank] = body(rank, plan)
        except Exception as failure:  # shown by the test's own thread
            failures.append(failure)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(liblasp.Comm.threads(len(TOKENS)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def test_rows_come_and_gradients_go_back():
    whole = np.arange(sum(TOKENS) * CHANNELS, dtype=np.float32).reshape(-1, CHANNELS)

    def body(rank, plan):
        options = raw.lasp_halo_options()
        options.rows, options.channels = ROWS, CHANNELS
        halo = raw.lasp_halo_create(plan.handle, options)
        info = raw.lasp_halo_info()
        raw.lasp_halo_get_info(halo, info)
        begin = sum(TOKENS[:rank])
        x = whole[begin:begin + TOKENS[rank]].copy()
        before = np.full((ROWS, CHANNELS), np.nan, np.float32)
        assert info.before_bytes == before.nbytes
        workspace = np.empty(info.workspace_bytes + 64, np.uint8)
        workspace = workspace[-workspace.ctypes.data % 64:]
        raw.lasp_halo_forward(halo, make_args(x=x, before=before, workspace=workspace), None)
        d_x, d_before = np.zeros_like(x), np.full_like(before, 10.0 ** rank)
        raw.lasp_halo_backward(halo, make_args(d_x=d_x, d_before=d_before, workspace=workspace), None)
        with pytest.raises(liblasp.InvalidArgument, match="still use it"):
            raw.lasp_plan_destroy(plan.handle)
        raw.lasp_halo_destroy(halo)
        return before, d_x[:, 0].tolist()

    results = on_ranks(body)
    padded = np.concatenate([np.zeros((ROWS, CHANNELS), np.float32), whole])
    for rank, (before, _) in enumerate(results):
        begin = sum(TOKENS[:rank])
        assert (before == padded[begin:begin + ROWS]).all(), rank
    # Tokens 2 and 3 are wanted by rank 1, tokens 3 and 4 by rank 2.
    assert [d_x for _, d_x in results] == [[0, 0, 10, 110], [100], [0, 0, 0]]


def test_a_mistake_is_named():
    def body(rank, plan):
        with pytest.raises(liblasp.InvalidArgument, match="rows = 65"):
            options = raw.lasp_halo_options()
            options.rows, options.channels = 65, CHANNELS
            raw.lasp_halo_create(plan.handle, options)

    on_ranks(body)
