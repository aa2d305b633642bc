"""The custom operators on one GPU: compiled and fake calls beside ordinary ones."""

import importlib.util

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import liblasp.torch as lt
from liblasp.torch import operators
from problems import attempt, error, line, skip


def make_module():
    torch.manual_seed(2)
    return lt.LinearAttention(512, 4, decay="scalar").cuda()


def trained(module, call, x, dtype=torch.bfloat16):
    module.zero_grad()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        y = call(x)
    y.float().square().mean().backward()
    return [y.detach(), *(parameter.grad.clone() for parameter in module.parameters())]


def compare(what, module, call, lengths=(1024,)):
    """A compiler rounds to bfloat16 elsewhere: two roundings of the same; twice as far from float32 is allowed."""
    worst = 0.0
    for _ in range(3):  # a CUDA graph is captured in the second call and replayed in the third
        for length in lengths:
            x = torch.randn(2, length, 512, device="cuda")
            exact = trained(module, module, x, torch.float32)
            for actual, ordinary, wide in zip(trained(module, call, x), trained(module, module, x), exact):
                worst = max(worst, error(actual, wide) / error(ordinary, wide))
    line(worst <= 2.0, f"{what}: {worst:.2f} times the ordinary call's distance from float32")


def same_bits(what, module, call, lengths=(1024,)):
    pairs = []
    for length in lengths:
        x = torch.randn(2, length, 512, device="cuda")
        pairs += zip(trained(module, call, x), trained(module, module, x))
    line(all(torch.equal(actual, ordinary) for actual, ordinary in pairs), f"{what}: the ordinary call's bits")


def operator_arguments(dtype=torch.bfloat16):
    """Of forward with gradients, as liblasp/torch/operators.py has it."""
    generator = torch.Generator("cuda").manual_seed(4)
    normal = lambda *shape: torch.randn(shape, device="cuda", generator=generator)
    q, k, v = (normal(1, 256, 2, 128).to(dtype) for _ in range(3))
    decay = -normal(1, 256, 2).abs()
    state = normal(1, 2, 128, 128)
    return (q, k, v, decay, None, state, None, operators.strides_of(q, k, v, decay), "", None, True, None, "chunks",
            False, True, True)


def opcheck():
    given = operator_arguments()
    torch.library.opcheck(operators.FORWARD, given)
    o, final_state, cache = operators.FORWARD(*given)
    torch.library.opcheck(operators.BACKWARD, (torch.ones_like(o), torch.ones_like(final_state),
                                               operators.whole_cache(cache), *given[:-2], True, True))
    line(True, "opcheck of forward and backward")


def shapes_of_fake_tensors():
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.empty(2, 1 << 20, 32, 128, dtype=torch.bfloat16, requires_grad=True)
        o, state = lt.linear_attention(x, x, x, output_final_state=True)
        o.sum().backward()
    line((o.shape, x.grad.shape, state.shape) == (x.shape, x.shape, (2, 32, 128, 128)), "fake tensors: shapes")


def check_operators():
    attempt("opcheck", opcheck)
    attempt("fake tensors", shapes_of_fake_tensors)
    module = make_module()
    same_bits("aot_eager", module, torch.compile(module, fullgraph=True, backend="aot_eager"))
    torch._dynamo.reset()
    same_bits("any length", module, torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True),
              (1024, 777, 2048))
    if importlib.util.find_spec("triton") is None:
        return skip("inductor: no triton")
    for name, options, lengths in (("inductor", {}, (1024,)),
                                   ("reduce-overhead", {"mode": "reduce-overhead"}, (1024,))):
        torch._dynamo.reset()
        compare(name, module, torch.compile(module, fullgraph=True, **options), lengths)
