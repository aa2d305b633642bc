"""The header's enumerations. Wherever one is taken, its name in lower case will do: ``decay="head"``."""

from __future__ import annotations

import enum
from typing import Any, Literal, Protocol, TypeVar, Union

from . import raw
from .arguments import describe
from .errors import InvalidArgument

__all__ = ["Device", "DType", "Decay", "Write", "Mask", "Schedule", "Cache", "LogLevel"]


class _Enum(enum.IntEnum):
    def __str__(self) -> str:
        return self.name.lower()


class Device(_Enum):
    """Where a context computes: CPU or CUDA; asked for by AUTO, a GPU where the comm's memory is one's, else the CPU."""

    AUTO = raw.LASP_DEVICE_AUTO
    CPU = raw.LASP_DEVICE_CPU
    CUDA = raw.LASP_DEVICE_CUDA


class DType(_Enum):
    """Of q, k, v, o and their gradients: FLOAT32, BFLOAT16 or FLOAT16. States are float32 always."""

    FLOAT32 = raw.LASP_FLOAT32
    BFLOAT16 = raw.LASP_BFLOAT16
    FLOAT16 = raw.LASP_FLOAT16


class Decay(_Enum):
    """Shape of the decay, given as natural logarithms: NONE (no array), HEAD [H], SCALAR [B, T, H] or
    CHANNEL [B, T, H, K]."""

    NONE = raw.LASP_DECAY_NONE
    HEAD = raw.LASP_DECAY_HEAD
    SCALAR = raw.LASP_DECAY_SCALAR
    CHANNEL = raw.LASP_DECAY_CHANNEL


class Write(_Enum):
    """How a token is written into the state: ADDITIVE (S + k v^T), or DELTA (the delta rule, which takes beta
    [B, T, H]; causal and without segment, on both devices)."""

    ADDITIVE = raw.LASP_WRITE_ADDITIVE
    DELTA = raw.LASP_WRITE_DELTA


class Mask(_Enum):
    """Which tokens a token sees: CAUSAL, itself and those before it; BIDIRECTIONAL, all of its sequence (without
    decay)."""

    CAUSAL = raw.LASP_MASK_CAUSAL
    BIDIRECTIONAL = raw.LASP_MASK_BIDIRECTIONAL


class Ownership(_Enum):
    """Who owns which tokens: CONTIGUOUS, a rank's follow those of the rank before it; ZIGZAG, of 2W equal parts rank r has
    parts r and 2W-1-r; ZIGZAG_EACH, each packed sequence is cut so by itself; RUNS, as a list says."""

    CONTIGUOUS = raw.LASP_OWN_CONTIGUOUS
    ZIGZAG = raw.LASP_OWN_ZIGZAG
    ZIGZAG_EACH = raw.LASP_OWN_ZIGZAG_EACH
    RUNS = raw.LASP_OWN_RUNS


class Schedule(_Enum):
    """How states travel between W ranks: RING, W - 1 hops; ALL_GATHER, every rank to all later ones; ALL_SCAN, the
    ring in pipelined pieces; DOUBLING, log2 W steps; HEAD_SCATTER, each rank composes the maps of some heads for
    all; RELAY, a rank's whole pass waits for the state that enters it, for layers that follow each other; AUTO, the
    fastest of these but RELAY by a model of latency and bandwidth."""

    AUTO = raw.LASP_SCHEDULE_AUTO
    RING = raw.LASP_SCHEDULE_RING
    ALL_GATHER = raw.LASP_SCHEDULE_ALL_GATHER
    ALL_SCAN = raw.LASP_SCHEDULE_ALL_SCAN
    DOUBLING = raw.LASP_SCHEDULE_DOUBLING
    HEAD_SCATTER = raw.LASP_SCHEDULE_HEAD_SCATTER
    RELAY = raw.LASP_SCHEDULE_RELAY


class Cache(_Enum):
    """What forward keeps for backward: INCOMING, the state that came into the rank (small; backward recomputes the
    rest); CHUNKS, the state at each chunk too (backward is faster)."""

    INCOMING = raw.LASP_CACHE_INCOMING
    CHUNKS = raw.LASP_CACHE_CHUNKS


class LogLevel(_Enum):
    """How much a log is told: OFF, WARNING, INFO or DEBUG, each with what comes before it."""

    OFF = raw.LASP_LOG_OFF
    WARNING = raw.LASP_LOG_WARNING
    INFO = raw.LASP_LOG_INFO
    DEBUG = raw.LASP_LOG_DEBUG


class _DTypeObject(Protocol):  # numpy.dtype, torch.dtype
    @property
    def itemsize(self) -> int: ...


# What each is taken from.
DecayLike = Union[Decay, Literal["none", "head", "scalar", "channel"]]
WriteLike = Union[Write, Literal["additive", "delta"]]
MaskLike = Union[Mask, Literal["causal", "bidirectional"]]
OwnershipLike = Union[Ownership, Literal["contiguous", "zigzag", "zigzag_each", "runs"]]
ScheduleLike = Union[Schedule, Literal["auto", "ring", "all_gather", "all_scan", "doubling", "head_scatter", "relay"]]
CacheLike = Union[Cache, Literal["incoming", "chunks"]]
LogLevelLike = Union[LogLevel, Literal["off", "warning", "info", "debug"]]
MemoryLike = Union[Device, Literal["cpu", "cuda"]]
DTypeLike = Union[DType, Literal["float32", "bfloat16", "float16", "uint16"], "type[Any]", _DTypeObject]

EnumT = TypeVar("EnumT", bound=_Enum)


def take(kind: type[EnumT], value: Any, name: str) -> EnumT:
    """A member out of a member or its name. A number is neither, nor is a member of another enumeration."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and not isinstance(value, enum.Enum) and value == value.lower():
        member = kind.__members__.get(value.upper())
        if member is not None:
            return member
    known = ", ".join(f'"{member}"' for member in kind)
    raise InvalidArgument(f"{name} = {describe(value)}: must be one of {known}")


def take_dtype(value: Any, name: str) -> DType:
    """A dtype out of a DType, its name, or a framework's own (numpy.float32, torch.bfloat16, ...)."""
    text = value
    if not isinstance(value, (DType, str)):
        named = getattr(value, "name", None) or getattr(value, "__name__", value)
        text = str(named).rpartition(".")[2] if getattr(value, "isnative", True) else None
    if text == "uint16":  # how bfloat16 travels where nothing knows it
        return DType.BFLOAT16
    try:
        return take(DType, text, name)
    except InvalidArgument:
        shown = describe(text if isinstance(value, type) else value)
        raise InvalidArgument(f'{name} = {shown}: must be one of "float32", "bfloat16", "float16"') from None
