"""liblasp.torch's delta rules on CUDA tensors, against the same on the CPU in float32: tensor cores where K and V are
128 or 64, the general kernels elsewhere; packed, with offsets in device memory, and captured in a graph."""

import torch

import liblasp.torch as lt
from problems import attempt, error, line

# Tensor cores: docs/reference/delta-rule.md. General kernels: the rounding of results alone.
BOUNDS = {"o": 4e-3, "final_state": 4e-3, "q": 4e-3, "k": 4e-3, "v": 4e-3, "beta": 5.7e-3, "g": 8e-3}
RULES = {"delta_rule": 0, "gated_delta_rule": 3, "kda": 4}  # dimensions of g


def inputs(rule, dim, tokens=500, heads=4, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(dim + tokens)
    made = {name: torch.randn(1, tokens, heads, dim, generator=generator) for name in ("q", "k", "v", "d_o")}
    made["k"] = torch.nn.functional.normalize(made["k"], dim=-1)
    if RULES[rule]:
        made["g"] = -0.2 * torch.rand((1, tokens, heads, dim)[:RULES[rule]], generator=generator)
    made["beta"] = torch.rand(1, tokens, heads, generator=generator)
    return {name: value.to(dtype) if name in ("q", "k", "v", "d_o") else value for name, value in made.items()}


def results(rule, made, device, **options):
    leaves = {name: value.to(device).detach().requires_grad_() for name, value in made.items() if name != "d_o"}
    if device == "cpu":
        leaves = {name: value.detach().float().requires_grad_() for name, value in leaves.items()}
    o, final = getattr(lt, rule)(**leaves, output_final_state=True, **options)
    torch.autograd.backward([o, final], [made["d_o"].to(device, o.dtype), torch.ones_like(final)])
    return {"o": o, "final_state": final, **{name: value.grad for name, value in leaves.items()}}


def compare(rule, dim, packed):
    made = inputs(rule, dim)
    offsets = torch.tensor([0, 63, 63, 300, 500]) if packed else None
    on_cpu = results(rule, made, "cpu", **({"cu_seqlens": offsets} if packed else {}))
    on_gpu = results(rule, made, "cuda", **({"cu_seqlens": offsets.cuda()} if packed else {}))
    far = {name: error(on_gpu[name], on_cpu[name]) for name in on_cpu}
    worst = max(far, key=lambda name: far[name] / BOUNDS[name])
    line(far[worst] <= BOUNDS[worst],
         f"{rule}, K = V = {dim}{', packed' if packed else ''}: {worst} is {far[worst]:.2g} from the CPU's, "
         f"bound {BOUNDS[worst]:.2g}")


def check_delta():
    for rule in RULES:
        for dim in (32, 64, 128):
            for packed in (False, True):
                attempt(f"{rule} of {dim}", compare, rule, dim, packed)
