"""What backward writes: arrays that are given by name, and those of them that it adds to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from . import raw
from .arguments import describe
from .errors import InvalidArgument
from .results import GradientArrays

_IN_OUT = frozenset(GradientArrays.__annotations__)
_ADD = {"dq": raw.LASP_ADD_DQ, "dk": raw.LASP_ADD_DK, "dv": raw.LASP_ADD_DV, "d_decay": raw.LASP_ADD_D_DECAY,
        "d_beta": raw.LASP_ADD_D_BETA, "d_initial_state": raw.LASP_ADD_D_INITIAL_STATE}


def check_out(out: Any) -> None:
    """Refuses what backward would leave unwritten."""
    if not isinstance(out, dict):
        raise InvalidArgument(f"out = {describe(out)}: must be a dict of arrays by name: dq, dk, dv, d_beta")
    for name in out:
        if name in ("d_decay", "d_initial_state"):
            raise InvalidArgument(f"out: {name} is an argument of its own ({name}=)")
        if name not in _IN_OUT:
            raise InvalidArgument(f"out: no gradient is called {name!r}; known: dq, dk, dv, d_beta")


def take_add(names: Any, **arrays: Any) -> int:
    """LASP_ADD_* of the gradients to add to, whose arrays the caller gave: there is nothing in an array that is made."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Collection):
        raise InvalidArgument(f"add = {describe(names)}: must be names of gradients, such as [\"dk\", \"dv\"]")
    found = 0
    for name in names:
        if not isinstance(name, str) or name not in _ADD:
            raise InvalidArgument(f"add: no gradient is called {describe(name)}; known: {', '.join(_ADD)}")
        if arrays[name] is None or isinstance(arrays[name], bool):
            where = f"out={{{name!r}: ...}}" if name in _IN_OUT else f"{name}=..."
            raise InvalidArgument(f"add: {name} is to be added to, so give its array ({where})")
        found |= _ADD[name]
    return found
