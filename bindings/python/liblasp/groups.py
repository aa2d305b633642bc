"""Helpers for trainers: pure functions, no handle."""

from __future__ import annotations

from typing import NamedTuple

from . import raw
from .arguments import take_int32, take_int64, take_number
from .enums import Schedule, ScheduleLike, take
from .errors import InvalidArgument

__all__ = ["Groups", "groups_of_rank", "groups_world_rank", "predict_exchange"]


class Groups(NamedTuple):
    """The groups of a world rank.

    sequence_rank, sequence_ranks  rank in the sequence group, which is the order of the tokens, and its size
    data_rank, data_ranks          rank among the ranks with the same sequence_rank, and how many they are
    sequence_group, data_group     which of the groups: colors for a communicator's split
    """

    sequence_rank: int
    sequence_ranks: int
    sequence_group: int
    data_rank: int
    data_ranks: int
    data_group: int


def groups_of_rank(world_size: int, sequence_ranks: int, world_rank: int, *, stride: int = 1) -> Groups:
    """Hybrid data-sequence parallelism: the groups that `world_rank` of `world_size` ranks belongs to, `sequence_ranks`
    of them in a sequence group. `stride` is the distance in world ranks between neighbours of a sequence group: 1 makes
    them adjacent. Raises :class:`liblasp.InvalidArgument` where sequence_ranks or the stride does not divide the
    world."""
    found = raw.lasp_groups()
    raw.lasp_groups_of_rank(take_int32(world_size, "world_size"), take_int32(sequence_ranks, "sequence_ranks"),
                            take_int32(stride, "stride"), take_int32(world_rank, "world_rank"), found)
    return Groups(*(getattr(found, field) for field in Groups._fields))


def groups_world_rank(world_size: int, sequence_ranks: int, sequence_group: int, sequence_rank: int, *,
                      stride: int = 1) -> int:
    """The world rank of member `sequence_rank` of a `sequence_group`: the inverse of :func:`groups_of_rank`, with its
    `world_size`, `sequence_ranks` and `stride`. Raises :class:`liblasp.InvalidArgument` as that does."""
    return raw.lasp_groups_world_rank(take_int32(world_size, "world_size"),
                                      take_int32(sequence_ranks, "sequence_ranks"), take_int32(stride, "stride"),
                                      take_int32(sequence_group, "sequence_group"),
                                      take_int32(sequence_rank, "sequence_rank"))


def predict_exchange(schedule: ScheduleLike, nranks: int, payload_bytes: int, *, latency_us: float,
                     bandwidth_gbs: float, pieces: int = 0) -> float:
    """Predicted time of one exchange in microseconds by a `schedule` between `nranks` ranks, by the model of the
    automatic schedule: `payload_bytes` of each rank over links of `latency_us` (microseconds) and `bandwidth_gbs` (1e9
    bytes per second). `pieces` are those of "all_scan"; 0: the best number. Raises :class:`liblasp.InvalidArgument`."""
    payload = take_int64(payload_bytes, "payload_bytes")
    if payload < 0:
        raise InvalidArgument(f"payload_bytes = {payload}: must not be negative")
    return raw.lasp_predict_exchange(take(Schedule, schedule, "schedule"), take_int32(nranks, "nranks"),
                                     payload, take_int32(pieces, "pieces"),
                                     take_number(latency_us, "latency_us"),
                                     take_number(bandwidth_gbs, "bandwidth_gbs"))
