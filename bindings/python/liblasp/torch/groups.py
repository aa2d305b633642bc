"""Data parallelism times sequence parallelism: the groups of a world, as torch process groups."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch.distributed as dist

import liblasp
from liblasp.arguments import take_integer


class Groups(NamedTuple):
    """The groups that this rank belongs to. Gradients of parameters are averaged over the whole world, not over
    `data`: every rank of a sequence group sees other tokens."""

    sequence: dist.ProcessGroup  # hand it to linear_attention and LinearAttention
    data: dist.ProcessGroup      # the ranks that hold the same part of other sequences
    sequence_rank: int
    sequence_ranks: int
    data_rank: int
    data_ranks: int


def init_groups(world: Optional[dist.ProcessGroup] = None, sequence_ranks: int = 0, *, stride: int = 1,
                **new_group_options: Any) -> Groups:
    """Cuts a world into sequence groups of `sequence_ranks` ranks and data groups across them.

    Every rank of `world` (None: the default group) calls it, with the same arguments. `sequence_ranks` 0 takes the
    whole world. `stride` is the distance in world ranks between neighbours of a sequence group: 1 makes them
    adjacent, world size / sequence_ranks makes the data groups adjacent, the size of an inner tensor-parallel group
    leaves that innermost. Other options go to torch.distributed.new_group. Raises liblasp.InvalidArgument where the
    sizes do not divide.
    """
    size = dist.get_world_size(world)
    ranks = dist.get_process_group_ranks(world) if world is not None else list(range(size))
    sequence_ranks = take_integer(sequence_ranks, "sequence_ranks", least=0) or size
    mine = liblasp.groups_of_rank(size, sequence_ranks, dist.get_rank(world), stride=stride)
    placed = [liblasp.groups_of_rank(size, sequence_ranks, rank, stride=stride) for rank in range(size)]
    options = new_group_options
    sequence = _make_groups(ranks, placed, "sequence_group", "sequence_rank", mine.sequence_group, options)
    data = _make_groups(ranks, placed, "data_group", "data_rank", mine.data_group, options)
    return Groups(sequence, data, mine.sequence_rank, mine.sequence_ranks, mine.data_rank, mine.data_ranks)


def _make_groups(ranks, placed, color, key, mine, options) -> dist.ProcessGroup:
    """The group of color `mine`. torch makes a group by a call of every rank for every group, in one order."""
    own = None
    for which in range(1 + max(getattr(place, color) for place in placed)):
        members = sorted((getattr(place, key), ranks[rank]) for rank, place in enumerate(placed)
                         if getattr(place, color) == which)
        group = dist.new_group([rank for _, rank in members], **options)
        if which == mine:
            own = group
    return own
