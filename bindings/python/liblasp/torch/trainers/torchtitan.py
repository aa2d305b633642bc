"""torchtitan's Qwen3.5 over a context-parallel mesh: its gated delta nets and its softmax layers.

    group = SequenceGroup(parallel_dims.get_mesh("cp"), ownership="zigzag")     # torchtitan's cut "headtail"
    over_sequences(model, group)
"""
from __future__ import annotations

import functools
from typing import Any, Dict, Optional, Sequence, Tuple, Union

import torch
from torch import nn
from torch.nn import functional as F

import liblasp
from liblasp.arguments import describe

from ..attention import linear_attention
from ..convolution import causal_conv1d
from ..delta_layers import unit_length
from ..halo import process_group_of
from ..problem import invalid_argument, refuse_distributed
from ..sequence_group import Group, SequenceGroup, sequence_group
from ..softmax import softmax_attention

_FILE = "torchtitan.models.qwen3_5.model"


def over_sequences(model: nn.Module, group: Group) -> Tuple[str, ...]:
    """Every GatedDeltaNet and Qwen35Attention of torchtitan's Qwen3.5 in a model, or the model itself, then works on this
    rank's tokens of sequences that lie over the ranks of the `group`, as its ownership says: "contiguous" where
    torchtitan cuts without a load balancer, "zigzag" for its "headtail". Gives the layers' names. Parameters and classes
    stay. Before FSDP.

    A layer then takes x [1, T of this rank, D], the same T on all ranks, and for documents VarlenMetadata of the whole
    sequence, the same on all ranks: with VarlenMetadata m the model's attention_masks are {"quadratic_attention": m,
    "deltanet": m}. Softmax layers gather keys and values (softmax_attention). Positions, labels and the loss are cut as
    torchtitan cuts them; text alone. Collective, forward and backward. Raises liblasp.InvalidArgument (a ValueError) and
    liblasp.Unsupported, for tensor-parallel parameters too; the model is then as it was.
    """
    if not isinstance(model, nn.Module):
        raise invalid_argument(f"model = {describe(model)}: must be a torch.nn.Module")
    ranks = sequence_group(group)
    process_group_of(ranks)
    layers = {name: module for name, module in model.named_modules()
              if _is(module, "GatedDeltaNet") or _is(module, "Qwen35Attention")}
    replaced = {name: getattr(layer, "inner_attention", layer) for name, layer in layers.items()}
    if not layers:
        raise invalid_argument(f"model ({type(model).__name__}): has no GatedDeltaNet and no Qwen35Attention of torchtitan's "
                               "Qwen3.5")
    for name, module in replaced.items():
        if "forward" in module.__dict__:
            raise invalid_argument(f"model{name and '.' + name}: its forward was replaced already")
        if tuple(getattr(module, "window_size", (-1, 0))) != (-1, 0):
            raise liblasp.Unsupported(f"model{name and '.' + name}: attends in a window of {module.window_size}, which a split "
                                      "sequence does not serve here")
    for name, module in replaced.items():
        softmax = module is not layers[name]
        module.forward = functools.partial(_attend, ranks) if softmax else functools.partial(_forward, module, ranks)
    if _is(model, "Qwen35Model"):
        model.register_forward_pre_hook(_refuse_pictures, with_kwargs=True)
    return tuple(layers)


def prepare_context_parallel_input(inputs: torch.Tensor, labels: torch.Tensor, extra_kwargs: Dict[str, Any],
                                   cp_mesh: Any, device: torch.device, *options: Any, **named: Any) -> Tuple[Any, ...]:
    """In place of torchtitan's function of this name, which its Trainer calls (torchtitan.trainer): cuts inputs, labels
    and positions as that does, and hands attention_masks on as they are, VarlenMetadata of the whole sequence."""
    from torchtitan.distributed.context_parallel import prepare_context_parallel_input as theirs

    masks = {name: each for name, each in extra_kwargs.items() if name == "attention_masks"}
    rest = {name: each for name, each in extra_kwargs.items() if name not in masks}
    inputs, labels, cut = theirs(inputs, labels, rest, cp_mesh, device, *options, **named)
    return inputs, labels, {**cut, **masks}


def _is(module: nn.Module, kind: str) -> bool:
    return any((each.__module__, each.__name__) == (_FILE, kind) for each in type(module).__mro__)


def _refuse_pictures(model: nn.Module, arguments: Any, options: Any) -> None:
    for name in ("pixel_values", "pixel_values_videos"):
        if options.get(name) is not None:
            raise liblasp.Unsupported(f"{name}: a picture's tokens may lie on other ranks: over a split sequence the model "
                                      "serves text alone")


def _offsets(metadata: Any) -> Union[None, torch.Tensor, Sequence[int]]:
    """Of documents in the whole sequence, on the host where they are there."""
    if metadata is None:
        return None
    if not hasattr(metadata, "cu_seq_q"):
        raise liblasp.Unsupported(f"attention_masks = {describe(metadata)}: must be None or VarlenMetadata of the whole "
                                  "sequence, whose offsets say where documents begin")
    return metadata.cu_seq_q if metadata.cu_seq_q_host is None else metadata.cu_seq_q_host


def _attend(ranks: SequenceGroup, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, attention_masks: Any = None,
            scale: Optional[float] = None, is_causal: bool = True, out_transform: Any = None,
            **_: Any) -> torch.Tensor:
    """In place of the forward pass of a module that attends: q [1, T of this rank, H, D]."""
    try:
        refuse_distributed(q=q, k=k, v=v)
        if out_transform is not None or not is_causal:
            raise liblasp.Unsupported("out_transform and is_causal=False: a split softmax layer does not serve them")
        offsets = _offsets(attention_masks)
        return softmax_attention(q, k, v, ranks, scale=scale, cu_seqlens=offsets, total_tokens=q.shape[1] * ranks.size)
    except liblasp.Error:
        ranks.give_up(q.device)
        raise


def _forward(layer: Any, ranks: SequenceGroup, x: torch.Tensor, attention_masks: Any = None) -> torch.Tensor:
    try:
        refuse_distributed(x=x, weight=layer.conv_q.weight)
        if x.shape[0] != 1:  # its rows would be one stream
            raise invalid_argument(f"x: {x.shape[0]} rows; over a split sequence a batch is one row")
        where = {"group": ranks, "cu_seqlens": _offsets(attention_masks), "total_tokens": x.shape[1] * ranks.size}
    except Exception:
        ranks.give_up(x.device)
        raise
    qkv = torch.cat([layer.in_proj_q(x), layer.in_proj_k(x), layer.in_proj_v(x)], -1)
    convolutions = (layer.conv_q, layer.conv_k, layer.conv_v)
    widths = [len(each.weight) for each in convolutions]
    weight = torch.cat([each.weight for each in convolutions])
    qkv = causal_conv1d(qkv, weight[:, 0], activation="silu", **where)
    q, k, v = (each.unflatten(-1, (-1, dim)) for each, dim in zip(
        qkv.split(widths, -1), (layer.key_head_dim, layer.key_head_dim, layer.value_head_dim)))
    g = -layer.A_log.float().exp() * F.softplus(layer.in_proj_a(x).float() + layer.dt_bias)
    o = linear_attention(unit_length(q), unit_length(k), v, g, beta=torch.sigmoid(layer.in_proj_b(x)), **where)
    return layer.out_proj(layer.norm(o, layer.in_proj_z(x).unflatten(-1, o.shape[-2:])).flatten(-2))
