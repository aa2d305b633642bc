"""What a call costs on the host beyond the C function, on a plan without work: at most 5 microseconds."""

import ctypes
import os
import pathlib
import time

import torch

import liblasp
import liblasp.torch as lt
from frameworks import framework_of_outputs, present
from problems import attempt, line, need

LIMIT_US = 5.0
CALLS, ROUNDS, TRIES = 500, 11, 3


def microseconds(call):
    """Of one call, in CPU time of this thread: the least of several rounds' means."""
    best = float("inf")
    call()
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, (time.thread_time() - began) / CALLS * 1e6)
    torch.cuda.synchronize()
    return best


def c_function(plan, bound):
    """The same forward in a loop in C: c_loop.so in the package (`carry` puts it there), or named by LASP_C_LOOP.
    Without it the bound call, which adds nothing but a call of Python's to it."""
    path = os.environ.get("LASP_C_LOOP") or pathlib.Path(liblasp.__file__).parent / "c_loop.so"
    if not pathlib.Path(path).exists():
        return "the bound call", lambda: microseconds(bound)
    loop = ctypes.CDLL(str(path)).time_forward
    loop.argtypes, loop.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_double
    return "C", lambda: min(loop(int(plan.handle), CALLS) for _ in range(ROUNDS)) * 1e6


def and_output(base, like):
    """The C function and what torch takes to make the output, which any function that returns one has to."""
    name, of_base = base
    return f"{name} and empty_like", lambda: of_base() + microseconds(lambda: torch.empty_like(like))


def compare(text, call, base, limit=LIMIT_US):
    """A line, by the best of a few tries: a busy machine spoils some. Without a limit the number only."""
    name, of_base = base
    for _ in range(TRIES):
        plain, full = of_base(), microseconds(call)
        need(plain > 0, "the loop in C failed")
        if limit is None or full - plain < limit:
            break
    text = f"{text}: {full:.2f} us, {name} {plain:.2f} us, {full - plain:.2f} us more"
    if limit is None:
        print(f"        {text} (no limit: the framework's own protocol is asked once for every array)", flush=True)
    else:
        line(full - plain < limit, text)


def check_overhead():
    empty = torch.zeros(1, 0, 1, 64, device="cuda")
    quick = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    print(f"        torch's tensors are read by {'the exchange API of DLPack' if quick else 'methods of torch'}")
    states = torch.zeros(1, 1, 64, 64, device="cuda")
    with liblasp.Context(device="cuda:0") as context:
        plan = context.plan(liblasp.Problem.like(empty, empty, empty))
        bound = plan.bind_forward(empty, empty, empty, out=empty.clone())
        base = c_function(plan, bound)
        out, gradients = empty.clone(), {name: empty.clone() for name in ("dq", "dk", "dv")}
        compare("Plan.bind_forward's call", bound, base)
        compare("Plan.forward, torch", lambda: plan.forward(empty, empty, empty, out=out), base)
        made = and_output(base, empty)
        compare("Plan.forward, torch, o made", lambda: plan.forward(empty, empty, empty), made)
        compare("Plan.backward, torch", lambda: plan.backward(out, empty, empty, empty, out=gradients), base)
        compare("Plan.step, torch", lambda: plan.step(empty, empty, empty, state=states, out=out), base)
        with torch.no_grad():
            compare("linear_attention", lambda: lt.linear_attention(empty, empty, empty), made)
            compare("linear_attention_step", lambda: lt.linear_attention_step(empty, empty, empty, states), made)
        for framework in present():
            if framework.name != "torch":
                attempt(framework.name, of_framework, framework, plan, empty.cpu(), base)


def of_framework(framework, plan, empty, base):
    q, out = framework.put(empty), framework_of_outputs(framework).put(empty)
    compare(f"Plan.forward, {framework.name}", lambda: plan.forward(q, q, q, out=out), base, None)
    compare(f"Plan.bind_forward's call, {framework.name}", plan.bind_forward(q, q, q, out=out), base)
