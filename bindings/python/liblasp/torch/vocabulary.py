"""The loss over a large vocabulary without its logits in memory: tile by tile of tokens, gradients with the loss."""
from __future__ import annotations

import math
from typing import Literal, Tuple

import torch
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling
from torch.nn import functional as F

from liblasp.arguments import describe, take_flag, take_integer

from .problem import invalid_argument, refuse_distributed
from .sequence_group import Group, SequenceGroup, sequence_group
from .sharding import shift

_IGNORED = -100  # as in torch's cross_entropy
_HAS_OUT_DTYPE = hasattr(torch.ops.aten.mm, "dtype")


def linear_cross_entropy(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *,
                         reduction: Literal["mean", "sum"] = "mean", tile: int = 4096) -> torch.Tensor:
    """cross_entropy(hidden @ weight.T, targets), `tile` tokens at a time: a scalar of float32.

    hidden: [..., D]. weight: [words, D], that of the last layer. targets: [...], each from 0 to words - 1, or -100
    for a token that does not count; another one is refused on the CPU, and makes the loss NaN on a GPU, which is not
    waited for. reduction: "sum", or "mean" over the tokens that count.

    Memory: the logits of one tile, twice in float32 and once in the type of the product, and the gradients of hidden
    and weight, which are found with the loss, so that nothing is computed twice. The weight's gradient is summed in
    float32. Products are of hidden's and weight's type, or of autocast's. Raises liblasp.InvalidArgument (a
    ValueError).
    """
    if is_compiling():
        return _outside_the_graph(hidden, weight, targets, reduction=reduction, tile=tile)
    for name, tensor in (("hidden", hidden), ("weight", weight), ("targets", targets)):
        if not isinstance(tensor, torch.Tensor):
            raise invalid_argument(f"{name} = {describe(tensor)}: must be a tensor")
    refuse_distributed(hidden=hidden, weight=weight, targets=targets)
    if weight.dim() != 2 or hidden.shape[-1:] != weight.shape[1:]:
        raise invalid_argument(f"weight: shape {list(weight.shape)} does not go with hidden's {list(hidden.shape)}: must "
                               "be [words, D] and [..., D]")
    if targets.shape != hidden.shape[:-1] or targets.dtype != torch.int64:
        raise invalid_argument(f"targets: are {targets.dtype} of shape {list(targets.shape)}, must be torch.int64 of "
                               f"shape {list(hidden.shape[:-1])}")
    if reduction not in ("mean", "sum"):
        raise invalid_argument(f"reduction = {describe(reduction)}: must be 'mean' or 'sum'")
    tile = take_integer(tile, "tile", least=1)
    if targets.is_cpu:
        wrong = targets[(targets != _IGNORED) & ((targets < 0) | (targets >= weight.shape[0]))]
        if wrong.numel():
            raise invalid_argument(f"targets: {int(wrong[0])} is no word: must be from 0 to {weight.shape[0] - 1}, or -100")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden = hidden.to(torch.get_autocast_dtype(device))
    total = _LinearCrossEntropy.apply(hidden.flatten(0, -2), weight, targets.flatten(), tile)
    return total if reduction == "sum" else total / (targets != _IGNORED).sum()


_outside_the_graph = torch.compiler.disable(linear_cross_entropy)


def cross_entropy(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, group: Group = None, *,
                  shifted: bool = False, tile: int = 4096) -> torch.Tensor:
    """The mean loss of next-token prediction over a sequence that is split over the `group`: the same float32 scalar
    on every rank, over the tokens of all ranks that count. hidden [B, T, D] and labels [B, T] are this rank's tokens;
    the label of a rank's last token is the next rank's first one, and the last token of all has none.

    shifted: labels are targets already. weight and tile as in linear_cross_entropy, whose errors it raises. Collective.
    A rank's backward pass gives its tokens' part of the gradient: sum the parameters' over the ranks.
    """
    ranks = sequence_group(group)
    if not isinstance(labels, torch.Tensor) or labels.dim() != 2 or labels.dtype != torch.int64:
        raise invalid_argument("labels: must be a tensor [B, T] of torch.int64")
    if not take_flag(shifted, "shifted"):
        after = shift(labels + 1, -1, ranks) - 1  # the last token of all gets -1
        labels = torch.where(after < 0, _IGNORED, after)
    total = linear_cross_entropy(hidden, weight, labels, reduction="sum", tile=tile)
    count = ranks.sum((labels != _IGNORED).sum().float())
    return sum_of_parts(total, ranks) / count


def sum_of_parts(part: torch.Tensor, ranks: SequenceGroup) -> torch.Tensor:
    """The sum over the ranks, the same bits on each; a rank's backward pass is that of its own part."""
    return _SumOfParts.apply(part, ranks)


class _SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, ranks):
        return ranks.sum(part)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient, None


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, tile):
        wanted = ctx.needs_input_grad[:2]
        ctx.weight_dtype = weight.dtype
        with torch.autocast(hidden.device.type, enabled=False):
            total, d_hidden, d_weight = _tiles(hidden, weight.to(hidden.dtype), targets, tile, wanted)
        ctx.save_for_backward(d_hidden, d_weight)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, d_total):
        d_hidden, d_weight = ctx.saved_tensors
        if d_hidden is not None:
            d_hidden = d_hidden * d_total.to(d_hidden.dtype)
        if d_weight is not None:
            d_weight = (d_weight * d_total).to(ctx.weight_dtype)
        return d_hidden, d_weight, None, None


def _tiles(hidden, weight, targets, tile, wanted) -> Tuple:
    total = hidden.new_zeros((), dtype=torch.float32)
    d_hidden = torch.empty_like(hidden) if wanted[0] else None
    d_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
    for begin in range(0, hidden.shape[0], tile):
        part = slice(begin, begin + tile)
        total += _tile(hidden[part], weight, targets[part], d_hidden[part] if wanted[0] else None, d_weight)
    return total, d_hidden, d_weight


def _tile(rows, weight, words, d_rows, d_weight) -> torch.Tensor:
    """The loss of a tile. A function, so that no tile's logits outlive it."""
    logs = F.log_softmax(_product(rows, weight.T), 1)
    counted, own = (words != _IGNORED)[:, None], words.clamp(0, weight.shape[0] - 1)[:, None]
    at_target = logs.gather(1, own)
    at_target = torch.where(counted & (own != words[:, None]), math.nan, at_target)  # no such word
    loss = -torch.where(counted, at_target, 0.0).sum()
    if d_rows is None and d_weight is None:
        return loss
    # Softmax, less 1 at the target: there it is found in float32, where 1 - p may be small.
    at_target = torch.expm1(at_target)
    d_logits = torch.exp(logs, out=torch.empty_like(logs, dtype=rows.dtype))
    d_logits.scatter_(1, own, at_target.to(rows.dtype))
    if d_rows is not None:
        torch.mm(d_logits, weight, out=d_rows)
        d_rows *= counted
    if d_weight is not None:
        d_weight += d_logits.T @ (rows * counted)
    return loss


def _product(a, b) -> torch.Tensor:
    """In float32, straight from the matrix unit where torch can (2.8 and later)."""
    if a.dtype != torch.float32 and a.is_cuda and _HAS_OUT_DTYPE:
        return torch.mm(a, b, out_dtype=torch.float32)
    return (a @ b).float()
