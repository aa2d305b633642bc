"""What a call through torch tensors costs over the C function, without work: no tokens, a group of one."""
import statistics
import time

import pytest

torch = pytest.importorskip("torch")

import lasp.torch as lt  # noqa: E402


def microseconds(function, calls=300, rounds=40):
    """The least median, in CPU time of this thread: the machine may be busy with other things."""
    function()
    best = float("inf")
    for _ in range(rounds):
        spent = []
        for _ in range(5):
            began = time.thread_time_ns()
            for _ in range(calls // 5):
                function()
            spent.append((time.thread_time_ns() - began) / (calls // 5) / 1e3)
        best = min(best, statistics.median(spent))
    return best


def test_overhead(capsys):
    q = torch.zeros(1, 0, 1, 64)
    with torch.no_grad():
        o = lt.linear_attention(q, q, q)
        group = lt.sequence_group(None)
        plan = next(plan for key, plan in group._plans.items() if key.q[0] == q.shape and not key.backward)
        # The bound call is the C function on a struct that is ready: nothing of Python but the call itself.
        bound = plan._plan.bind_forward(q, q, q, out=o)
        workspace = group.workspace(plan.workspace_forward_bytes, q.device)
        c = microseconds(bound)
        tensors = microseconds(lambda: plan.forward(0, workspace, False, q=q, k=q, v=q, o=o))
        whole = microseconds(lambda: lt.linear_attention(q, q, q))
    leaf = q.clone().requires_grad_()
    recorded = microseconds(lambda: lt.linear_attention(leaf, q, q))
    with capsys.disabled():
        print(f"\n  C {c:.2f} us, from tensors {tensors:.2f} us, linear_attention {whole:.1f} us (it finds the "
              f"plan and makes the output), recorded by autograd {recorded:.1f} us")
    assert tensors - c < 5.0
    # torch's own cost of an operator written in Python: an allocation and the look at three tensors are 5 us.
    assert whole - c < 25.0
