"""Wrong use through the package: an exception with the sentence, of the right class, and never a crash."""

import copy
import gc
import pickle
import threading
import time

import numpy as np
import pytest

import liblasp
from support import Mailboxes, MailboxEnd, on_threads, raise_first, random_problem, refused

Q, K, V, G, D_O = random_problem(1)


@pytest.fixture
def plan():
    with liblasp.Context(cpu_threads=1) as context:
        yield context.plan(liblasp.Problem.like(Q, K, V, decay=G))


class OnGpu:
    """An array that says it is on a GPU; whoever reads it nevertheless finds memory."""

    __cuda_array_interface__ = {**Q.__array_interface__, "version": 3, "strides": None}


BAD_Q = {
    "a list": ([[1.0]], "q is a list: must be an array"),
    "float64": (Q.astype(np.float64), "q is of type float64, but the plan was made for float32"),
    "float16": (Q.astype(np.float16), "q is of type float16, but"),
    "integers": (Q.astype(np.int32), "q is of type int32, but"),
    "big-endian": (Q.astype(">f4"), "q is of type >f4, but"),
    "tokens": (Q[:, :-1], r"q has shape \(1, 63, 2, 8\), but the plan was made for \(1, 64, 2, 8\)"),
    "dimensions": (Q[0], "q has shape"),
    "many dimensions": (Q[None, None], "q has 6 dimensions"),
    "reversed": (Q[:, ::-1], "q has strides"),
    "every other channel": (np.repeat(Q, 2, 3)[..., ::2], "q has strides"),
    "odd bytes": (np.ndarray(Q.shape, np.float32, bytes(Q.nbytes * 2), 1, (4096, 65, 32, 4)), "q has strides"),
    "transposed": (np.ascontiguousarray(Q.swapaxes(1, 2)).swapaxes(1, 2), "q has strides"),
    "another device": (OnGpu(), "q lies on cuda:0, but the context is on cpu:0"),
    "a type of no bytes": (np.empty(Q.shape, "V0"), "q is of type"),
    "objects": (np.empty(Q.shape, object), "q is of type"),
    "a structure": (np.empty(Q.shape, "f4,f4"), "q is of type"),
    "no dimension": (np.float32(1), "q has shape"),
    "bytes": (b"1234", "q has shape"),
    "nothing": (None, "q is null"),
    "a number": (3.5, "q is a float: must be an array"),
}


@pytest.mark.parametrize("name", BAD_Q)
def test_bad_arrays(plan, name):
    array, sentence = BAD_Q[name]
    error = refused(sentence, lambda: plan.forward(array, K, V, G))
    assert isinstance(error, ValueError)
    assert np.isfinite(plan.forward(Q, K, V, G)).all()  # everything lives on


def test_bad_outputs(plan):
    frozen = np.empty_like(Q)
    frozen.flags.writeable = False
    refused("o is read-only", lambda: plan.forward(Q, K, V, G, out=frozen))
    refused("o has shape", lambda: plan.forward(Q, K, V, G, out=np.empty((1, 64, 2, 9), np.float32)))
    refused("final_state has shape", lambda: plan.forward(
        Q, K, V, G, final_state=np.empty((1, 2, 8, 9), np.float32)))
    refused("beta must be None", lambda: plan.forward(Q, K, V, G, beta=G))
    refused("stream: must be NULL", lambda: plan.forward(Q, K, V, G, stream=1))
    refused("state_cache", lambda: plan.forward(Q, K, V, G, cache=np.empty(8, np.uint8)),
            status=liblasp.raw.LASP_ERROR_BUFFER_TOO_SMALL)
    with pytest.raises(liblasp.InvalidArgument, match="state_cache is not contiguous"):
        plan.forward(Q, K, V, G, cache=np.empty((plan.info.state_cache_bytes, 2), np.uint8)[:, 0])
    odd = np.empty(plan.info.state_cache_bytes + 65, np.uint8)
    start = -odd.ctypes.data % 64 + 1
    refused("state_cache", lambda: plan.forward(
        Q, K, V, G, cache=odd[start:]), status=liblasp.raw.LASP_ERROR_MISALIGNED)
    refused("stream = -1: must be an int", lambda: plan.forward(Q, K, V, G, stream=-1))


def test_bad_problems():
    with liblasp.Context(cpu_threads=1) as context:
        refused("tokens = -1", lambda: context.plan(tokens=-1, head_dim=8))
        refused("head_dim_k = 12", lambda: context.plan(tokens=1, head_dim=12), liblasp.Unsupported)
        refused("decay = 'exponential': must be one of \"none\"",
                lambda: context.plan(tokens=1, decay="exponential"))
        refused("dtype = 'float64'", lambda: context.plan(tokens=1, head_dim=8, dtype=np.float64))
        refused("heads = 1099511627776", lambda: context.plan(tokens=1, head_dim=8, heads=2 ** 40))
        refused("tokens = 'many'", lambda: context.plan(tokens="many", head_dim=8))
        refused("no tensor is called 'w'", lambda: context.plan(tokens=1, head_dim=8, strides={"w": (1, 1, 1)}))
        refused("mask = LASP_MASK_BIDIRECTIONAL: not with write",
                lambda: context.plan(tokens=1, head_dim=8, write="delta", mask="bidirectional"), liblasp.Unsupported)
        refused("not both", lambda: context.plan(liblasp.Problem(1, head_dim=8), heads=2))
        refused("batch = 2: must be 1 with max_sequences",
                lambda: context.plan(tokens=4, batch=2, head_dim=8, max_sequences=2))
        packed = context.plan(liblasp.Problem.like(Q, K, V, decay=G, max_sequences=2))
        refused("packing is null", lambda: packed.forward(Q, K, V, G))
        refused(r"packing.cu_seqlens\[2\] = 1: less", lambda: packed.forward(Q, K, V, G, cu_seqlens=[0, 2, 1]))
        refused("num_sequences = 3: must be 0 to max_sequences, 2",
                lambda: packed.forward(Q, K, V, G, cu_seqlens=np.zeros(4, np.int32)))
        refused(r"cu_seqlens\[0\] = .a.: must be a whole number",
                lambda: packed.forward(Q, K, V, G, cu_seqlens=["a", "b"]))
        refused("packing is null", lambda: packed.backward(D_O, Q, K, V, G, cache=packed.new_cache(Q)))
        refused("q has shape", lambda: liblasp.Problem.like(Q[0], K, V))
        refused("k is a NoneType: must be an array", lambda: liblasp.Problem.like(Q, None, V))
        refused("decay has shape", lambda: liblasp.Problem.like(Q, K, V, decay=G[0]))
        refused("type that is not float32", lambda: liblasp.Problem.like(Q.astype(int), K, V))
        refused("last dimension must be contiguous", lambda: liblasp.Problem.like(Q.swapaxes(2, 3), K, V))
    refused('device = .tpu.: must be "auto", "cpu", "cuda"', lambda: liblasp.Context(device="tpu"))
    refused("device = 'cuda:x'", lambda: liblasp.Context(device="cuda:x"))
    refused("cpu_threads = 1099511627776", lambda: liblasp.Context(cpu_threads=2 ** 40))
    refused("device_index", lambda: liblasp.Context(device="cpu:3"))
    refused("time_limit = 0", lambda: liblasp.Context(time_limit=0))
    refused("nranks = 0", lambda: liblasp.Comm.threads(0))
    refused("nranks = 100000", lambda: liblasp.Comm.threads(100000))
    refused("stride", lambda: liblasp.groups_of_rank(8, 2, 0, stride=3))
    refused("must be an ncclComm_t", lambda: liblasp.Comm.nccl("communicator"))
    refused("transport.send: must be a method", lambda: liblasp.Comm.custom(object(), rank=0, nranks=1))
    refused("rank", lambda: liblasp.Comm.custom(MailboxEnd(Mailboxes(1), 0), rank=5, nranks=1))
    with pytest.raises(TypeError):
        liblasp.raw.lasp_comm_destroy("no handle")


def test_absent_device():
    if liblasp.build_info().has_cuda:  # beyond any machine's last device, or no device at all
        refused("device", lambda: liblasp.Context(device="cuda:4095"), liblasp.Unsupported)
    else:
        refused("device", lambda: liblasp.Context(device="cuda"), liblasp.Unsupported, liblasp.raw.LASP_ERROR_NOT_BUILT)


def test_use_after_close():
    comm = liblasp.Comm.self_()
    context = liblasp.Context(comm, cpu_threads=1)
    plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G))
    bound = plan.bind_forward(Q, K, V, G, out=np.empty_like(Q))
    refused("comm", comm.close, status=liblasp.raw.LASP_ERROR_IN_USE)  # destroy order
    assert not comm.closed and comm.rank == 0
    context.close()  # closes its plans first
    assert plan.closed and context.closed
    for body in (lambda: plan.forward(Q, K, V, G), lambda: plan.backward(D_O, Q, K, V, G), bound, plan.describe,
                 lambda: plan.step(Q, K, V, G, state=np.zeros((1, 2, 8, 8), np.float32)), lambda: plan.owners(0, 0),
                 lambda: plan.run_pointers("forward", 0, {}), plan.new_cache, lambda: plan.handle):
        refused("plan: it is closed", body, liblasp.InvalidHandle, liblasp.raw.LASP_ERROR_INVALID_HANDLE)
    refused("context: it is closed", lambda: context.plan(tokens=1, head_dim=8), liblasp.InvalidHandle)
    refused("context: it is closed", context.abort, liblasp.InvalidHandle)
    comm.close()
    refused("comm: it is closed", lambda: comm.rank, liblasp.InvalidHandle)
    refused("comm: it is closed", lambda: liblasp.Context(comm), liblasp.InvalidHandle)
    for handle in (plan, context, comm):
        handle.close()  # closing twice does nothing
        assert "closed" in repr(handle)


def test_handles_are_not_copied(plan):
    """A copy would free the handle twice, and a pickle hand it to another process. A problem is plain data."""
    for handle in (plan, plan.context, plan.context.comm):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"^a lasp.{type(handle).__name__} cannot be copied or pickled, .*make"):
                duplicate(handle)
    for duplicate in (copy.copy, copy.deepcopy, lambda problem: pickle.loads(pickle.dumps(problem))):
        assert duplicate(plan.problem) == plan.problem
    assert np.isfinite(plan.forward(Q, K, V, G)).all()


def test_a_problem_changed():
    """with_ takes what Problem(...) takes, the short names too."""
    problem = liblasp.Problem(16, heads=2, head_dim=8, decay="head")
    assert problem.with_(heads=4, head_dim=16) == liblasp.Problem(16, heads=4, head_dim=16, decay="head")
    assert problem.with_(heads=4, heads_k=2) == liblasp.Problem(16, heads_q=4, heads_k=2, heads_v=4, head_dim=8,
                                                                decay="head")
    assert problem.with_(head_dim_v=24).head_dim_k == 8 and problem.with_(scale=0.5).scale == 0.5
    assert problem.with_(heads=None, scale=None) == problem
    refused("heads = 4: sets nothing",
            lambda: liblasp.Problem(16, heads=4, heads_q=8, heads_k=8, heads_v=8, head_dim=8))
    refused("head_dim = 8: sets nothing", lambda: liblasp.Problem(16, head_dim=8, head_dim_k=8, head_dim_v=16))
    with pytest.raises(TypeError, match="head_dims"):
        problem.with_(head_dims=8)


def test_a_problem_is_read_whole():
    """All arrays are compared, not only those that a shape is taken from."""
    refused(r"k has shape \(1, 63, 2, 8\): .* must be \(1, 64, 2, 8\)", lambda: liblasp.Problem.like(Q, K[:, 1:], V))
    refused("v has shape", lambda: liblasp.Problem.like(Q, K, V[:, 1:]))
    refused("k has shape", lambda: liblasp.Problem.like(Q, np.zeros((1, 64, 2, 16), np.float32), V))
    refused("k is of type float16: must be float32", lambda: liblasp.Problem.like(Q, K.astype(np.float16), V))
    refused(r"decay has shape \(3,\): .* must be \(2,\)",
            lambda: liblasp.Problem.like(Q, K, V, decay=np.zeros(3, np.float32)))
    refused("decay has shape", lambda: liblasp.Problem.like(Q, K, V, decay=G[:, :5]))
    refused("decay is of type float16", lambda: liblasp.Problem.like(Q, K, V, decay=np.zeros(2, np.float16)))
    same = np.broadcast_to(Q[0, 0, 0], (2, 64, 2, 8))
    refused(r"strides\['q'\] = \(0, 0, 0\)", lambda: liblasp.Problem.like(same, same, same))
    one = same[:1, :1, :1]  # one element is nowhere else
    assert liblasp.Problem.like(one, one, one).strides == {}


def test_dead_handle_in_the_raw_layer():
    """The library itself knows its handles, so that the raw layer does not crash either."""
    comm = liblasp.raw.lasp_comm_create_self()
    liblasp.raw.lasp_comm_destroy(comm)
    refused("comm", lambda: liblasp.raw.lasp_comm_destroy(comm), liblasp.InvalidHandle)
    refused("comm", lambda: liblasp.raw.lasp_comm_get_rank(comm), liblasp.InvalidHandle)


def test_garbage_collection_in_any_order():
    plans = [liblasp.Context(cpu_threads=1).plan(tokens=8, head_dim=8) for _ in range(3)]
    assert all(plan.info.total_tokens == 8 for plan in plans)  # the plan keeps its context alive
    del plans


def test_garbage_collection_while_the_context_works():
    """A plan collected on one thread while another is in a call of its context: neither notices, nothing is left."""
    q = np.ones((1, 30000, 4, 64), np.float32)
    context = liblasp.Context(cpu_threads=1)
    long, garbage = (context.plan(liblasp.Problem.like(q, q, q, backward=False)) for _ in range(2))
    done = []
    thread = threading.Thread(target=lambda: done.append(long.forward(q, q, q)))
    thread.start()
    while thread.is_alive() and garbage is not None:
        time.sleep(0.01)  # the thread is in its call
        garbage = None
        gc.collect()
    assert thread.is_alive(), "the call was over before the plan was collected"
    assert len(context._orphans) == 1  # kept for the thread that uses the context, not destroyed under its call
    thread.join()
    assert done and len(context._handles) == 2
    context.plan(tokens=8, head_dim=8)
    assert len(context._handles) == 2
    context.close()


def test_wrong_calls(plan):
    with liblasp.Context(cpu_threads=1) as context:
        forward_only = context.plan(liblasp.Problem.like(Q, K, V, decay=G, backward=False))
        refused("backward=False", lambda: forward_only.backward(D_O, Q, K, V, G))
    refused("end = 70000: the ranks hold", lambda: plan.owners(0, 70000))
    refused("packing is given, but", lambda: plan.forward(Q, K, V, G, cu_seqlens=[0, 1]))
    refused("state is null", lambda: plan.step(Q, K, V, G, state=None))
    refused("d_o has shape", lambda: plan.backward(D_O[:, 1:], Q, K, V, G))
    with pytest.raises(TypeError):
        plan.forward(Q)


def test_two_threads_in_one_context(plan):
    """Refused by the library (IN_USE) or served one after another: never a crash or a wrong number."""
    expected = plan.forward(Q, K, V, G).copy()
    wrong = []

    def run():
        for _ in range(200):
            try:
                if not np.array_equal(plan.forward(Q, K, V, G), expected):
                    wrong.append("a wrong number")
            except liblasp.InvalidArgument as error:
                if error.status != liblasp.raw.LASP_ERROR_IN_USE:
                    wrong.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ranks_that_disagree():
    def body(rank, comm):
        with liblasp.Context(comm, time_limit=20, cpu_threads=1) as context:
            return context.plan(tokens=8, head_dim=8 if rank == 0 else 16)

    for error in on_threads(liblasp.Comm.threads(2), body):
        assert isinstance(error, liblasp.Disagreement) and "head_dim" in str(error), error


def test_peer_refused():
    def body(rank, comm):
        with liblasp.Context(comm, time_limit=20, cpu_threads=1) as context:
            return context.plan(tokens=8, head_dim=8 if rank == 0 else 12)

    first, second = on_threads(liblasp.Comm.threads(2), body)
    assert isinstance(first, liblasp.Disagreement) and first.status == liblasp.raw.LASP_ERROR_PEER_REFUSED
    assert isinstance(second, liblasp.Unsupported)


def test_a_rank_whose_fields_are_refused():
    """By the package, before the library: the other rank learns of it at once."""
    def body(rank, comm):
        with liblasp.Context(comm, time_limit=60, cpu_threads=1) as context:
            return context.plan(tokens=8, head_dim=8, scale=1e-60 if rank == 1 else None)

    began = time.monotonic()
    first, second = on_threads(liblasp.Comm.threads(2), body)
    assert isinstance(first, liblasp.Disagreement) and first.status == liblasp.raw.LASP_ERROR_PEER_REFUSED
    assert isinstance(second, liblasp.InvalidArgument) and "scale = 1e-60" in str(second)
    assert time.monotonic() - began < 30


def test_lost_rank():
    comms = liblasp.Comm.threads(2)
    with liblasp.Context(comms[0], time_limit=0.05, cpu_threads=1) as context:
        error = refused("rank 1", lambda: context.plan(tokens=8, head_dim=8), liblasp.PeerLost)
        assert error.rank == 1 and isinstance(error, liblasp.CommFailed)


def test_abort():
    comms = liblasp.Comm.threads(2)
    context = liblasp.Context(comms[0], time_limit=60, cpu_threads=1)

    def abort_soon():
        time.sleep(0.05)
        context.abort()

    thread = threading.Thread(target=abort_soon)
    thread.start()
    refused("abort", lambda: context.plan(tokens=8, head_dim=8), liblasp.Aborted)
    thread.join()
    context.close()


class FailingEnd(MailboxEnd):
    """Fails in a chosen method."""

    fails, lost = "", 0

    def send(self, *args):
        if self.fails == "send":
            raise RuntimeError("the cable is cut")
        return super().send(*args)

    def wait(self, request, time_limit_ms):
        if request is not None and self.fails == "wait":
            raise KeyError("lost request")
        if request is not None and self.fails == "lost":
            raise liblasp.PeerLost(f"rank {self.lost} went home", rank=self.lost)
        super().wait(request, time_limit_ms)


@pytest.mark.parametrize("fails,kind,status", [("send", liblasp.CommFailed, liblasp.raw.LASP_ERROR_TRANSPORT),
                                               ("wait", liblasp.CommFailed, liblasp.raw.LASP_ERROR_TRANSPORT),
                                               ("lost", liblasp.PeerLost, liblasp.raw.LASP_ERROR_PEER_LOST)])
def test_exceptions_in_a_transport(fails, kind, status):
    ends = Mailboxes(2).ends(FailingEnd)
    ends[1].fails = fails

    def body(rank, end):
        with end.comm() as comm, liblasp.Context(comm, time_limit=0.5, cpu_threads=1) as context:
            return context.plan(tokens=8, head_dim=8)

    error = on_threads(ends, body)[1]
    assert isinstance(error, kind) and error.status == status, error
    assert isinstance(error.__cause__, (RuntimeError, KeyError, liblasp.PeerLost)), error.__cause__
    assert ends[1].closed == 1


def test_the_lost_rank_is_the_one_that_the_transport_names():
    """Rank 0 of three waits for rank 1 first."""
    end = Mailboxes(3).ends(FailingEnd)[0]
    end.fails, end.lost = "lost", 2
    with end.comm() as comm, liblasp.Context(comm, time_limit=0.5, cpu_threads=1) as context:
        error = refused("rank 2", lambda: context.plan(tokens=8, head_dim=8), liblasp.PeerLost)
        assert error.rank == 2 and "went home" in str(error.__cause__)
        later = refused("nranks = 0", lambda: liblasp.Comm.threads(0))
        assert later.__cause__ is None, "the cause of another error"


class RememberingEnd(MailboxEnd):
    """Keeps the memory that it was given."""

    def __init__(self, group, rank):
        super().__init__(group, rank)
        self.views = []

    def send(self, data, peer, tag, stream):
        self.views.append(data)
        return super().send(data, peer, tag, stream)

    def receive(self, data, peer, tag, stream):
        self.views.append(data)
        return super().receive(data, peer, tag, stream)


def test_a_transports_views_are_closed():
    """Once a request has ended its memory may be gone: Python code that kept the view cannot touch it any more."""
    ends = Mailboxes(2).ends(RememberingEnd)

    def body(rank, end):
        with end.comm() as comm, liblasp.Context(comm, time_limit=60, cpu_threads=1) as context:
            context.plan(tokens=8, head_dim=8)
            for view in end.views:
                with pytest.raises(ValueError, match="released"):
                    view.tobytes()
            return len(end.views)

    assert all(count >= 2 for count in raise_first(on_threads(ends, body)))


def test_log():
    lines = []
    note = lambda level, text: lines.append((level, text))
    with liblasp.Context(cpu_threads=1, log=note, log_level="debug") as context:
        context.plan(tokens=8, head_dim=8)
    assert lines and all(isinstance(level, liblasp.LogLevel) and text for level, text in lines)
