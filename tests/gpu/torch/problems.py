"""What the checks share: problems, the recurrence in float64, errors and their bounds."""

import torch

import lasp.torch as lt

# Errors against float64, relative Frobenius norm. bfloat16 on tensor cores: the project's target, 4e-3; float32 by general
# kernels: sums of at most 2,000 terms in float32 and the roundings of exp, 2e-6 on the CPU, four times that for
# the GPU's sums in more pieces.
BOUNDS = {torch.float32: 8e-6, torch.bfloat16: 4e-3, torch.float16: 4e-3}


def need(condition, text):
    if not condition:
        raise AssertionError(text)


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
