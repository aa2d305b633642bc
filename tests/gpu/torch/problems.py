"""What the checks share: lines of the report, problems, the recurrence in float64, errors and their bounds."""

import collections
import re
import sys
import traceback

import torch

import liblasp
import liblasp.torch as lt

# Errors against float64, relative Frobenius norm. bfloat16 on tensor cores: the project's target, 4e-3; float32 by general
# kernels: sums of at most 2,000 terms in float32 and the roundings of exp, 2e-6 on the CPU, four times that for
# the GPU's sums in more pieces.
BOUNDS = {torch.float32: 8e-6, torch.bfloat16: 4e-3, torch.float16: 4e-3}


counts = collections.Counter()  # of lines, by "passed", "failed" and "skipped"


def need(condition, text):
    """What a check cannot go on without."""
    if not condition:
        raise AssertionError(text)


def line(good, text):
    """One line of the report. The check goes on, and fails in the end, where it is not good."""
    counts["passed" if good else "failed"] += 1
    print(f"  {'pass' if good else 'FAIL'}  {text}", flush=True)


def skip(text):
    counts["skipped"] += 1
    print(f"  SKIPPED  {text}", flush=True)


def attempt(what, function, *args):
    """What raises is a line that failed, and the check goes on."""
    try:
        function(*args)
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        line(False, f"{what}: {type(error).__name__}: {error}")


def refused(what, words, call, kind=liblasp.InvalidArgument):
    """A line: whether the call raises `kind` with these words."""
    try:
        call()
    except Exception as error:
        line(isinstance(error, kind) and re.search(words, str(error)) is not None,
             f"{what}: {type(error).__name__}: {error}")
    else:
        line(False, f"{what}: was not refused")


def error(actual, expected):
    expected = expected.detach().double().cpu()
    return float((actual.detach().double().cpu() - expected).norm() / expected.norm().clamp_min(1e-30))


def problem(decay, batch=2, tokens=300, heads=(4, 4, 4), dim=64, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    shape = {
        "none": None,
        "head": (max(heads),),
        "scalar": (batch, tokens, max(heads)),
        "channel": (batch, tokens, max(heads), dim),
    }[decay]
    return {
        "q": normal(batch, tokens, heads[0], dim),
        "k": normal(batch, tokens, heads[1], dim),
        "v": normal(batch, tokens, heads[2], dim),
        "decay": None if shape is None else -0.1 * torch.rand(shape, generator=generator),
        "initial_state": torch.randn(batch, max(heads), dim, dim, generator=generator),
    }, normal(batch, tokens, max(heads), dim)


def recurrence(q, k, v, decay, initial_state, scale=None):
    heads = max(q.shape[2], k.shape[2], v.shape[2])
    q, k, v = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k, v))
    state, outputs = initial_state, []
    for t in range(q.shape[1]):
        if decay is not None:
            g = (decay if decay.dim() == 1 else decay[:, t]).exp()
            state = (
                g.view(1, -1, 1, 1)
                if decay.dim() == 1
                else g[..., None, None]
                if decay.dim() == 3
                else g[..., None]
            ) * state
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((scale or q.shape[-1] ** -0.5) * torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1), state


def run(function, x, d_o, device, double=False):
    leaves = {
        name: None if value is None else (value.double() if double else value).to(device).detach().requires_grad_()
        for name, value in x.items()
    }
    o, final = function(leaves)
    torch.autograd.backward([o, final], [d_o.to(o), torch.ones_like(final)])
    return {"o": o, "final_state": final, **{f"d {n}": v.grad for n, v in leaves.items() if v is not None}}


def on_gpu(leaves, **options):
    return lt.linear_attention(
        leaves["q"],
        leaves["k"],
        leaves["v"],
        leaves["decay"],
        output_final_state=True,
        initial_state=leaves["initial_state"],
        **options,
    )
