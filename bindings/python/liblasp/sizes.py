"""What a plan and its halos would say of themselves, before there is a group."""

from __future__ import annotations

from . import raw
from .arguments import describe, take_int32
from .enums import DTypeLike, Schedule
from .errors import InvalidArgument
from .halo import HaloInfo, halo_options
from .problem import Problem
from .results import PlanInfo

__all__ = ["halo_info", "problem_info"]


def problem_info(problem: Problem, *, rank: int = 0, nranks: int = 1) -> PlanInfo:
    """The :class:`liblasp.PlanInfo` of a plan of this `problem` on the CPU, on rank `rank` of `nranks`, without a
    group: for shape inference and schedulers. The other ranks are taken to have as many tokens. With the schedule
    "auto" bytes are the most that any schedule needs. Raises what :meth:`liblasp.Context.plan` would."""
    placement = _placement(problem, rank, nranks)
    found = raw.lasp_plan_info()
    raw.lasp_problem_get_info(problem.fill(), placement, found)
    values = {field: getattr(found, field) for field in PlanInfo._fields}
    return PlanInfo(**{**values, "schedule": Schedule(values["schedule"])})


def halo_info(problem: Problem, rows: int, channels: int, *, dtype: DTypeLike | None = None,
              d_dtype: DTypeLike | None = None, rank: int = 0, nranks: int = 1) -> HaloInfo:
    """The :class:`liblasp.HaloInfo` of a :class:`liblasp.Halo` of these `rows` and `channels`, and of `dtype` and
    `d_dtype`, on a plan of this `problem`, on rank `rank` of `nranks`, without a group. The other ranks are taken to have as many tokens. Raises
    what making the plan and the halo would."""
    placement = _placement(problem, rank, nranks)
    options = halo_options(problem, rows, channels, dtype, d_dtype)
    found = raw.lasp_halo_info()
    raw.lasp_problem_get_halo_info(problem.fill(), placement, options, found)
    return HaloInfo(*(getattr(found, name) for name in HaloInfo._fields))


def _placement(problem: Problem, rank: int, nranks: int) -> raw.lasp_placement:
    if not isinstance(problem, Problem):
        raise InvalidArgument(f"problem = {describe(problem)}: must be a liblasp.Problem")
    placement = raw.lasp_placement()
    placement.rank, placement.nranks = take_int32(rank, "rank"), take_int32(nranks, "nranks")
    return placement
