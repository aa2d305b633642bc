"""A plan's three passes as C runs them: their arrays in order, and what is said to them besides."""

from __future__ import annotations

from typing import Any, Sequence

from . import raw
from .arguments import offsets_in_memory
from .enums import Schedule
from .problem import Problem
from .protocols import Array
from .results import PlanInfo

REUSE_CACHE = 1
ADD_SHIFT = 8  # of LASP_ADD_*, and of a step's tokens, in what is said to a pass (native.h)
# In the order of native.h's NATIVE_FORWARD, NATIVE_BACKWARD and NATIVE_STEP, and of arguments.c's slots.
ARRAYS = {
    "forward": ("q", "k", "v", "decay", "beta", "initial_state", "o", "final_state", "state_cache", "workspace"),
    "backward": ("q", "k", "v", "decay", "beta", "initial_state", "d_o", "d_final_state", "state_cache", "dq", "dk",
                 "dv", "d_decay", "d_beta", "d_initial_state", "workspace"),
    "step": ("q", "k", "v", "decay", "beta", "state", "o"),
}
_BYTES = -1


def make_pass(call: str, handle: Any, problem: Problem, where: tuple[int, int], forward: Any = None) -> Any:
    """The pass of one call; `where` is the device and its index, `forward` what a backward pass shares caches with."""
    specs = tuple(_spec(problem, name) for name in ARRAYS[call])
    return raw.pass_create(list(ARRAYS).index(call), handle, *where, specs, forward)


def _spec(problem: Problem, name: str) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    if name in ("workspace", "state_cache"):
        return _BYTES, (), ()
    shape = problem.shape_of(name)
    return None if shape is None else (problem.dtype_of(name), shape, problem.strides_of(name))


def pack(made: Any, cu_seqlens: Sequence[int] | Array | None) -> None:
    """The offsets of a pass's next calls."""
    if cu_seqlens is None:
        made.pack()
    else:
        made.pack(*offsets_in_memory(cu_seqlens))


def read_info(handle: Any) -> PlanInfo:
    """What lasp_plan_get_info says."""
    found = raw.lasp_plan_info()
    raw.lasp_plan_get_info(handle, found)
    values = {field: getattr(found, field) for field in PlanInfo._fields}
    return PlanInfo(**{**values, "schedule": Schedule(values["schedule"])})
