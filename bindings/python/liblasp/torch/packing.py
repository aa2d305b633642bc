"""Packed sequences of which a rank, or a segment in time, holds a part."""
from __future__ import annotations

from typing import NamedTuple, Sequence, Tuple

from .problem import invalid_argument


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
