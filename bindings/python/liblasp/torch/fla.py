"""Layers of flash-linear-attention over a split sequence.

    from liblasp.torch import fla as sp
    sp.parallelize(model, groups.sequence)       # each of fla's layers in it
    y, *_ = model(x)                             # x [B, T of this rank, D]
"""
from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn

import liblasp
from liblasp.arguments import check_offsets, describe, take_offsets

from . import dropins
from .convolution import causal_conv1d
from .halo import process_group_of, rows_before
from .hf.rebinding import names_used, rebound
from .problem import invalid_argument
from .sequence_group import Group, SequenceGroup, sequence_group

def parallelize(model: nn.Module, group: Group) -> Tuple[str, ...]:
    """Every layer of flash-linear-attention in a model, or the model itself, then works on this rank's tokens of a
    sequence that lies over the ranks of the `group`, in their order: GatedLinearAttention, SimpleGatedLinearAttention,
    MultiScaleRetention, GatedDeltaNet and DeltaNet, with their short convolutions and rotary positions. Gives the layers'
    names. Parameters and classes stay.

    Packed sequences by cu_seqlens of all ranks' tokens. A prompt is read with use_cache=True and an empty cache of fla's as
    past_key_values; every rank has then the whole cache, and goes on by itself and fla's own kernels, a token at a time. A
    layer of another kind is refused by name, masks where they are given. What mixes tokens outside of these layers is not
    looked at.
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
    own, where = type(layer).forward, f"{name} ({type(layer).__name__})"
    if "forward" in layer.__dict__:
        raise invalid_argument(f"{where}: is parallelized already")
    names: Dict[str, Any] = {each: functools.partial(_OPERATIONS[each], group=ranks)
                             for each in sorted(names_used(own)) if each in _OPERATIONS}
    if not any(each.startswith("chunk_") for each in names):
        raise liblasp.Unsupported(f"{where}: mixes tokens by an operation that a split sequence does not serve")
    again = rebound(own, names)

    def forward(hidden_states, attention_mask=None, past_key_values=None, use_cache=False, *others, **options):
        if attention_mask is not None:
            raise liblasp.Unsupported(f"{where}: attention_mask, which a split layer does not serve")
        if past_key_values is None and not use_cache:
            return again(layer, hidden_states, None, None, False, *others, **options)
        _refuse_cache(where, past_key_values, use_cache, options)
        if _seen(past_key_values, layer):
            if hidden_states.shape[1] != 1:
                raise liblasp.Unsupported(f"{where}: past_key_values has seen tokens, and {hidden_states.shape[1]} come: "
                                          "give one, the same on every rank")
            with _alone(layer):
                return own(layer, hidden_states, None, past_key_values, use_cache, *others, **options)
        _, total = _places(ranks, hidden_states)
        given = again(layer, hidden_states, None, _Prompt(past_key_values, total), True, *others, **options)
        return (*given[:-1], past_key_values)
    return forward


def _refuse_cache(where: str, cache: Any, use_cache: Any, options: Dict[str, Any]) -> None:
    if cache is None or not use_cache:
        raise liblasp.Unsupported(f"{where}: use_cache and past_key_values go together in a split layer")
    if options.get("cu_seqlens") is not None:
        raise liblasp.Unsupported(f"{where}: past_key_values with cu_seqlens, which a split layer does not serve")


def _seen(cache: Any, layer: nn.Module) -> bool:
    """Whether there are tokens in a layer's cache, as fla's layers ask."""
    at = getattr(layer, "layer_idx", None)
    return at is not None and len(cache) > at and cache[at] is not None


class _Prompt:
    """An empty cache, as the layer sees it, that counts all ranks' tokens."""

    def __init__(self, cache: Any, total: int):
        self._cache, self._total = cache, total

    def __len__(self) -> int:
        return 0

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    def update(self, *, offset: int, **states: Any) -> Any:
        return self._cache.update(offset=self._total, **states)


@contextlib.contextmanager
def _alone(layer: nn.Module) -> Iterator[None]:
    """Inside, the layer's convolutions and positions are fla's own, of whole sequences."""
    kept = [(each, each.__dict__.pop("forward")) for each in layer.modules()
            if each is not layer and "forward" in each.__dict__]
    try:
        yield
    finally:
        for each, forward in kept:
            each.forward = forward


def _convolution(x, weight=None, bias=None, residual=None, initial_state=None, output_final_state=False,
                 activation=None, backend=None, cu_seqlens=None, *, group: SequenceGroup, **other: Any):
    """fla.modules.convolution.causal_conv1d, of which layers take the sum over taps, and its last inputs [B, C, width]."""
    if residual is not None or initial_state is not None or weight is None:
        raise liblasp.Unsupported("causal_conv1d with a residual or a state, which a split layer does not serve")
    silu = "silu" if activation in ("silu", "swish") else activation
    y = causal_conv1d(x, weight, bias, activation=silu, group=group, cu_seqlens=cu_seqlens)
    if not output_final_state:
        return y, None
    return y, rows_before(x, weight.shape[1], group, None)[1].transpose(1, 2).contiguous()


def _short_convolution(ranks, module, x, residual=None, mask=None, cache=None, output_final_state=False, cu_seqlens=None,
                       **other):
    if mask is not None:
        raise liblasp.Unsupported("ShortConvolution with a mask, which a split layer does not serve")
    return _convolution(x, module.weight[:, 0], module.bias, residual, cache, output_final_state, module.activation,
                        cu_seqlens=cu_seqlens, group=ranks)


def _rotary(ranks, module, q, k, seqlen_offset=0, cu_seqlens=None, max_seqlen=None, **other):
    """Positions count from the first rank's first token, or from each packed sequence's."""
    begin, total = _places(ranks, q)
    if cu_seqlens is None:
        return type(module).forward(module, q, k, seqlen_offset=begin, max_seqlen=begin + q.shape[1])
    offsets = take_offsets(cu_seqlens)
    check_offsets(offsets, total, padded=True)
    cuts, places = _pieces(offsets, begin, begin + q.shape[1])
    longest = max(place + last - first for place, first, last in zip(places, cuts, cuts[1:]))
    return type(module).forward(module, q, k, seqlen_offset=torch.tensor(places, device=q.device),
                                cu_seqlens=torch.tensor(cuts, device=q.device), max_seqlen=longest)


def _pieces(offsets: Sequence[int], begin: int, end: int) -> Tuple[List[int], List[int]]:
    """Offsets of the parts of sequences among this rank's tokens, padding a sequence too, and where in its sequence each
    part begins."""
    first = max(each for each in offsets if each <= begin)
    inside = sorted({each for each in offsets if begin < each < end})
    return [0, *(each - begin for each in inside), end - begin], [begin - first, *(0 for _ in inside)]


def _places(ranks: SequenceGroup, x: torch.Tensor) -> Tuple[int, int]:
    """The tokens of all ranks before this one, and of all."""
    own = torch.tensor([x.shape[1]], device=x.device)
    found = [torch.empty_like(own) for _ in range(ranks.size)]
    dist.all_gather(found, own, group=process_group_of(ranks))
    lengths = torch.cat(found).tolist()
    return sum(lengths[:ranks.rank]), sum(lengths)


def _recurrent_gla(q, k, v, gk=None, **options):
    return dropins.chunk_gla(q, k, v, gk, **options)


# By the names that fla's layers look up. Without gradients they take other kernels for short sequences.
_OPERATIONS: Dict[str, Callable[..., Any]] = {"fused_recurrent_gla": _recurrent_gla, "causal_conv1d": _convolution}
for _name in ("gla", "simple_gla", "retention", "delta_rule", "gated_delta_rule"):
    for _kernel in ("chunk", "fused_chunk", "fused_recurrent", "parallel"):
        _OPERATIONS.setdefault(f"{_kernel}_{_name}", getattr(dropins, f"chunk_{_name}"))
