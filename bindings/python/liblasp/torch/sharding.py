"""The sequence dimension over ranks: consecutive runs, as even as they can be, in rank order."""
from __future__ import annotations

from typing import Tuple

import torch
import torch.distributed as dist

from liblasp.arguments import take_integer

from .problem import invalid_argument, refuse_distributed


def shard_bounds(total: int, rank: int, ranks: int) -> Tuple[int, int]:
    """[begin, end) of `rank`'s run of `total` tokens over `ranks`. Runs differ by one token at most, the longer ones
    first. Raises liblasp.InvalidArgument (a ValueError) for a rank that is none."""
    total, ranks = take_integer(total, "total", least=0), take_integer(ranks, "ranks", least=1)
    if not 0 <= take_integer(rank, "rank") < ranks:
        raise invalid_argument(f"rank = {rank}: must be from 0 to {ranks - 1}")
    each, longer = divmod(total, ranks)
    begin = rank * each + min(rank, longer)
    return begin, begin + each + (rank < longer)


def shard(tensor: torch.Tensor, rank: int, ranks: int, dim: int = 1) -> torch.Tensor:
    """The run of a `rank` of `ranks`, out of a whole tensor's dimension `dim` (1: [B, T, ...]): a view. Raises
    liblasp.InvalidArgument (a ValueError) as shard_bounds does."""
    refuse_distributed(tensor=tensor)
    begin, end = shard_bounds(tensor.shape[dim], rank, ranks)
    return tensor.narrow(dim, begin, end - begin)


def shard_with_targets(tokens: torch.Tensor, rank: int, ranks: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Inputs and next-token targets of a `rank` of `ranks`, each [B, its run of T], from tokens [B, T + 1]: the last
    token of a rank's inputs has the first of the next rank's for its target."""
    return shard(tokens[:, :-1], rank, ranks), shard(tokens[:, 1:], rank, ranks)


def gather(tensor: torch.Tensor, group: dist.ProcessGroup, total: int, dim: int = 1) -> torch.Tensor:
    """The whole of a dimension `dim` of `total` tokens that `shard` cut, on every rank of the `group`, which all call
    it; without a gradient. Raises liblasp.InvalidArgument (a ValueError) where the tensor is not this rank's run."""
    refuse_distributed(tensor=tensor)
    ranks = dist.get_world_size(group)
    begin, end = shard_bounds(total, dist.get_rank(group), ranks)
    if tensor.shape[dim] != end - begin:
        raise invalid_argument(f"tensor: has {tensor.shape[dim]} tokens in dimension {dim}, this rank's run of "
                               f"total = {total} has {end - begin}")
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
