"""What a call through the package costs beyond C, on a plan without work (no tokens, a group of one). The C loop is
c_loop.c, in this process."""

import ctypes
import os
import time

import numpy as np
import pytest

import liblasp

LIMIT_US = 5.0
CALLS, ROUNDS, TRIES = 2000, 7, 5


def least_mean(call):
    """Microseconds of one call, in CPU time of this thread: the least of several rounds' means, which a busy machine
    only makes larger."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, (time.thread_time() - begin) / CALLS * 1e6)
    return best


def in_c(plan):
    """The same forward in a loop in C."""
    loop = ctypes.CDLL(os.environ["LASP_C_LOOP"]).time_forward
    loop.argtypes, loop.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_double
    seconds = [loop(int(plan.handle), CALLS) for _ in range(ROUNDS)]
    assert min(seconds) > 0
    return min(seconds) * 1e6


@pytest.fixture
def plan():
    with liblasp.Context(cpu_threads=1) as context:
        yield context.plan(tokens=0, heads=2, head_dim=8, decay="scalar")


@pytest.mark.parametrize("how", ["forward", "forward, o made", "forward with states", "bound forward", "backward",
                                 "bound backward", "step"])
def test_overhead(plan, how, capsys):
    q, k, v, o = (np.empty((1, 0, 2, 8), np.float32) for _ in range(4))
    g, d_g = (np.empty((1, 0, 2), np.float32) for _ in range(2))
    states, final = (np.zeros((1, 2, 8, 8), np.float32) for _ in range(2))
    grads = {name: np.empty_like(q) for name in ("dq", "dk", "dv")}
    plan.forward(q, k, v, g, out=o)  # whose cache backward reads
    call = {"forward": lambda: plan.forward(q, k, v, g, out=o),
            "forward, o made": lambda: plan.forward(q, k, v, g),
            "forward with states": lambda: plan.forward(q, k, v, g, out=o, initial_state=states, final_state=final),
            "backward": lambda: plan.backward(o, q, k, v, g, d_decay=d_g, out=grads),
            "bound forward": plan.bind_forward(q, k, v, g, out=o),
            "bound backward": plan.bind_backward(o, q, k, v, g, d_decay=d_g, out=grads),
            "step": lambda: plan.step(q, k, v, g, state=states, out=o)}[how]
    for _ in range(TRIES):  # a busy machine may spoil a try
        python, c = least_mean(call), in_c(plan)
        if python - c < LIMIT_US:
            break
    with capsys.disabled():
        print(f"\n  {how}: {python:.2f} us by Python, {c:.2f} us by C, {python - c:.2f} us more", end="")
    assert python - c < LIMIT_US
