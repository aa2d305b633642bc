"""ShortConvolution: the depthwise causal convolution of Mamba-2, Gated DeltaNet, KDA and LFM2, over a sequence that is
split. A token needs the few before it, so a rank's first tokens need the last ones of the rank before."""
from __future__ import annotations

import functools
from typing import Literal, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling
from torch.nn import functional as F

import liblasp
from liblasp.arguments import describe, take_flag, take_integer, take_offsets

from . import calls, walking
from .grouped import GroupedModule
from .halo import rows_before
from .library_halo import rows_by_the_library
from .ownership import OwnershipLike, Run, parts_of_each, pieces_of, runs_of
from .packing import Packing, offsets_on
from .problem import invalid_argument, refuse_distributed
from .sequence_group import Group, names_a_group, owned, sequence_group

WIDEST = 8


class ShortConvolution(GroupedModule):
    """y[t] = activation(bias + sum over j of weight[:, 0, width - 1 - j] * x[t - j]), j from 0 to width - 1, channel by
    channel; what comes before a sequence's begin is zero. Sums are float32.

    channels: C of x. width: how many tokens a token sees, itself the last of them, from 1 to 8. activation: None or
    "silu". bias: whether there is one. group: the sequence group, as in linear_attention: the last width - 1 tokens of
    each rank travel by the library's halo, with a plan for each shape. device, dtype: of the parameters.

    The parameters are those of torch.nn.Conv1d(channels, channels, width, groups=channels): weight [C, 1, width] and
    bias [C].
    """

    def __init__(self, channels: int, width: int = 4, *, activation: Optional[Literal["silu"]] = None,
                 bias: bool = False, group: Group = None, device: Union[None, str, int, torch.device] = None,
                 dtype: Optional[torch.dtype] = None):
        super().__init__()
        channels, width = take_integer(channels, "channels", least=1), take_integer(width, "width", least=1)
        if width > WIDEST:
            raise invalid_argument(f"width = {width}: must be at most {WIDEST}")
        if activation is not None and not (isinstance(activation, str) and activation == "silu"):
            raise invalid_argument(f"activation = {describe(activation)}: must be None or 'silu'")
        if not names_a_group(group):
            raise invalid_argument(f"group = {describe(group)}: must be a process group, a SequenceGroup or None")
        self.width, self.activation, self.group = width, activation, group
        like = nn.Conv1d(channels, channels, width, groups=channels, bias=take_flag(bias, "bias"), device=device,
                         dtype=dtype)
        self.weight, self.bias = like.weight, like.bias

    def forward(self, x: torch.Tensor, *, cu_seqlens: Union[None, torch.Tensor, Sequence[int]] = None,
                total_tokens: Optional[int] = None) -> torch.Tensor:
        """y [B, T, C] of x [B, T, C], this rank's tokens. cu_seqlens and total_tokens as in linear_attention: y is zero
        in the padding behind the last offset. Collective where there is a group. Raises liblasp.InvalidArgument (a
        ValueError), and liblasp.PeerLost and its like as linear_attention does."""
        if not isinstance(x, torch.Tensor) or x.dim() != 3 or x.shape[-1] != self.weight.shape[0]:
            found = f": is a tensor {list(x.shape)}," if isinstance(x, torch.Tensor) else f" = {describe(x)}:"
            raise invalid_argument(f"x{found} must be a tensor [B, T, {self.weight.shape[0]}]")
        if total_tokens is not None:
            total_tokens = take_integer(total_tokens, "total_tokens", least=0)
        return convolve(x, Taps(self.weight, self.bias, self.activation), self.group, cu_seqlens, total_tokens)

    def extra_repr(self) -> str:
        """What repr shows of the module."""
        return (f"{self.weight.shape[0]}, width={self.width}, activation={self.activation!r}, "
                f"bias={self.bias is not None}")


def causal_conv1d(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None, *,
                  activation: Optional[Literal["silu"]] = None, group: Group = None,
                  cu_seqlens: Union[None, torch.Tensor, Sequence[int]] = None,
                  total_tokens: Optional[int] = None, ownership: Optional[OwnershipLike] = None) -> torch.Tensor:
    """ShortConvolution as a function: y [B, T, C] of x [B, T, C], this rank's tokens, weight [C, width], width at most
    8, and bias [C]. activation: None or "silu"; cu_seqlens and total_tokens as in linear_attention. Sums are
    float32. ownership: "contiguous", "zigzag", "zigzag_each" or a list of (tokens, rank), as SequenceGroup says; None: as
    the group does. With "zigzag_each" cu_seqlens are on the host, and each part of a sequence has width - 1 tokens at
    least. Collective where there is a `group`. Raises liblasp.InvalidArgument (a ValueError)."""
    if not isinstance(x, torch.Tensor) or x.dim() != 3:
        raise invalid_argument("x: must be a tensor [B, T, C]")
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or len(weight) != x.shape[2]:
        raise invalid_argument(f"weight: must be a tensor [C, width] with the {x.shape[2]} channels of x")
    if not 1 <= weight.shape[1] <= WIDEST:
        raise invalid_argument(f"weight: its width is {weight.shape[1]}, must be from 1 to {WIDEST}")
    if bias is not None and not (isinstance(bias, torch.Tensor) and bias.shape == weight.shape[:1]):
        raise invalid_argument(f"bias: must be a tensor [{x.shape[2]}]")
    if activation is not None and not (isinstance(activation, str) and activation == "silu"):
        raise invalid_argument(f"activation = {describe(activation)}: must be None or 'silu'")
    if total_tokens is not None:
        total_tokens = take_integer(total_tokens, "total_tokens", least=0)
    if ownership is not None:
        group = owned(group, ownership, x)
    return convolve(x, Taps(weight[:, None], bias, activation), group, cu_seqlens, total_tokens)


class Taps(NamedTuple):
    """What a convolution does at each token: the parameters of a ShortConvolution."""

    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    activation: Optional[str]

    @property
    def width(self) -> int:
        return self.weight.shape[-1]

    def of(self, before: torch.Tensor, x: torch.Tensor, seen: Optional[torch.Tensor] = None) -> torch.Tensor:
        """y of x and of the rows `before` it. A token does not see more than the `seen` [T] before it, and where
        that is below 0 it is padding."""
        return _Taps.apply(torch.cat([before, x], 1), self.weight, self.bias, seen, self.activation)


def convolve(x: torch.Tensor, taps: Taps, group: Group, cu_seqlens=None,
             total_tokens: Optional[int] = None) -> torch.Tensor:
    """y of x [B, T, C], as ShortConvolution.forward."""
    refuse_distributed(x=x, cu_seqlens=cu_seqlens)
    if is_compiling():
        return _outside_the_graph(x, taps, group, cu_seqlens, total_tokens)
    walk = walking.current()
    if walk is not None:
        return walk.convolve(functools.partial(_convolve, taps), x, group, cu_seqlens)
    ranks, count = sequence_group(group), taps.width - 1
    each = ranks.ownership == "zigzag_each"
    if each:
        try:
            cu_seqlens = _offsets_of_each(cu_seqlens, x.device)
        except liblasp.Error:
            ranks.give_up(x.device)
            raise
    wanted = count if cu_seqlens is None else max(count, 1)  # a halo knows too where this rank begins
    without_memory = calls.needed(x)
    if ranks.size == 1 or wanted == 0 or without_memory:
        seen = None if cu_seqlens is None or without_memory else _tokens_before(cu_seqlens, 0, x.shape[1], x)
        return taps.of(x.new_zeros(x.shape[0], count, x.shape[2]), x, seen)
    if x.stride(2) != 1 or x.is_neg():
        x = x.resolve_neg().contiguous()
    if each:
        return _convolve_each(x, taps, ranks, cu_seqlens, wanted, total_tokens)
    halo = ranks._halo(x, wanted, total_tokens)
    try:
        runs = runs_of(ranks.ownership, halo.total_tokens, ranks.rank, ranks.size)
        if ranks.ownership == "contiguous":  # in whatever shares
            runs = [Run(halo.begin, halo.begin + x.shape[1])]
        parts = pieces_of(x, runs)
        seen = [None if cu_seqlens is None else _tokens_before(cu_seqlens, run.begin, halo.total_tokens, part)
                for run, part in zip(runs, parts)]
    except BaseException:
        halo.give_up_forward()
        raise
    before = rows_by_the_library(x, halo)[:, wanted - count:].split(len(x))
    y = [taps.of(*each) for each in zip(before, parts, seen)]
    return y[0] if len(y) == 1 else torch.cat(y, 1) if y else x + 0 * before[0].sum()  # nothing, but in the graph


def _offsets_of_each(cu_seqlens, device: torch.device) -> Tuple[int, ...]:
    """As whole numbers."""
    if cu_seqlens is None:
        raise invalid_argument("cu_seqlens: is None; ownership = 'zigzag_each' is for packed sequences")
    offsets = Packing(cu_seqlens, device).offsets
    if offsets is not None and not offsets.is_cpu:
        raise liblasp.Unsupported("cu_seqlens: is on a GPU; with ownership = 'zigzag_each' a short convolution takes offsets "
                                  "on the host")
    return tuple(offsets.tolist()) if offsets is not None else take_offsets(cu_seqlens)


def _convolve_each(x, taps: Taps, ranks, offsets: Tuple[int, ...], wanted: int,
                   total_tokens: Optional[int]) -> torch.Tensor:
    """y of x [1, T, C] where each of the sequences is cut by itself. Parts go through the taps one behind the other, each
    with the rows before it in front."""
    most = 1 << max(len(offsets) - 2, 0).bit_length()
    before = rows_by_the_library(x, ranks._halo(x, wanted, total_tokens, most), offsets)
    rows, outputs, first = [], [], 0
    for sequence, run, begin, tokens in parts_of_each(offsets, ranks.rank, ranks.size):
        at = (run * most + sequence) * wanted
        rows += [torch.arange(at, at + wanted), before.shape[0] * wanted + torch.arange(begin, begin + tokens)]
        outputs.append(first + wanted - taps.width + 1 + torch.arange(tokens))
        first += wanted + tokens
    if not rows:
        return x.new_zeros(x.shape) + 0 * before.sum()  # in the graph
    behind = torch.cat([before.flatten(0, 1), x[0]]).index_select(0, torch.cat(rows).to(x.device))
    y = _Taps.apply(behind[None], taps.weight, taps.bias, None, taps.activation)
    y = y.index_select(1, torch.cat(outputs).to(x.device))
    return F.pad(y, (0, 0, 0, x.shape[1] - y.shape[1]))


_outside_the_graph = torch.compiler.disable(convolve)


def convolve_further(x: torch.Tensor, taps: Taps, group: Group,
                     entering: Optional[torch.Tensor]) -> Tuple[torch.Tensor, torch.Tensor]:
    """y, and the width - 1 rows before the tokens that follow, the same on every rank. `entering`: those before rank
    0's, None for the begin of a sequence."""
    return _convolve(taps, x, entering, sequence_group(group), None, 0)


def _convolve(taps, x, entering, group, offsets, begin) -> Tuple[torch.Tensor, torch.Tensor]:
    """The same. The sequences' `offsets` count as `begin` does, the tokens before this rank's."""
    group.require_contiguous("rows that a convolution carries on")
    before, last = rows_before(x, taps.width - 1, group, entering)
    return taps.of(before, x, None if offsets is None else _tokens_before(offsets, begin, None, x)), last


def _tokens_before(cu_seqlens, begin: int, total: Optional[int], x: torch.Tensor) -> torch.Tensor:
    """How many tokens of its own sequence come before each token of x; -1 in the padding. `total`: of all ranks; None:
    the offsets are known to be right."""
    offsets = offsets_on(x.device, cu_seqlens, total)
    at = torch.arange(begin, begin + x.shape[1], device=x.device)
    before = at - offsets[torch.searchsorted(offsets, at, right=True) - 1]
    return before.masked_fill(at >= offsets[-1], -1)


class _Taps(torch.autograd.Function):
    """The convolution of x [B, width - 1 + T, C], in float32. A token does not see more than the `seen` [T] before it;
    None: as many as there are. Below 0: padding, of which nothing is read, it may be NaN."""

    @staticmethod
    def forward(ctx, x, weight, bias, seen, activation):
        ctx.save_for_backward(x, weight, bias, seen)
        ctx.activation = activation
        y = _sums(x, weight, bias, seen)
        return (F.silu(y) if activation else y).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y):
        x, weight, bias, seen = ctx.saved_tensors
        d_y = _without_padding(d_y.float(), seen)
        if ctx.activation:
            d_y = torch.ops.aten.silu_backward(d_y, _sums(x, weight, bias, seen))
        d_x, d_weight = torch.zeros_like(x, dtype=torch.float32), torch.empty_like(weight, dtype=torch.float32)
        for tap, part in _parts(x, weight):
            d_tap = d_y if seen is None else d_y.masked_fill((seen < tap)[:, None], 0.0)
            _part(d_x, tap, weight).add_(d_tap * weight[:, 0, -1 - tap])
            terms = d_tap * part
            if seen is not None:  # what is not seen may be NaN
                terms.masked_fill_((seen < tap)[:, None], 0.0)
            d_weight[:, 0, -1 - tap] = terms.sum((0, 1))
        d_bias = None if bias is None else d_y.sum((0, 1)).to(bias.dtype)
        return d_x.to(x.dtype), d_weight.to(weight.dtype), d_bias, None, None


def _sums(x, weight, bias, seen) -> torch.Tensor:
    y = None
    for tap, part in _parts(x, weight):
        term = part.float() * weight[:, 0, -1 - tap]
        if seen is not None:
            term.masked_fill_((seen < tap)[:, None], 0.0)
        y = term if y is None else y.add_(term)
    return y if bias is None else _without_padding(y.add_(bias), seen)


def _without_padding(y, seen) -> torch.Tensor:
    return y if seen is None else y.masked_fill((seen < 0)[:, None], 0.0)


def _parts(x, weight):
    return ((tap, _part(x, tap, weight)) for tap in range(weight.shape[-1]))


def _part(x, tap, weight) -> torch.Tensor:
    """The tokens `tap` before each token."""
    first = weight.shape[-1] - 1 - tap
    return x[:, first:x.shape[1] - tap]
