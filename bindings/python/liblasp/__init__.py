"""Linear attention over a sequence that is split along its length across ranks.

A program's calls, in order::

    comm = liblasp.Comm.threads(4)[rank]            # or self_(), mpi(), nccl(), custom()
    with liblasp.Context(comm) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=decay))
        o = plan.forward(q, k, v, decay)
        gradients = plan.backward(d_o, q, k, v, decay)

Arrays are NumPy's, or on either device anything with DLPack or __cuda_array_interface__; none is copied. Failures
raise :class:`liblasp.Error` with the library's sentence. :mod:`liblasp.raw` is lasp.h as it stands; ``liblasp.torch``
holds the autograd function and module.
"""

try:
    from . import raw
except ImportError as _reason:
    from .extension import explain as _explain

    raise ImportError(_explain(_reason)) from _reason
from .build import BuildInfo, build_info, version
from .comm import Comm, Traffic, Transport
from .context import Context
from .enums import Cache, Decay, Device, DType, LogLevel, Mask, Ownership, Schedule, Write
from .errors import (Aborted, CommFailed, ContextFailed, Disagreement, Error, InvalidArgument, InvalidHandle,
                     PeerLost, Unsupported, WrongValues)
from .folders import get_include, get_library_dir
from .groups import Groups, groups_of_rank, groups_world_rank, predict_exchange
from .halo import Halo, HaloInfo
from .plan import Plan
from .problem import Problem
from .results import Gradients, Owners, PlanInfo
from .sizes import halo_info, problem_info
from .stages import Stages

__version__ = version()

__all__ = [
    "Aborted", "BuildInfo", "Cache", "Comm", "CommFailed", "Context", "ContextFailed", "DType", "Decay", "Device",
    "Disagreement", "Error", "Gradients", "Groups", "Halo", "HaloInfo", "InvalidArgument", "InvalidHandle",
    "LogLevel", "Mask", "Owners", "Ownership", "PeerLost", "Plan", "PlanInfo", "Problem", "Schedule", "Stages", "Traffic",
    "Transport", "Unsupported", "Write", "WrongValues", "build_info", "get_include", "get_library_dir",
    "groups_of_rank", "groups_world_rank", "halo_info", "predict_exchange", "problem_info", "raw", "version",
]
