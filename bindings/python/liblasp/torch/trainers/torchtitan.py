"""Gated delta nets of torchtitan's Qwen3.5 over a context-parallel mesh.

    group = SequenceGroup(parallel_dims.get_mesh("cp"), ownership="zigzag")     # torchtitan's cut "headtail"
    over_sequences(model, group)
"""
from __future__ import annotations

import functools
from typing import Any, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from liblasp.arguments import describe

from ..attention import linear_attention
from ..convolution import causal_conv1d
from ..delta_layers import unit_length
from ..halo import process_group_of
from ..problem import invalid_argument, refuse_distributed
from ..sequence_group import Group, SequenceGroup, sequence_group

_LAYER = ("torchtitan.models.qwen3_5.model", "GatedDeltaNet")


def over_sequences(model: nn.Module, group: Group) -> Tuple[str, ...]:
    """Every GatedDeltaNet of torchtitan's Qwen3.5 in a model, or the model itself, then works on this rank's tokens of
    sequences that lie over the ranks of the `group`, as its ownership says: "contiguous" where torchtitan cuts without
    a load balancer, "zigzag" for its "headtail". Gives the layers' names. Parameters and classes stay. Before FSDP.

    A layer then takes x [1, T of this rank, D] and, for documents, VarlenMetadata of the whole sequence, the same on all
    ranks. Collective, forward and backward. Softmax layers, positions and the loss are not looked at. Raises
    liblasp.InvalidArgument (a ValueError) and liblasp.Unsupported, for tensor-parallel parameters too; the model is then
    as it was.
    """
    if not isinstance(model, nn.Module):
        raise invalid_argument(f"model = {describe(model)}: must be a torch.nn.Module")
    ranks = sequence_group(group)
    process_group_of(ranks)
    layers = [(name, module) for name, module in model.named_modules()
              if any((each.__module__, each.__name__) == _LAYER for each in type(module).__mro__)]
    if not layers:
        raise invalid_argument(f"model ({type(model).__name__}): has no GatedDeltaNet of torchtitan's Qwen3.5")
    for name, layer in layers:
        if "forward" in layer.__dict__:
            raise invalid_argument(f"model{name and '.' + name}: its forward was replaced already")
    for _, layer in layers:
        layer.forward = functools.partial(_forward, layer, ranks)
    return tuple(name for name, _ in layers)


def _forward(layer: Any, ranks: SequenceGroup, x: torch.Tensor, attention_masks: Any = None) -> torch.Tensor:
    try:
        refuse_distributed(x=x, weight=layer.conv_q.weight)
        if x.shape[0] != 1:  # its rows would be one stream
            raise invalid_argument(f"x: {x.shape[0]} rows; over a split sequence a batch is one row")
    except Exception:
        ranks.give_up(x.device)
        raise
    offsets = None
    if attention_masks is not None:
        on_host = attention_masks.cu_seq_q_host
        offsets = attention_masks.cu_seq_q if on_host is None else on_host
    qkv = torch.cat([layer.in_proj_q(x), layer.in_proj_k(x), layer.in_proj_v(x)], -1)
    convolutions = (layer.conv_q, layer.conv_k, layer.conv_v)
    widths = [len(each.weight) for each in convolutions]
    weight = torch.cat([each.weight for each in convolutions])
    qkv = causal_conv1d(qkv, weight[:, 0], activation="silu", group=ranks, cu_seqlens=offsets)
    q, k, v = (each.unflatten(-1, (-1, dim)) for each, dim in zip(
        qkv.split(widths, -1), (layer.key_head_dim, layer.key_head_dim, layer.value_head_dim)))
    g = -layer.A_log.float().exp() * F.softplus(layer.in_proj_a(x).float() + layer.dt_bias)
    o = linear_attention(unit_length(q), unit_length(k), v, g, beta=torch.sigmoid(layer.in_proj_b(x)), group=ranks,
                         cu_seqlens=offsets)
    return layer.out_proj(layer.norm(o, layer.in_proj_z(x).unflatten(-1, o.shape[-2:])).flatten(-2))
