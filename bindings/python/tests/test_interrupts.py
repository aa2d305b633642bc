"""Signals while a call waits for another rank: the handler runs, and what it raises ends the call."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

import liblasp
from support import MailboxEnd, Mailboxes, on_threads, random_problem

LIMIT = 12.0  # seconds; a wait that nobody ends takes this long
SOON = LIMIT / 2
PACKAGE = os.path.dirname(liblasp.__file__)
Q, K, V, G, _ = random_problem(41, tokens=8)


def waits_here(call):
    return call()


@pytest.fixture
def signals():
    """A timer, by which the handler runs that the test has appended: at the third signal that finds a call of the
    package at one and the same instruction. There it waits in the library."""
    handlers, places = [], []

    def handle(number, frame):
        inside = frame.f_code is waits_here.__code__ or frame.f_code.co_filename.startswith(PACKAGE)
        if handlers and inside:
            place = frame, frame.f_lasti
            places[:] = [*places, place] if place in places else [place]
            if len(places) == 3:
                handlers.pop()(number, frame)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    yield handlers
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def timed(call, kind):
    """The exception of a call that must end soon."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        waits_here(call)
    assert time.monotonic() - began < SOON
    return caught.value


def test_ctrl_c_ends_a_plan_s_creation(signals):
    comms = liblasp.Comm.threads(2)  # the other rank never comes
    with liblasp.Context(comms[0], time_limit=LIMIT, cpu_threads=1) as context:
        signals.append(signal.default_int_handler)  # what Ctrl-C does
        error = timed(lambda: context.plan(tokens=8, head_dim=8), KeyboardInterrupt)
        assert isinstance(error.__context__, liblasp.Aborted)  # what the library says of it
        again = timed(lambda: context.plan(tokens=8, head_dim=8), liblasp.Aborted)
        assert "unusable" in str(again)


def test_what_a_handler_raises(signals):
    """Any exception, not only KeyboardInterrupt."""
    def handler(number, frame):
        raise TimeoutError("the job's time is up")

    comms = liblasp.Comm.threads(2)
    with liblasp.Context(comms[0], time_limit=LIMIT, cpu_threads=1) as context:
        signals.append(handler)
        error = timed(lambda: context.plan(tokens=8, head_dim=8), TimeoutError)
        assert isinstance(error.__context__, liblasp.Aborted)


def test_a_handler_that_raises_nothing(signals):
    """Runs while the call waits, which goes on to its limit."""
    seen = []
    comms = liblasp.Comm.threads(2)
    with liblasp.Context(comms[0], time_limit=1.0, cpu_threads=1) as context:
        signals.append(lambda number, frame: seen.append(number))
        with pytest.raises(liblasp.PeerLost) as caught:
            context.plan(tokens=8, head_dim=8)
        assert seen and caught.value.__context__ is None


@contextlib.contextmanager
def released(event, threads):
    """The event is set and the threads are over at the end, also where the test has failed."""
    try:
        yield
    finally:
        event.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("how", ["forward", "bound", "pointers"])
def test_ctrl_c_in_a_pass_tells_the_others(signals, how):
    """Rank 0 is this thread and waits for rank 1, which comes to no forward; rank 2 waits for rank 1 too."""
    comms, made, ended = liblasp.Comm.threads(3), threading.Barrier(3), {}
    leave = threading.Event()

    def other(rank):
        with liblasp.Context(comms[rank], time_limit=LIMIT, cpu_threads=1) as context:
            plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G, broadcast_final_state=True, schedule="ring"))
            made.wait()
            if rank == 1:
                leave.wait()
                return
            began = time.monotonic()
            try:
                plan.forward(Q, K, V, G, final_state=True)
            except liblasp.CommFailed as error:
                ended[rank] = error, time.monotonic() - began

    threads = [threading.Thread(target=other, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    with released(leave, threads), liblasp.Context(comms[0], time_limit=LIMIT, cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G, broadcast_final_state=True, schedule="ring"))
        out, states = np.empty_like(Q), np.zeros(plan.problem.shape_of("state"), np.float32)
        bound = plan.bind_forward(Q, K, V, G, out=out, final_state=states)
        memory = {name: (array.ctypes.data, array.nbytes) for name, array in (
            ("q", Q), ("k", K), ("v", V), ("decay", G), ("o", out), ("final_state", states),
            ("state_cache", plan._cache), ("workspace", plan._workspace))}
        call = {"forward": lambda: plan.forward(Q, K, V, G, final_state=True), "bound": bound,
                "pointers": lambda: plan.run_pointers("forward", 0, memory)}[how]
        made.wait()
        signals.append(signal.default_int_handler)
        error = timed(call, KeyboardInterrupt)
        assert isinstance(error.__context__, liblasp.Aborted)
    assert isinstance(ended[2][0], (liblasp.Aborted, liblasp.PeerLost)) and ended[2][1] < SOON


class InterruptedEnd(MailboxEnd):
    """A transport in Python, inside which Ctrl-C comes."""

    def wait(self, request, time_limit_ms):
        if request is not None:
            raise KeyboardInterrupt
        super().wait(request, time_limit_ms)


def test_ctrl_c_inside_a_transport():
    """It is no failure of the transport: the call raises it."""
    ends = Mailboxes(2).ends(InterruptedEnd)

    def body(rank, end):
        with end.comm() as comm, liblasp.Context(comm, time_limit=0.5, cpu_threads=1) as context:
            return context.plan(tokens=8, head_dim=8)

    for error in on_threads(ends, body):
        assert isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, liblasp.Aborted), repr(error)
    assert ends[0].group.aborted.is_set()


def test_ctrl_c_inside_a_log():
    """The call cannot be ended from there, but the interrupt is not lost either."""
    def log(level, message):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with liblasp.Context(cpu_threads=1, log=log, log_level="debug") as context:
            context.plan(tokens=8, head_dim=8)
    with liblasp.Context(cpu_threads=1) as context:  # nothing is left of it
        assert context.plan(tokens=8, head_dim=8).forward(*[np.ones((1, 8, 1, 8), np.float32)] * 3).any()
