"""Which tokens of a sequence each rank of a group holds: a rank's are one run, or several that lie one after the other
in its tensors."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Union

import torch

import liblasp
from liblasp.arguments import describe, take_integer

from .problem import invalid_argument

# By name; or (tokens, rank) of each run of the whole buffer, in the order of the tokens.
OwnershipLike = Union[str, Sequence[Tuple[int, int]]]
NAMES = ("contiguous", "zigzag", "zigzag_each")


class Run(NamedTuple):
    """Tokens [begin, end) of all, which lie on one rank."""

    begin: int
    end: int


def take_ownership(ownership: OwnershipLike) -> Union[str, Tuple[Tuple[int, int], ...]]:
    """A name, or the list as tuples. Raises liblasp.InvalidArgument (a ValueError)."""
    if isinstance(ownership, str):
        if ownership not in NAMES:
            raise invalid_argument(f"ownership = {ownership!r}: must be one of {', '.join(map(repr, NAMES))} or a list of "
                                   "(tokens, rank)")
        return ownership
    try:
        runs = [tuple(run) for run in ownership]
    except TypeError:
        raise invalid_argument(f"ownership = {describe(ownership)}: must be a name or a list of (tokens, rank)") from None
    for at, run in enumerate(runs):
        if len(run) != 2:
            raise invalid_argument(f"ownership[{at}]: must be (tokens, rank)")
    if not runs:
        raise invalid_argument("ownership: is an empty list, must have a run at least")
    return tuple((take_integer(tokens, f"ownership[{at}]", least=0), take_integer(rank, f"ownership[{at}]", least=0))
                 for at, (tokens, rank) in enumerate(runs))


def refuse_other_cuts(ownership: Union[str, Tuple[Tuple[int, int], ...]], what: str) -> None:
    """Raises liblasp.Unsupported for what is neither contiguous nor one zigzag of all tokens."""
    if ownership not in ("contiguous", "zigzag"):
        raise liblasp.Unsupported(f"{what}: not with ownership = {ownership!r}: serves 'contiguous' and 'zigzag'")


def fields_of(ownership: Union[str, Tuple[Tuple[int, int], ...]]) -> Dict[str, Any]:
    """Those of liblasp.Problem."""
    return {"ownership": ownership} if isinstance(ownership, str) else {"ownership": "runs", "runs": ownership}


def runs_of(ownership: Union[str, Tuple[Tuple[int, int], ...]], total: int, rank: int, ranks: int) -> List[Run]:
    """The runs of a `rank` of `ranks` out of `total` tokens, as even as they can be where it says contiguous. Neighbours
    are one run, and one without tokens is none. Raises liblasp.InvalidArgument where it is of other tokens."""
    if ownership == "zigzag_each":
        raise invalid_argument("ownership = 'zigzag_each': where a rank's tokens lie follows from each call's cu_seqlens")
    if ownership == "contiguous":
        each, longer = divmod(total, ranks)
        owned = [(each + (at < longer), at) for at in range(ranks)]
    elif ownership == "zigzag":
        if total % (2 * ranks):
            raise invalid_argument(f"ownership = 'zigzag': the {total} tokens cannot be cut into {2 * ranks} equal parts")
        part = total // (2 * ranks)
        owned = [(part, at if at < ranks else 2 * ranks - 1 - at) for at in range(2 * ranks)]
    else:
        owned = list(ownership)
        if sum(tokens for tokens, _ in owned) != total:
            raise invalid_argument(f"ownership: its runs have {sum(tokens for tokens, _ in owned)} tokens, there are {total}")
        for at, (_, owner) in enumerate(owned):
            if owner >= ranks:
                raise invalid_argument(f"ownership[{at}]: rank {owner} is none of {ranks}")
    runs: List[Run] = []
    begin = 0
    for tokens, owner in owned:
        if owner == rank and tokens:
            goes_on = bool(runs) and runs[-1].end == begin
            first = runs.pop().begin if goes_on else begin
            runs.append(Run(first, begin + tokens))
        begin += tokens
    return runs


def parts_of_each(offsets: Sequence[int], rank: int, ranks: int) -> List[Tuple[int, int, int, int]]:
    """What a `rank` of `ranks` holds of packed sequences that are cut by themselves, "zigzag_each", in the order in which
    it lies in its tensors: (sequence, run, first local token, tokens) of each part, none of them empty. The last rank's
    two parts of a sequence follow each other, and are one."""
    parts = []
    for sequence, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        runs = 1 if rank == ranks - 1 else 2
        tokens = (end - begin) // (ranks * runs)
        parts += [(sequence, run, begin // ranks + run * tokens, tokens) for run in range(runs) if tokens]
    return parts


def cut_runs(tensor: torch.Tensor, runs: Sequence[Run], dim: int) -> torch.Tensor:
    """These runs out of a whole tensor's dimension: a view where they are one."""
    parts = [tensor.narrow(dim, run.begin, run.end - run.begin) for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim) if parts else tensor.narrow(dim, 0, 0)


def pieces_of(tensor: torch.Tensor, runs: Sequence[Run], dim: int = 1) -> List[torch.Tensor]:
    """A rank's tensor by its runs."""
    return list(tensor.split([run.end - run.begin for run in runs], dim)) if runs else []
