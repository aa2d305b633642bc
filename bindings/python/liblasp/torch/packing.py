"""Packed sequences of which a rank, or a segment in time, holds a part."""
from __future__ import annotations

import weakref
from typing import Any, List, NamedTuple, Sequence, Tuple

import torch

from liblasp.arguments import take_offsets

from .problem import invalid_argument


_latest: List[Tuple[weakref.ref, int, Tuple[int, ...]]] = []  # what was read from a GPU: tensor, version, offsets
_MOST = 8


def offsets_of(cu_seqlens: Any) -> Tuple[int, ...]:
    """As whole numbers. A tensor on a GPU is read once, not by each layer: reading it waits for the GPU."""
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.is_cpu or cu_seqlens.is_inference():
        return take_offsets(cu_seqlens)
    return read_once(cu_seqlens)


def read_once(cu_seqlens: torch.Tensor) -> Tuple[int, ...]:
    """The offsets, which are remembered until torch writes to the tensor."""
    for tensor, version, offsets in _latest:
        if tensor() is cu_seqlens and version == cu_seqlens._version:
            return offsets
    offsets = take_offsets(cu_seqlens)
    _latest.insert(0, (weakref.ref(cu_seqlens), cu_seqlens._version, offsets))
    del _latest[_MOST:]
    return offsets


class Cut(NamedTuple):
    """The sequences in a run of tokens, counted from the run's begin."""

    offsets: Tuple[int, ...]  # cu_seqlens of the run
    first_begin: int          # where its first sequence begins: below 0 if it comes in from before
    goes_on: bool             # its last sequence goes on after it

    @property
    def comes_in(self) -> bool:
        return self.first_begin < 0


def cut(offsets: Sequence[int], begin: int, end: int) -> Cut:
    """Tokens [begin, end), not empty, of packed sequences. Sequences without a token leave no trace."""
    inside = sorted({offset for offset in offsets if begin < offset < end})
    first = max(offset for offset in offsets if offset <= begin)
    return Cut((0, *(offset - begin for offset in inside), end - begin), first - begin, end not in offsets)


def check_offsets(offsets: Sequence[int], tokens: int) -> None:
    """Raises liblasp.InvalidArgument where they are not of `tokens` tokens."""
    if offsets[0] != 0 or offsets[-1] != tokens:
        raise invalid_argument(f"cu_seqlens: goes from {offsets[0]} to {offsets[-1]}, must go from 0 to the {tokens} "
                               "tokens of the inputs")
    for at, (one, following) in enumerate(zip(offsets, offsets[1:])):
        if following < one:
            raise invalid_argument(f"cu_seqlens[{at + 1}] = {following}: is below the {one} before it")
