"""The header's enumerations. Wherever one is taken, its name in lower case will do: ``decay="head"``."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from . import raw
from .errors import InvalidArgument

__all__ = ["Device", "DType", "Decay", "Write", "Mask", "Schedule", "Cache", "LogLevel"]


class _Enum(enum.IntEnum):
    def __str__(self) -> str:
        return self.name.lower()


class Device(_Enum):
    """Where a context computes."""

    CPU = raw.LASP_DEVICE_CPU
    CUDA = raw.LASP_DEVICE_CUDA


class DType(_Enum):
    """Of q, k, v, o and their gradients. States are float32 always."""

    FLOAT32 = raw.LASP_FLOAT32
    BFLOAT16 = raw.LASP_BFLOAT16
    FLOAT16 = raw.LASP_FLOAT16


class Decay(_Enum):
    """Shape of the decay, given as natural logarithms: none, [H], [B, T, H] or [B, T, H, K]."""

    NONE = raw.LASP_DECAY_NONE
    HEAD = raw.LASP_DECAY_HEAD
    SCALAR = raw.LASP_DECAY_SCALAR
    CHANNEL = raw.LASP_DECAY_CHANNEL


class Write(_Enum):
    ADDITIVE = raw.LASP_WRITE_ADDITIVE
    DELTA = raw.LASP_WRITE_DELTA


class Mask(_Enum):
    CAUSAL = raw.LASP_MASK_CAUSAL
    BIDIRECTIONAL = raw.LASP_MASK_BIDIRECTIONAL


class Schedule(_Enum):
    """How states travel between ranks."""

    AUTO = raw.LASP_SCHEDULE_AUTO
    RING = raw.LASP_SCHEDULE_RING
    ALL_GATHER = raw.LASP_SCHEDULE_ALL_GATHER
    ALL_SCAN = raw.LASP_SCHEDULE_ALL_SCAN
    DOUBLING = raw.LASP_SCHEDULE_DOUBLING


class Cache(_Enum):
    """What forward keeps for backward."""

    INCOMING = raw.LASP_CACHE_INCOMING
    CHUNKS = raw.LASP_CACHE_CHUNKS


class LogLevel(_Enum):
    OFF = raw.LASP_LOG_OFF
    WARNING = raw.LASP_LOG_WARNING
    INFO = raw.LASP_LOG_INFO
    DEBUG = raw.LASP_LOG_DEBUG


EnumT = TypeVar("EnumT", bound=_Enum)


def take(kind: type[EnumT], value: Any, name: str) -> EnumT:
    """A member out of a member, its name or its number."""
    try:
        return kind[value.upper()] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError, AttributeError):
        known = ", ".join(f'"{member}"' for member in kind)
        raise InvalidArgument(f"{name} = {value!r}: must be one of {known}") from None


def take_dtype(value: Any, name: str) -> DType:
    """A dtype out of a DType, its name, or a framework's own (numpy.float32, torch.bfloat16, ...)."""
    if isinstance(value, (DType, int)):
        return take(DType, value, name)
    named = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", value)
    text = str(named).rpartition(".")[2]
    return DType.BFLOAT16 if text == "uint16" else take(DType, text, name)
