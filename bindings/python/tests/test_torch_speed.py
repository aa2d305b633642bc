"""What a call with torch tensors costs beyond the C function, on a plan without work: no tokens, a group of one. In
CPU time of this thread, so that a busy machine spoils little."""
import statistics
import time

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402

LIMIT_US = 5.0
EMPTY_US = 1.0  # torch.empty_like there
TRIES = 5  # a busy machine may spoil some: its caches are others' too
HAS_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
Q = torch.zeros(1, 0, 1, 64)
needs_exchange = pytest.mark.skipif(not HAS_EXCHANGE, reason="a torch without DLPack's exchange API (before 2.10)")


def microseconds(*functions, calls=300, rounds=20):
    """The least median of five, of each function. They take turns."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            spent = []
            for _ in range(5):
                began = time.thread_time_ns()
                for _ in range(calls // 5):
                    function()
                spent.append((time.thread_time_ns() - began) / (calls // 5) / 1e3)
            best[i] = min(best[i], statistics.median(spent))
    return best


def compare(capsys, what, limit, call, without):
    """What `call` takes more than `without`, both in the same moments. The limit is for a machine as fast as the one
    of docs/reference/bindings.md; a slower one, or one slowed down just now, has as much more as torch's own call takes."""
    for function in (call, without):
        function()
    for _ in range(TRIES):
        slow, quick, torchs_own = microseconds(call, without, lambda: torch.empty_like(Q))
        allowed = limit * max(1.0, torchs_own / EMPTY_US)
        if slow - quick < allowed:
            break
    with capsys.disabled():
        print(f"\n  {what}: {slow:.2f} us, without {quick:.2f} us, {slow - quick:.2f} us more, of {allowed:.1f}", end="")
    assert slow - quick < allowed


@pytest.fixture
def plan():
    with liblasp.Context(cpu_threads=1) as context:
        yield context.plan(liblasp.Problem.like(Q, Q, Q))


@needs_exchange
@pytest.mark.parametrize("how", ["forward", "forward, o made", "backward", "step"])
def test_plan(capsys, plan, how):
    """C: the function on a struct that is ready, by the bound call, which adds nothing of Python but itself."""
    o, state = torch.empty_like(Q), torch.zeros(1, 1, 64, 64)
    grads = {name: torch.empty_like(Q) for name in ("dq", "dk", "dv")}
    plan.forward(Q, Q, Q, out=o)  # whose cache backward reads
    call = {"forward": lambda: plan.forward(Q, Q, Q, out=o), "forward, o made": lambda: plan.forward(Q, Q, Q),
            "backward": lambda: plan.backward(o, Q, Q, Q, out=grads),
            "step": lambda: plan.step(Q, Q, Q, state=state, out=o)}[how]
    compare(capsys, how, LIMIT_US, call, plan.bind_forward(Q, Q, Q, out=o))


@needs_exchange
@pytest.mark.parametrize("how", ["linear_attention", "linear_attention_step"])
def test_whole_function(capsys, plan, how):
    """It finds the plan and makes the output, which alone takes torch a microsecond."""
    state = torch.zeros(1, 1, 64, 64)
    call = {"linear_attention": lambda: lt.linear_attention(Q, Q, Q),
            "linear_attention_step": lambda: lt.linear_attention_step(Q, Q, Q, state)}[how]
    with torch.no_grad():
        compare(capsys, how, LIMIT_US, call, plan.bind_forward(Q, Q, Q, out=torch.empty_like(Q)))


class Empty(torch.autograd.Function):
    """What autograd itself costs: the same tensors in, saved, and one out."""

    @staticmethod
    def forward(ctx, q, k, v, decay, initial_state):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, decay, initial_state)
        return torch.empty_like(q), None

    @staticmethod
    def backward(ctx, d_o, d_final_state):
        return None, None, None, None, None


@needs_exchange
def test_recorded(capsys):
    """About 6 microseconds more than an empty function recorded by autograd."""
    leaf = Q.clone().requires_grad_()
    compare(capsys, "recorded by autograd", 2 * LIMIT_US, lambda: lt.linear_attention(leaf, Q, Q),
            lambda: Empty.apply(leaf, Q, Q, None, None))
