"""Context: a comm, a device and settings."""

from __future__ import annotations

import weakref
from typing import Any, Callable

from . import raw
from .comm import Comm
from .enums import Device, LogLevel, take
from .errors import InvalidArgument, assign, error_of
from .handle import Handle
from .plan import Plan
from .problem import Problem

__all__ = ["Context"]

LogFunction = Callable[[LogLevel, str], None]


def _take_device(device: Any) -> tuple[Device, int]:
    """A device and its index out of "cpu", "cuda", "cuda:1", a Device, or torch's device."""
    kind, _, index = str(device).partition(":")
    try:
        return take(Device, device if isinstance(device, Device) else kind, "device"), int(index or 0)
    except ValueError:
        raise InvalidArgument(f'device = {device!r}: must be "cpu", "cuda" or "cuda:N"') from None


class Context(Handle):
    """Where and how a rank computes. Used by one thread at a time; :meth:`abort` alone may come from any.

    comm          this rank's end of the group; None: a group of one, which the context then owns
    device        "cpu", "cuda", "cuda:1"
    time_limit    seconds that a call waits for another rank; None: ten minutes; float("inf"): no limit
    cpu_threads   threads that compute, the caller's included; 0: this rank's share of the CPUs
    log           callable(level, message), called inside the caller's own calls; must not call the library
    log_level     "off", "warning", "info" or "debug"; "warning" when `log` is given
    latency_us, bandwidth_gbs  the link, for the automatic schedule; 0: what the transport says
    profiler_ranges  names passes and exchanges by NVTX ranges
    verify_messages  a checksum travels with every message, and one that arrives changed raises
                     :class:`lasp.CommFailed` instead of becoming a wrong number; the same on all ranks, CPU only

    Raises :class:`lasp.Unsupported` where the device is absent.
    """

    _kind = "context"
    _destroy = staticmethod(raw.lasp_context_destroy)

    def __init__(self, comm: Comm | None = None, *, device: Any = "cpu", time_limit: float | None = None,
                 cpu_threads: int = 0, log: LogFunction | None = None, log_level: Any = None,
                 latency_us: float = 0.0, bandwidth_gbs: float = 0.0, profiler_ranges: bool = False,
                 verify_messages: bool = False):
        self._plans: weakref.WeakSet[Plan] = weakref.WeakSet()
        self._handles: dict[int, Any] = {}  # the raw handles of all plans that have not been destroyed
        self._orphans: list[int] = []  # keys in it, of plans that were garbage-collected
        self._own_comm: Comm | None = None
        self.device, self.device_index = _take_device(device)
        self.comm = comm if comm is not None else Comm.self_()
        if comm is None:
            self._own_comm = self.comm
        options = raw.lasp_context_options()
        for field, value in (("device", self.device), ("device_index", self.device_index),
                             ("time_limit_ms", _milliseconds(time_limit)), ("cpu_threads", cpu_threads),
                             ("latency_us", latency_us), ("bandwidth_gbs", bandwidth_gbs),
                             ("profiler_ranges", int(profiler_ranges)),
                             ("verify_messages", int(verify_messages))):
            assign(options, field, value)
        if log is not None:
            options.log_level = take(LogLevel, "warning" if log_level is None else log_level, "log_level")
            self._log = lambda level, message: log(LogLevel(level), message)  # kept: the handle points to it
            raw.set_log(options, self._log)
        self._handle = raw.lasp_context_create(raw.LASP_ABI, self.comm.handle, options)

    def plan(self, problem: Problem | None = None, **fields: Any) -> Plan:
        """Makes a plan, out of a :class:`lasp.Problem` or its fields as keywords. Collective: every rank of the
        group comes, with the same values but for ``tokens``, ``token_begin`` and ``strides``.

        Raises InvalidArgument for a mistake, Unsupported, Disagreement on every rank where ranks differ, PeerLost.
        """
        if problem is None:
            problem = Problem(**fields)
        elif fields:
            raise InvalidArgument(f"plan: a problem or its fields, not both (given: {', '.join(fields)})")
        self._destroy_orphans()
        made = Plan(self, problem)
        self._plans.add(made)
        return made

    def _destroy_orphans(self) -> None:
        """A plan is garbage-collected on whatever thread it happens, where this context may be in a call: so it is
        destroyed here, on the thread that uses the context."""
        while self._orphans:
            handle = self._handles.pop(self._orphans.pop(), None)
            if handle is not None:
                raw.lasp_plan_destroy(handle)

    def abort(self) -> None:
        """Breaks the group: calls in flight here and on other ranks raise :class:`lasp.Aborted`. From any
        thread."""
        raw.lasp_context_abort(self.handle)

    def check(self) -> None:
        """Raises what a failure outside any call left behind (a failed kernel, a lost rank). Never blocks."""
        status = raw.lasp_context_get_async_error(self.handle)
        if status != raw.LASP_OK:
            raise error_of(status, raw.lasp_last_error() or raw.lasp_status_name(status))

    def close(self) -> None:
        """Closes the context's plans, then the context, and its comm where the context made it."""
        for plan in list(self._plans):
            plan.close()
        self._orphans.extend(self._handles)  # in a cycle of garbage the plans are no longer in the weak set
        self._destroy_orphans()
        super().close()
        if self._own_comm is not None:  # nobody else has it
            self._own_comm.close()

    def __repr__(self) -> str:
        return f"<lasp.Context on {self.device}{' closed' if self.closed else ''}>"


def _milliseconds(seconds: float | None) -> int:
    if seconds is None:
        return 0
    if seconds == float("inf"):
        return -1
    if not seconds > 0:
        raise InvalidArgument(f"time_limit = {seconds}: must be more than 0 seconds, None or inf")
    return max(1, round(seconds * 1000))
