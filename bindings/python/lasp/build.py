"""What the loaded liblasp contains and what it found on this machine."""

from __future__ import annotations

from typing import NamedTuple

from . import raw

__all__ = ["BuildInfo", "build_info", "version"]


class BuildInfo(NamedTuple):
    """The fields of lasp_build_info."""

    version: str
    compiler: str
    flags: str
    blas: str
    cuda: str
    nccl: str
    has_cuda: bool
    has_nccl: bool
    cpu_count: int


def build_info() -> BuildInfo:
    """What the loaded liblasp is and has."""
    found = raw.lasp_build_info()
    raw.lasp_get_build_info(found)
    values = {field: getattr(found, field) for field in BuildInfo._fields}
    return BuildInfo(**{**values, "has_cuda": bool(found.has_cuda), "has_nccl": bool(found.has_nccl)})


def version() -> str:
    """The library's version: "0.1.0"."""
    return ".".join(str(part) for part in raw.lasp_version()[:3])
