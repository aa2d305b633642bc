"""Layers of flash-linear-attention on the CPU for test_torch_fla: what are kernels of Triton in them is written out in
PyTorch, one token at a time, in fla's own modules. So the unsplit layer runs too, and goes on from a cache."""
import importlib

import torch
from torch.nn import functional as F

from test_torch_support import recurrence

WIDTH = 32
LAYERS = {
    "SimpleGLA": ("simple_gla", {"num_heads": 2, "use_short_conv": True}),
    "GLA": ("gla", {"num_heads": 2}),
    "RetNet": ("multiscale_retention", {"num_heads": 2}),
    "GatedDeltaNet": ("gated_deltanet", {"num_heads": 2, "head_dim": 16, "expand_v": 1}),
    "DeltaNet": ("delta_net", {"num_heads": 2}),
}


def make(name, dtype=torch.float32, layer_idx=0):
    module, options = LAYERS[name]
    package = importlib.import_module(f"fla.layers.{module}")
    kind = next(each for each in vars(package).values() if isinstance(each, type) and each.__module__ == package.__name__)
    torch.manual_seed(3)
    return kind(hidden_size=WIDTH, layer_idx=layer_idx, **options).to(dtype).train()


def attend(q, k, v, decay=None, beta=None, initial_state=None, output_final_state=False, state_v_first=False):
    """In float32 at least, as the kernels add up."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k, of, decay, beta = (None if each is None else each.to(wide) for each in (q, k, v, decay, beta))
    if state_v_first and initial_state is not None:
        initial_state = initial_state.transpose(-1, -2)
    o, state = recurrence(q, k, of, decay, beta=beta, initial_state=initial_state)
    state = state.transpose(-1, -2) if state_v_first else state
    return o.to(v.dtype), state if output_final_state else None


_STATES = ("initial_state", "output_final_state", "state_v_first")


def _states(options):
    return {name: options[name] for name in _STATES if name in options}


def _retention(q, k, v, **options):
    gamma = torch.log(1 - 2.0 ** (-5 - torch.arange(q.shape[2], dtype=torch.float64)))
    return attend(q, k, v, gamma, **_states(options))


def _delta_rule(q, k, v, beta, g=None, A_log=None, dt_bias=None, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False,
                use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, **options):
    dtype = v.dtype
    q, k, v, beta = (each if dtype == torch.float64 else each.float() for each in (q, k, v, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6) for each in (q, k))
    if use_gate_in_kernel:
        g = -A_log.to(v.dtype).exp() * F.softplus(g.to(v.dtype) + dt_bias.to(v.dtype))
    if use_beta_sigmoid_in_kernel:
        beta = (2 if allow_neg_eigval else 1) * beta.sigmoid()
    o, state = attend(q, k, v, g, beta, **_states(options))
    return o.to(dtype), state


def _convolution(x, weight, bias=None, initial_state=None, output_final_state=False, activation=None, **_):
    width = weight.shape[1]
    cache = x.new_zeros(x.shape[0], x.shape[2], width) if initial_state is None else initial_state
    rows = torch.cat([cache, x.transpose(1, 2)], 2)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    y = F.conv1d(rows[..., 1:].to(wide), weight[:, None].to(wide), None if bias is None else bias.to(wide),
                 groups=len(weight))
    y = (F.silu(y) if activation else y).transpose(1, 2).to(x.dtype)
    return y, rows[..., -width:] if output_final_state else None


_KERNELS = {
    "simple_gla": lambda q, k, v, g, **options: attend(q, k, v, g, **_states(options)),
    "gla": lambda q, k, v, g=None, gk=None, **options: attend(q, k, v, gk if g is None else g, **_states(options)),
    "retention": _retention, "gated_delta_rule": _delta_rule, "delta_rule": _delta_rule}


def in_torch():
    """fla's norms, rotations and attentions, which are kernels of Triton, on the CPU."""
    from fla.modules import FusedRMSNormGated, RMSNorm, ShortConvolution
    from fla.modules.rotary import RotaryEmbedding

    def norm(self, x, *_, **__):
        wide = x if x.dtype == torch.float64 else x.float()
        weight = 1.0 if self.weight is None else self.weight.to(wide.dtype)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * weight).to(x.dtype)

    def gated(self, x, g, *_, **__):
        wide = norm(self, x if x.dtype == torch.float64 else x.float())
        return (wide * F.silu(g.to(wide.dtype))).to(x.dtype)

    def rotary(self, q, k, seqlen_offset=0, cu_seqlens=None, max_seqlen=None, **_):
        cuts = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
        begins = seqlen_offset.tolist() if isinstance(seqlen_offset, torch.Tensor) else [seqlen_offset] * (len(cuts) - 1)
        at = torch.cat([torch.arange(last - first) + begin for first, last, begin in zip(cuts, cuts[1:], begins)])
        assert len(at) == q.shape[1] and int(at.max()) < (max_seqlen or q.shape[1] + seqlen_offset)  # of the tables
        half = q.shape[-1] // 2
        angles = at[:, None].double() * 1e4 ** (-torch.arange(half) / half)
        cos, sin = (each[:, None].to(q.dtype) for each in (angles.cos(), angles.sin()))
        return tuple(torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
                     for a, b in (each.chunk(2, -1) for each in (q, k)))

    def convolve(self, x, cache=None, output_final_state=False, **_):
        return _convolution(x, self.weight[:, 0], self.bias, cache, output_final_state, self.activation)

    RMSNorm.forward, FusedRMSNormGated.forward, RotaryEmbedding.forward = norm, gated, rotary
    ShortConvolution.forward = convolve
    for module, _ in LAYERS.values():
        package = importlib.import_module(f"fla.layers.{module}")
        for name, kernel in _KERNELS.items():
            for how in ("chunk", "fused_chunk", "fused_recurrent"):
                if hasattr(package, f"{how}_{name}"):
                    setattr(package, f"{how}_{name}", kernel)
        if hasattr(package, "causal_conv1d"):
            package.causal_conv1d = _convolution
