"""The last rows of the ranks before: what a short convolution needs at a rank's first tokens."""
from __future__ import annotations

from typing import Optional, Tuple

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

import liblasp

from .sequence_group import SequenceGroup


def rows_before(x: torch.Tensor, count: int, group: SequenceGroup, entering: Optional[torch.Tensor],
                backwards: bool = False) -> Tuple[torch.Tensor, torch.Tensor]:
    """The `count` rows [B, count, C] before this rank's x [B, T, C], and the last ones of all ranks, the same on each;
    zeros before the first row of all. `entering`: the rows before rank 0's first, or None. A rank may hold fewer rows
    than `count`, or none. Differentiable, and collective where count is more than 0 and the group more than one rank.
    `backwards`: each rank's x, and the ranks, are in the reverse order of the tokens."""
    batch, tokens, channels = x.shape
    if entering is None:
        entering = x.new_zeros(batch, count, channels)
    if group.size == 1 or count == 0:
        return entering, torch.cat([entering, x], 1)[:, tokens:]
    # A column says which rows hold a token, so that no length needs to come to the host.
    own = torch.cat([x[:, max(0, tokens - count):], x.new_ones(batch, min(count, tokens), 1)], 2)
    padded = torch.cat([x.new_zeros(batch, max(0, count - tokens), channels + 1), own], 1)
    before = torch.cat([entering, entering.new_ones(batch, count, 1)], 2)
    gathered = gather_equal(padded, process_group_of(group))
    place = group.size - 1 - group.rank if backwards else group.rank
    rows = torch.cat([before, *(reversed(gathered) if backwards else gathered)], 1)
    return _last(rows[:, :count * (1 + place)], count), _last(rows, count)


def process_group_of(group: SequenceGroup) -> dist.ProcessGroup:
    if group.process_group is None:
        raise liblasp.Unsupported("group: has no process group, and these rows travel by torch.distributed")
    return group.process_group


def _last(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The last `count` of the rows that hold a token, by a product that picks them."""
    held = rows.detach()[0, :, -1]
    from_end = held.flip(0).cumsum(0).flip(0)  # 1 for the last, 2 for the one before it
    wanted = torch.arange(count, 0, -1, device=rows.device)
    picked = (held > 0) & (from_end == wanted[:, None])
    return torch.einsum("nr,brc->bnc", picked.to(rows.dtype), rows[..., :-1])


def gather_equal(x: torch.Tensor, process_group: dist.ProcessGroup) -> Tuple[torch.Tensor, ...]:
    """x of every rank, in their order; all of one shape. Differentiable."""
    return _Gather.apply(x, process_group)


class _Gather(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, process_group):
        ctx.process_group = process_group
        gathered = [torch.empty_like(x) for _ in range(dist.get_world_size(process_group))]
        dist.all_gather(gathered, x.contiguous(), group=process_group)
        return tuple(gathered)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        total = torch.stack(gradients)
        wide = total.float() if total.dtype in (torch.bfloat16, torch.float16) else total  # rounded once, at the end
        dist.all_reduce(wide, group=ctx.process_group)
        return wide[dist.get_rank(ctx.process_group)].to(total.dtype), None
