"""What the loaded liblasp contains and what it found on this machine."""

from __future__ import annotations

from typing import NamedTuple

from . import raw

__all__ = ["BuildInfo", "build_info", "version"]


class BuildInfo(NamedTuple):
    """What a build of liblasp contains, and what it found on this machine. The fields of lasp_build_info.

    version, compiler, flags  such as "0.2.0", "gcc 12.2.0", "Release"
    blas                      the CBLAS library in this process
    cuda, nccl                versions, or why there is none
    has_cuda, has_nccl        whether the CUDA backend and the NCCL transport are compiled in
    cpu_count                 CPUs that this process may use
    """

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
    """The library's version: "0.2.0"."""
    return ".".join(str(part) for part in raw.lasp_version()[:3])
