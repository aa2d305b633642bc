"""liblasp.torch.fla: layers of flash-linear-attention on two ranks, against the same layers with fla's own reference
functions on one. Their norms and rotary positions are Triton's, and are PyTorch's here."""
import warnings

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import hf_ranks  # noqa: E402
from support import sentence_of  # noqa: E402

TOKENS = 23
LAYERS = {
    "SimpleGLA": ("simple_gla", {"num_heads": 2, "use_short_conv": True}),
    "GLA": ("gla", {"num_heads": 2}),
    "RetNet": ("multiscale_retention", {"num_heads": 2}),
    "GatedDeltaNet": ("gated_deltanet", {"num_heads": 2, "head_dim": 16, "expand_v": 1}),
    "DeltaNet": ("delta_net", {"num_heads": 2}),
}


def in_torch():
    """fla's norms and rotations, which are kernels of Triton, on the CPU."""
    from fla.modules import FusedRMSNormGated, RMSNorm
    from fla.modules.rotary import RotaryEmbedding

    def norm(self, x, *_, **__):
        weight = 1.0 if self.weight is None else self.weight
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight

    def rotary(self, q, k, seqlen_offset=0, **_):
        half = q.shape[-1] // 2
        at = (torch.arange(q.shape[1]) + seqlen_offset)[:, None] * 1e4 ** (-torch.arange(half) / half)
        cos, sin = at.cos()[:, None], at.sin()[:, None]
        return tuple(torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
                     for a, b in (each.chunk(2, -1) for each in (q, k)))
    RMSNorm.forward, RotaryEmbedding.forward = norm, rotary
    FusedRMSNormGated.forward = lambda self, x, g, *_, **__: norm(self, x) * torch.nn.functional.silu(g)


def make(name):
    import importlib
    module, options = LAYERS[name]
    package = importlib.import_module(f"fla.layers.{module}")
    kind = next(each for each in vars(package).values() if isinstance(each, type) and each.__module__ == package.__name__)
    torch.manual_seed(3)
    return kind(hidden_size=32, layer_idx=0, **options).train()


def step(layer, x, d_y):
    x = x.detach().clone().requires_grad_()
    y = layer(x)[0]
    y.backward(d_y)
    return y.detach(), x.grad, {name: each.grad for name, each in layer.named_parameters() if each.grad is not None}


def unsplit(layer):
    """The layer with what its kernels compute written out, one token at a time."""
    from torch.nn import functional as F

    from liblasp.torch.hf.rebinding import names_used, rebound
    from test_torch_support import recurrence

    def retention(q, k, v, **_):
        return recurrence(q, k, v, torch.log(1 - 2.0 ** (-5 - torch.arange(q.shape[2], dtype=q.dtype))))

    def delta_rule(q, k, v, beta, g=None, A_log=None, dt_bias=None, use_qk_l2norm_in_kernel=False,
                   use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, **_):
        if use_qk_l2norm_in_kernel:
            q, k = (each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6) for each in (q, k))
        if use_gate_in_kernel:
            g = -A_log.exp() * F.softplus(g + dt_bias)
        if use_beta_sigmoid_in_kernel:
            beta = (2 if allow_neg_eigval else 1) * beta.sigmoid()
        return recurrence(q, k, v, g, beta=beta)

    def convolve(x, weight, bias=None, activation=None, **_):
        y = F.conv1d(F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=x.shape[2])
        return (F.silu(y) if activation else y).transpose(1, 2), None
    known = {"chunk_simple_gla": lambda q, k, v, g, **_: recurrence(q, k, v, g), "chunk_retention": retention,
             "fused_recurrent_gla": lambda q, k, v, gk, **_: recurrence(q, k, v, gk),  # up to 64 tokens
             "chunk_gated_delta_rule": delta_rule, "chunk_delta_rule": delta_rule,
             "fused_recurrent_delta_rule": delta_rule, "causal_conv1d": convolve}
    own = type(layer).forward
    forward = rebound(own, {name: known[name] for name in names_used(own) & known.keys()})
    layer.forward = lambda *arguments: forward(layer, *arguments)
    for inner in layer.modules():
        if type(inner).__name__ == "ShortConvolution":
            inner.forward = lambda x, inner=inner, **_: convolve(x, inner.weight[:, 0], inner.bias, inner.activation)
    return layer


def compared(name):
    """How far a split layer's output, its input's gradient and its parameters' are from the unsplit one's."""
    from liblasp.torch import fla, shard
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(5)
    x, d_y = (torch.randn(2, TOKENS, 32, generator=generator) for _ in range(2))
    y, d_x, gradients = step(unsplit(make(name).double()), x.double(), d_y.double())
    layer = make(name)
    fla.parallelize(layer, dist.group.WORLD)
    found = step(layer, shard(x, rank, ranks), shard(d_y, rank, ranks))
    for each in found[2].values():
        dist.all_reduce(each)
    pairs = {"y": (found[0], shard(y, rank, ranks)), "x": (found[1], shard(d_x, rank, ranks)),
             **{key: (found[2][key], gradients[key]) for key in gradients}}
    with torch.no_grad():
        pairs["without gradients"] = layer(shard(x, rank, ranks))[0], shard(y, rank, ranks)
    return {key: float((one.double() - other).norm() / other.norm()) for key, (one, other) in pairs.items()}


def refusals():
    from liblasp.torch import SequenceGroup, fla
    found = {}

    def refused(name, call):
        found[name] = sentence_of(call)
    layer = make("GLA")
    refused("no layer", lambda: fla.parallelize(torch.nn.Linear(2, 2), dist.group.WORLD))
    refused("no group", lambda: fla.parallelize(layer, None))
    zigzag = SequenceGroup(dist.group.WORLD, ownership="zigzag")
    refused("zigzag", lambda: fla.parallelize(layer, zigzag))
    fla.parallelize(layer, dist.group.WORLD)
    refused("again", lambda: fla.parallelize(layer, dist.group.WORLD))
    refused("mask", lambda: layer(torch.zeros(1, 4, 32), torch.ones(1, 4)))
    refused("cache", lambda: layer(torch.zeros(1, 4, 32), use_cache=True))
    other = type("HGRNAttention", (torch.nn.Module,), {"__module__": "fla.layers.hgrn", "forward": lambda self, x: x})()
    refused("another", lambda: fla.parallelize(torch.nn.Sequential(make("GLA"), other), dist.group.WORLD))
    return found


SENTENCES = {"no layer": "model (Linear): has no layer of flash-linear-attention", "no group": "group", "zigzag": "zigzag",
             "again": "model (GatedLinearAttention): is parallelized already", "mask": "attention_mask, which a split layer",
             "cache": "use_cache, which a split layer", "another": "model.1 (HGRNAttention): mixes tokens by an operation"}


def prepared(check, *arguments):
    warnings.filterwarnings("ignore")
    pytest.importorskip("fla.layers")
    in_torch()
    return check(*arguments)


def test_full_layers_and_refusals(tmp_path):
    pytest.importorskip("triton")
    pytest.importorskip("fla")
    checks = [*((name, prepared, (compared, name)) for name in LAYERS), ("refusals", prepared, (refusals,))]
    reports = hf_ranks.run(tmp_path, 2, checks)
    for name in LAYERS:
        for far in hf_ranks.found(reports, name):
            # Float32 against float64: the bound of test_torch_support through some products. A wrong border: hundredths.
            assert len(far) > 5 and max(far.values()) <= 16 * 2e-6, (name, far)
    for sentences in hf_ranks.found(reports, "refusals"):
        assert sentences.keys() == SENTENCES.keys()
        for name, words in SENTENCES.items():
            assert sentences[name] is not None and words in sentences[name], (name, sentences[name])
