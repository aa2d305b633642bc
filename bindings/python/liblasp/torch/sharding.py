"""The sequence dimension over ranks: consecutive runs, as even as they can be, in rank order, or as an ownership
says."""
from __future__ import annotations

from typing import Tuple

import torch

from liblasp.arguments import take_integer

from .halo import gather_equal, process_group_of, rows_before
from .ownership import OwnershipLike, cut_runs, pieces_of, runs_of, take_ownership
from .problem import invalid_argument, refuse_distributed
from .sequence_group import Group, SequenceGroup, sequence_group


def shard_bounds(total: int, rank: int, ranks: int) -> Tuple[int, int]:
    """[begin, end) of `rank`'s run of `total` tokens over `ranks`. Runs differ by one token at most, the longer ones
    first. Raises liblasp.InvalidArgument (a ValueError) for a rank that is none."""
    total, ranks = take_integer(total, "total", least=0), take_integer(ranks, "ranks", least=1)
    if not 0 <= take_integer(rank, "rank") < ranks:
        raise invalid_argument(f"rank = {rank}: must be from 0 to {ranks - 1}")
    each, longer = divmod(total, ranks)
    begin = rank * each + min(rank, longer)
    return begin, begin + each + (rank < longer)


def shard(tensor: torch.Tensor, rank: int, ranks: int, dim: int = 1,
          ownership: OwnershipLike = "contiguous") -> torch.Tensor:
    """The run of a `rank` of `ranks`, out of a whole tensor's dimension `dim` (1: [B, T, ...]): a view. With another
    `ownership` (see SequenceGroup) a rank's runs one after the other, a copy where they are several. Raises
    liblasp.InvalidArgument (a ValueError) as shard_bounds does, and where the tokens cannot be cut so."""
    refuse_distributed(tensor=tensor)
    total = tensor.shape[dim]
    shard_bounds(total, rank, ranks)
    return cut_runs(tensor, runs_of(take_ownership(ownership), total, rank, ranks), dim)


def shard_with_targets(tokens: torch.Tensor, rank: int, ranks: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Inputs and next-token targets of a `rank` of `ranks`, each [B, its run of T], from tokens [B, T + 1]: the last
    token of a rank's inputs has the first of the next rank's for its target."""
    return shard(tokens[:, :-1], rank, ranks), shard(tokens[:, 1:], rank, ranks)


def gather(tensor: torch.Tensor, group: Group, total: int, dim: int = 1) -> torch.Tensor:
    """The whole of a dimension `dim` of `total` tokens that `shard` cut with the group's ownership, on every rank of the
    `group`, which all call it, and run its backward pass: a rank's gradient is the sum of all ranks' for its run. Raises
    liblasp.InvalidArgument (a ValueError) where the tensor is not this rank's run."""
    refuse_distributed(tensor=tensor)
    ranks = sequence_group(group)
    total = take_integer(total, "total", least=0)
    owned = [runs_of(ranks.ownership, total, rank, ranks.size) for rank in range(ranks.size)]
    lengths = [sum(run.end - run.begin for run in each) for each in owned]
    own = lengths[ranks.rank]
    if tensor.shape[dim] != own:
        raise invalid_argument(f"tensor: has {tensor.shape[dim]} tokens in dimension {dim}, this rank's run of "
                               f"total = {total} has {own}")
    if ranks.size == 1:
        return tensor
    missing = max(lengths) - tensor.shape[dim]
    shape = list(tensor.shape)
    shape[dim] = missing
    padded = torch.cat([tensor, tensor.new_zeros(shape)], dim) if missing else tensor
    parts = gather_equal(padded, process_group_of(ranks))
    placed = [(run.begin, piece) for part, length, runs in zip(parts, lengths, owned)
              for run, piece in zip(runs, pieces_of(part.narrow(dim, 0, length), runs, dim))]
    return torch.cat([piece for _, piece in sorted(placed, key=lambda each: each[0])] or [tensor], dim)


def last_tokens(tensor: torch.Tensor, count: int, ranks: SequenceGroup, total: int, dim: int = 1) -> torch.Tensor:
    """The last `count` of the `total` tokens that `shard` cut, the same on every rank, which all call it; zeros in front
    where there are fewer."""
    runs = runs_of(ranks.ownership, total, ranks.rank, ranks.size)
    shape = list(tensor.shape)
    shape[dim] = count
    own, first = tensor.new_zeros(shape), total - count
    for run, piece in zip(runs, pieces_of(tensor, runs, dim)):
        begin = max(run.begin, first)
        if begin < run.end:
            own.narrow(dim, begin - first, run.end - begin).copy_(piece.narrow(dim, begin - run.begin, run.end - begin))
    return own if ranks.size == 1 else torch.stack(gather_equal(own, process_group_of(ranks))).sum(0)  # others have zeros


def shift(tensor: torch.Tensor, by: int = 1, group: Group = None) -> torch.Tensor:
    """Each token's row of a tensor [B, T, C] or [B, T] is that of the token `by` before it, or -by after it where `by`
    is negative; zero beyond the ends of the sequence. Over the ranks of the `group`, which all call it; differentiable.
    `shift(labels, -1)` are the targets of next-token prediction, but for the last one of all. Raises
    liblasp.InvalidArgument (a ValueError)."""
    by = take_integer(by, "by")
    sequence_group(group).require_contiguous("shift")
    if not isinstance(tensor, torch.Tensor) or tensor.dim() not in (2, 3):
        raise invalid_argument("tensor: must be a tensor [B, T, C] or [B, T]")
    rows = tensor if tensor.dim() == 3 else tensor[..., None]
    numbers = rows if rows.is_floating_point() else rows.double()  # whole numbers below 2^53 stay exact
    if by < 0:
        numbers = numbers.flip(1)
    before, _ = rows_before(numbers, abs(by), sequence_group(group), None, backwards=by < 0)
    moved = torch.cat([before, numbers], 1)[:, :numbers.shape[1]]
    moved = (moved.flip(1) if by < 0 else moved).to(tensor.dtype)
    return moved if tensor.dim() == 3 else moved[..., 0]
