"""Helpers for trainers: pure functions, no handle."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import raw
from .enums import Schedule, take

__all__ = ["Groups", "groups_of_rank", "groups_world_rank", "predict_exchange"]


class Groups(NamedTuple):
    """The groups of a world rank. sequence_group and data_group serve as colors for a communicator's split."""

    sequence_rank: int
    sequence_ranks: int
    sequence_group: int
    data_rank: int
    data_ranks: int
    data_group: int


def groups_of_rank(world_size: int, sequence_ranks: int, world_rank: int, *, stride: int = 1) -> Groups:
    """Hybrid data-sequence parallelism: the groups that a world rank belongs to. `stride` is the distance in world
    ranks between neighbours of a sequence group: 1 makes them adjacent."""
    found = raw.lasp_groups()
    raw.lasp_groups_of_rank(world_size, sequence_ranks, stride, world_rank, found)
    return Groups(*(getattr(found, field) for field in Groups._fields))


def groups_world_rank(world_size: int, sequence_ranks: int, sequence_group: int, sequence_rank: int, *,
                      stride: int = 1) -> int:
    """The world rank of a member of a sequence group: the inverse of :func:`groups_of_rank`."""
    return raw.lasp_groups_world_rank(world_size, sequence_ranks, stride, sequence_group, sequence_rank)


def predict_exchange(schedule: Any, nranks: int, payload_bytes: int, *, latency_us: float, bandwidth_gbs: float,
                     pieces: int = 0) -> float:
    """Predicted time of one exchange in microseconds, by the model of the automatic schedule."""
    chosen = take(Schedule, schedule, "schedule")
    return raw.lasp_predict_exchange(chosen, nranks, payload_bytes, pieces, latency_us, bandwidth_gbs)
