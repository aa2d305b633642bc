"""Bad input to liblasp.torch: an exception with a sentence, never a crash, and the next call works."""
import gc
import importlib
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
import support  # noqa: E402
from test_torch_support import make_problem, run_ranks  # noqa: E402


@pytest.fixture
def x():
    return make_problem("scalar", states=False)[0]


def refused(match, *args, error=None, **options):
    support.refused(match, lambda: lt.linear_attention(*args, **options), error or liblasp.InvalidArgument)


def test_wrong_tensors(x):
    q, k, v, decay = x["q"], x["k"], x["v"], x["decay"]
    refused("float64", q.double(), k.double(), v.double())
    refused("k: dtype torch.bfloat16", q, k.bfloat16(), v)
    refused("must be torch tensors, not ndarray", q.numpy(), k, v)
    refused("must be torch tensors or None, not a list", q, k, v, [0.0, 0.0])
    refused("initial_state: strides", q[:1, :, :1], k[:1, :, :1], v[:1, :, :1],
            initial_state=torch.zeros(1, 1, 32, 24)[:, :, ::2])
    with pytest.raises(liblasp.InvalidArgument, match="initial_state: shape"):
        lt.linear_attention_step(q, k, v, torch.zeros(1))
    refused("q: has 3 dimensions", q[0], k, v)
    refused("k: shape", q, k[:, 1:], v)
    refused("v: shape", q, k, v[:1])
    refused("k: is on meta", q, k.to("meta"), v)
    refused("last dimension has stride 2", q, k, torch.zeros(*v.shape[:3], 2 * v.shape[3])[..., ::2])
    refused("overlap", q, torch.zeros(9999).as_strided(k.shape, (9, 1, 1, 1)), v)
    refused("decay: shape", q, k, v, decay[:, 1:])
    refused("decay: shape", q, k, v, torch.zeros(5))
    refused("decay: dtype", q, k, v, decay.double())
    refused("heads", torch.zeros(2, 37, 3, 16), k, v)
    refused("head_dim_k", q[..., :12].contiguous(), k[..., :12].contiguous(), v, error=liblasp.Unsupported)
    refused("initial_state: shape", q, k, v, initial_state=torch.zeros(1, 2, 16, 24))
    refused("initial_state: dtype", q, k, v, initial_state=torch.zeros(2, 2, 16, 24, dtype=torch.bfloat16))
    refused("cu_seqlens", q[:1], k[:1], v[:1], cu_seqlens=[0, 99])
    refused("state_cache", q, k, v, state_cache="all")
    refused(None, q, k, v, decay, causal=False, error=liblasp.Error)
    assert lt.linear_attention(q, k, v, decay).shape == v.shape  # all of this left the group as it was


def test_an_expansion_over_everything_is_refused():
    """Strides of zero mean "contiguous" in the library: the size of the memory tells."""
    x = torch.zeros(16).expand(2, 8, 2, 16)
    refused(None, x, x, x)


def test_invalid_argument_is_a_value_error(x):
    with pytest.raises(ValueError):
        lt.linear_attention(x["q"][0], x["k"], x["v"])


def test_second_derivatives(x):
    q = x["q"].detach().requires_grad_()
    o = lt.linear_attention(q, x["k"], x["v"], x["decay"])
    gradient, = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_use_after_close(x):
    group = lt.SequenceGroup()
    q = x["q"].detach().requires_grad_()
    o = lt.linear_attention(q, x["k"], x["v"], group=group)
    group.close()
    group.close()
    with pytest.raises(liblasp.Error):
        lt.linear_attention(x["q"], x["k"], x["v"], group=group)
    with pytest.raises(liblasp.Error):
        o.sum().backward()


def test_groups_freed_in_any_order(x):
    comm = liblasp.Comm.self_()
    group = lt.SequenceGroup(comm)
    o = lt.linear_attention(x["q"].detach().requires_grad_(), x["k"], x["v"], group=group)
    with pytest.raises(liblasp.Error):
        comm.close()  # still used
    del group
    gc.collect()
    o.sum().backward()
    del o
    gc.collect()


def test_not_a_group():
    with pytest.raises(TypeError, match="source"):
        lt.SequenceGroup(5)


def test_threads_have_groups_of_their_own(x):
    """Without a group any number of threads may call at a time."""
    expected = lt.linear_attention(x["q"], x["k"], x["v"])
    results = []

    def run():
        for _ in range(5):
            results.append(torch.equal(lt.linear_attention(x["q"], x["k"], x["v"]), expected))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 15


def test_ranks_that_disagree(x):
    def rank_function(rank, group):
        with pytest.raises(liblasp.Disagreement, match="scale"):
            lt.linear_attention(x["q"], x["k"], x["v"], group=group, scale=1.0 + rank)
        return lt.linear_attention(x["q"], x["k"], x["v"], group=group)  # contexts live on

    run_ranks(2, rank_function)


def test_a_rank_refused_is_told_to_the_others(x):
    def rank_function(rank, group):
        offsets = [0, 10, 5] if rank else [0, 10, 15]
        with pytest.raises(liblasp.Error):
            lt.linear_attention(x["q"][:1], x["k"][:1], x["v"][:1], group=group, cu_seqlens=offsets)

    run_ranks(2, rank_function)


def test_a_rank_that_does_not_come(x):
    def rank_function(rank, group):
        if rank == 0:
            with pytest.raises(liblasp.PeerLost, match="rank 1"):
                lt.linear_attention(x["q"], x["k"], x["v"], group=group)
            with pytest.raises(liblasp.CommFailed):  # the communicator stays broken
                lt.linear_attention(x["q"], x["k"], x["v"], group=group)

    run_ranks(2, rank_function, time_limit=0.3)


def test_a_watchdog_looks():
    with lt.SequenceGroup(liblasp.Comm.threads(2)[0]) as group:
        group.check()  # before there is anything to look at
        group._context(torch.device("cpu"))
        group.check()
        group.abort()
        with pytest.raises(liblasp.Aborted):
            group.check()


def test_abort(x):
    def rank_function(rank, group):
        lt.linear_attention(x["q"], x["k"], x["v"], group=group)
        if rank == 1:
            time.sleep(0.1)
            group.abort()
            return
        began = time.monotonic()
        with pytest.raises(liblasp.Aborted):
            lt.linear_attention(x["q"], x["k"], x["v"], group=group, scale=2.0)
        assert time.monotonic() - began < 20

    run_ranks(2, rank_function)


def refused_on_rank_1(x, wrong, error, prepared):
    """Rank 1's call is refused in Python; rank 0 is told, in the call that it made with the right tensors."""
    def rank_function(rank, group):
        if prepared:
            lt.linear_attention(x["q"], x["k"], x["v"], x["decay"], group=group)
            both.wait()
        began = time.monotonic()
        if rank == 1:
            with pytest.raises(error):
                wrong(group)
        else:
            with pytest.raises((liblasp.PeerLost, liblasp.Disagreement), match="rank 1"):
                while True:
                    lt.linear_attention(x["q"], x["k"], x["v"], x["decay"], group=group)
        assert time.monotonic() - began < 8

    both = threading.Barrier(2)
    run_ranks(2, rank_function, time_limit=16.0)


@pytest.mark.parametrize("prepared", [True, False], ids=["in a later call", "in the first call"])
@pytest.mark.parametrize("name", ["dtype", "shape", "no tensor", "flag", "offsets"])
def test_a_call_refused_here_is_told_to_the_others(x, name, prepared):
    q, k, v, decay = x["q"], x["k"], x["v"], x["decay"]
    wrong = {"dtype": lambda group: lt.linear_attention(q.double(), k, v, decay, group=group),
             "shape": lambda group: lt.linear_attention(q, k, v, decay[:, 1:], group=group),
             "no tensor": lambda group: lt.linear_attention(q, k, v, [0.0], group=group),
             "flag": lambda group: lt.linear_attention(q, k, v, decay, group=group, causal="no"),
             "offsets": lambda group: lt.linear_attention(q, k, v, decay, group=group, cu_seqlens=[0, 2.5])}[name]
    refused_on_rank_1(x, wrong, liblasp.InvalidArgument, prepared)


def test_no_memory_is_told_to_the_others(x, monkeypatch):
    def wrong(group):
        plan = next(iter(group._plans.values()))
        monkeypatch.setattr(plan, "new_output", lambda like: torch.empty(2 ** 60))
        lt.linear_attention(x["q"], x["k"], x["v"], x["decay"], group=group)

    refused_on_rank_1(x, wrong, RuntimeError, True)


def test_a_backward_that_fails_here_is_told_to_the_others(x):
    both = threading.Barrier(2)

    def rank_function(rank, group):
        leaf = x["q"].detach().requires_grad_()
        o = lt.linear_attention(leaf, x["k"], x["v"], x["decay"], group=group)
        both.wait()
        began = time.monotonic()
        if rank == 1:
            group.workspace = lambda *unused: torch.empty(2 ** 60)
        with pytest.raises(RuntimeError if rank == 1 else liblasp.PeerLost, match=None if rank == 1 else "rank 1"):
            o.sum().backward()
        assert time.monotonic() - began < 8

    run_ranks(2, rank_function, time_limit=16.0)


def test_trainer_without_its_package(monkeypatch):
    for name in ("megatron", "megatron.core.ssm"):  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "liblasp.torch.trainers.megatron", raising=False)
    with pytest.raises(ImportError, match="needs Megatron-Core 0.16: pip install megatron-core"):
        importlib.import_module("liblasp.torch.trainers.megatron")
