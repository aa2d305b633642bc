"""What a plan would say of itself, before there is a group."""

from __future__ import annotations

from . import raw
from .arguments import describe, take_int32
from .enums import Schedule
from .errors import InvalidArgument
from .problem import Problem
from .results import PlanInfo

__all__ = ["problem_info"]


def problem_info(problem: Problem, *, rank: int = 0, nranks: int = 1) -> PlanInfo:
    """The :class:`liblasp.PlanInfo` of a plan of this `problem` on the CPU, on rank `rank` of `nranks`, without a
    group: for shape inference and schedulers. The other ranks are taken to have as many tokens. With the schedule
    "auto" bytes are the most that any schedule needs. Raises what :meth:`liblasp.Context.plan` would."""
    if not isinstance(problem, Problem):
        raise InvalidArgument(f"problem = {describe(problem)}: must be a liblasp.Problem")
    placement = raw.lasp_placement()
    placement.rank, placement.nranks = take_int32(rank, "rank"), take_int32(nranks, "nranks")
    found = raw.lasp_plan_info()
    raw.lasp_problem_get_info(problem.fill(), placement, found)
    values = {field: getattr(found, field) for field in PlanInfo._fields}
    return PlanInfo(**{**values, "schedule": Schedule(values["schedule"])})
