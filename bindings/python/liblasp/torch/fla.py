"""Layers of flash-linear-attention over a split sequence.

    from liblasp.torch import fla as sp
    sp.parallelize(model, groups.sequence)       # each of fla's layers in it
    y, *_ = model(x)                             # x [B, T of this rank, D]
"""
from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch import nn

import liblasp
from liblasp.arguments import describe

from . import dropins
from .convolution import causal_conv1d
from .halo import process_group_of
from .hf.rebinding import names_used, rebound
from .problem import invalid_argument
from .sequence_group import Group, SequenceGroup, sequence_group

def parallelize(model: nn.Module, group: Group) -> Tuple[str, ...]:
    """Every layer of flash-linear-attention in a model, or the model itself, then works on this rank's tokens of a
    sequence that lies over the ranks of the `group`, in their order: GatedLinearAttention, SimpleGatedLinearAttention,
    MultiScaleRetention, GatedDeltaNet and DeltaNet, with their short convolutions and rotary positions. Gives the layers'
    names. Parameters and classes stay.

    Packed sequences by cu_seqlens of all ranks' tokens, without rotary positions. A layer of another kind is refused by
    name, caches and masks where they are given. What mixes tokens outside of these layers is not looked at.
    Raises liblasp.InvalidArgument (a ValueError) and liblasp.Unsupported, and the model is then as it was.
    """
    if not isinstance(model, nn.Module):
        raise invalid_argument(f"model = {describe(model)}: must be a torch.nn.Module")
    ranks = sequence_group(group)
    process_group_of(ranks)
    ranks.require_contiguous("parallelize")
    layers = [(name, module) for name, module in model.named_modules()
              if type(module).__module__.startswith("fla.layers.")]
    if not layers:
        raise invalid_argument(f"model ({type(model).__name__}): has no layer of flash-linear-attention")
    made: List[Tuple[nn.Module, Callable[..., Any]]] = []
    for name, layer in layers:
        made.append((layer, _forward_of(f"model{name and '.' + name}", layer, ranks)))
        for inner in layer.modules():
            if type(inner).__name__ == "ShortConvolution":
                made.append((inner, functools.partial(_short_convolution, ranks, inner)))
            elif type(inner).__name__ == "RotaryEmbedding":
                made.append((inner, functools.partial(_rotary, ranks, inner)))
    for module, forward in made:
        module.forward = forward
    return tuple(name for name, _ in layers)


def _forward_of(name: str, layer: nn.Module, ranks: SequenceGroup) -> Callable[..., Any]:
    own = type(layer).forward
    if "forward" in layer.__dict__:
        raise invalid_argument(f"{name} ({type(layer).__name__}): is parallelized already")
    names: Dict[str, Any] = {each: functools.partial(_OPERATIONS[each], group=ranks)
                             for each in sorted(names_used(own)) if each in _OPERATIONS}
    if not any(each.startswith("chunk_") for each in names):
        raise liblasp.Unsupported(f"{name} ({type(layer).__name__}): mixes tokens by an operation that a split sequence "
                                  "does not serve")
    again = rebound(own, names)

    def forward(hidden_states, attention_mask=None, past_key_values=None, use_cache=False, *others, **options):
        for what, given in (("attention_mask", attention_mask), ("past_key_values", past_key_values),
                            ("use_cache", use_cache or None)):
            if given is not None:
                raise liblasp.Unsupported(f"{name} ({type(layer).__name__}): {what}, which a split layer does not serve")
        return again(layer, hidden_states, None, None, False, *others, **options)
    return forward


def _convolution(x, weight=None, bias=None, residual=None, initial_state=None, output_final_state=False,
                 activation=None, backend=None, cu_seqlens=None, *, group: Group, **other: Any):
    """fla.modules.convolution.causal_conv1d, of which layers take the sum over taps alone."""
    if residual is not None or initial_state is not None or output_final_state or weight is None:
        raise liblasp.Unsupported("causal_conv1d with a residual or a state, which a split layer does not serve")
    silu = "silu" if activation in ("silu", "swish") else activation
    return causal_conv1d(x, weight, bias, activation=silu, group=group, cu_seqlens=cu_seqlens), None


def _short_convolution(ranks, module, x, residual=None, mask=None, cache=None, output_final_state=False, cu_seqlens=None,
                       **other):
    if mask is not None:
        raise liblasp.Unsupported("ShortConvolution with a mask, which a split layer does not serve")
    return _convolution(x, module.weight[:, 0], module.bias, residual, cache, output_final_state, module.activation,
                        cu_seqlens=cu_seqlens, group=ranks)


def _rotary(ranks, module, q, k, seqlen_offset=0, cu_seqlens=None, max_seqlen=None, **other):
    """Positions count from the first rank's first token."""
    if cu_seqlens is not None:
        raise liblasp.Unsupported("rotary positions of packed sequences, which a split layer does not serve")
    own = torch.tensor([q.shape[1]], device=q.device)
    found = [torch.empty_like(own) for _ in range(ranks.size)]
    dist.all_gather(found, own, group=process_group_of(ranks))
    begin = int(sum(found[:ranks.rank], torch.zeros_like(own)))
    return type(module).forward(module, q, k, seqlen_offset=begin, max_seqlen=begin + q.shape[1])


def _recurrent_gla(q, k, v, gk=None, **options):
    return dropins.chunk_gla(q, k, v, gk, **options)


# By the names that fla's layers look up. Without gradients they take other kernels for short sequences.
_OPERATIONS: Dict[str, Callable[..., Any]] = {"fused_recurrent_gla": _recurrent_gla, "causal_conv1d": _convolution}
for _name in ("gla", "simple_gla", "retention", "delta_rule", "gated_delta_rule"):
    for _kernel in ("chunk", "fused_chunk", "fused_recurrent"):
        _OPERATIONS.setdefault(f"{_kernel}_{_name}", getattr(dropins, f"chunk_{_name}"))
