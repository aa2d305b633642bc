"""The sequence dimension over ranks: consecutive runs, as even as they can be, in rank order."""
from __future__ import annotations

from typing import Tuple

import torch
import torch.distributed as dist


def shard_bounds(total: int, rank: int, ranks: int) -> Tuple[int, int]:
    """[begin, end) of `rank`'s run of `total` tokens. Runs differ by one token at most, the longer ones first."""
    if not 0 <= rank < ranks:
        raise ValueError(f"rank = {rank}: must be from 0 to {ranks - 1}")
    if total < 0:
        raise ValueError(f"total = {total}: must not be negative")
    each, longer = divmod(total, ranks)
    begin = rank * each + min(rank, longer)
    return begin, begin + each + (rank < longer)


def shard(tensor: torch.Tensor, rank: int, ranks: int, dim: int = 1) -> torch.Tensor:
    """This rank's run of a whole tensor's dimension `dim`: a view."""
    begin, end = shard_bounds(tensor.shape[dim], rank, ranks)
    return tensor.narrow(dim, begin, end - begin)


def shard_with_targets(tokens: torch.Tensor, rank: int, ranks: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Inputs and next-token targets of this rank, from [B, T + 1] tokens: the last token of a rank's inputs has
    the first of the next rank's for its target."""
    return shard(tokens[:, :-1], rank, ranks), shard(tokens[:, 1:], rank, ranks)


def gather(tensor: torch.Tensor, group: dist.ProcessGroup, total: int, dim: int = 1) -> torch.Tensor:
    """The whole of a dimension that `shard` cut, on every rank of the group; without a gradient."""
    ranks = dist.get_world_size(group)
    longest = -(-total // ranks)
    shape = list(tensor.shape)
    shape[dim] = longest
    padded = tensor.new_zeros(shape)
    padded.narrow(dim, 0, tensor.shape[dim]).copy_(tensor.detach())
    runs = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(runs, padded, group=group)
    cut = []
    for rank, run in enumerate(runs):
        begin, end = shard_bounds(total, rank, ranks)
        cut.append(run.narrow(dim, 0, end - begin))
    return torch.cat(cut, dim)
