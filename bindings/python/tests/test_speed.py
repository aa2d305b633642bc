"""What a call through the package costs beyond C, on a plan without work (no tokens, a group of one). The C loop is
c_loop.c, in this process."""

import ctypes
import os
import time

import numpy as np
import pytest

import liblasp

LIMIT_US = 5.0
EMPTY_US = 0.4  # numpy.empty_like on a core of AMD Zen 3 at its full clock
CALLS, ROUNDS, TRIES = 2000, 7, 5


def least_means(*calls):
    """Microseconds of each call, in CPU time of this thread: the least of several rounds' means, which a busy machine
    only makes larger. The calls take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            begin = time.thread_time()
            for _ in range(CALLS):
                call()
            best[i] = min(best[i], (time.thread_time() - begin) / CALLS * 1e6)
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
    # The limit is for a machine as fast as the one of docs/reference/bindings.md. A slower one, or one slowed down just
    # now, has as much more as NumPy's own call takes in the same moments.
    for _ in range(TRIES):
        (python, numpys_own), c = least_means(call, lambda: np.empty_like(q)), in_c(plan)
        allowed = LIMIT_US * max(1.0, numpys_own / EMPTY_US)
        if python - c < allowed:
            break
    with capsys.disabled():
        print(f"\n  {how}: {python:.2f} us by Python, {c:.2f} us by C, {python - c:.2f} us more, of {allowed:.1f}",
              end="")
    assert python - c < allowed
