"""Context: a comm, a device and settings."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from typing import TYPE_CHECKING, Callable, Iterator, Protocol, Union, overload

from . import raw
from .arguments import describe, take_flag, take_int32, take_int64, take_number, take_time_limit
from .comm import Comm
from .enums import Device, LogLevel, LogLevelLike, take
from .errors import Error, InvalidArgument, error_of
from .handle import Handle
from .plan import Plan
from .problem import Fields, Problem

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Context"]

LogFunction = Callable[[LogLevel, str], None]


class _TorchDevice(Protocol):
    @property
    def type(self) -> str: ...

    @property
    def index(self) -> Union[int, None]: ...


def _take_device(device: str | Device | _TorchDevice) -> tuple[Device, int]:
    """A device and its index out of "auto", "cpu", "cuda", "cuda:1", a Device, or torch's device."""
    if isinstance(device, Device):
        return device, -1 if device == Device.AUTO else 0
    if isinstance(device, str) and device == "auto":
        return Device.AUTO, -1
    kind, index = getattr(device, "type", None), getattr(device, "index", None) or 0
    if isinstance(device, str):
        found = re.fullmatch(r"(cpu|cuda)(?::(\d{1,9}))?", device)
        kind, index = (found[1], int(found[2] or 0)) if found else (None, 0)
    if kind not in ("cpu", "cuda"):
        raise InvalidArgument(f'device = {describe(device)}: must be "auto", "cpu", "cuda" or "cuda:N"')
    return take(Device, kind, "device"), index


class Context(Handle):
    """Where and how a rank computes. Used by one thread at a time; :meth:`abort` and :meth:`check` may come
    from any, at any time.

    comm          this rank's end of the group; None: a group of one, which the context then owns
    device        "cpu", "cuda", "cuda:1"; torch's device too; "auto": the GPU of a comm whose memory is a GPU's (NCCL, or
                  a transport with memory="cuda"), else the CPU
    time_limit    seconds that a call waits for another rank; None: ten minutes; float("inf"): no limit
    cpu_threads   threads that compute, the caller's included; 0: this rank's share of the CPUs
    log           callable(level, message), called inside the caller's own calls; must not call the library
    log_level     "off", "warning", "info" or "debug", of a `log`; None: "warning"
    latency_us, bandwidth_gbs  the link, for the automatic schedule, in microseconds and 1e9 bytes per second; 0: what
                     the transport says
    profiler_ranges  names passes and exchanges by NVTX ranges
    verify_messages  a checksum travels with every message, and one that arrives changed raises
                     :class:`liblasp.CommFailed` instead of becoming a wrong number; the same on all ranks, CPU only
    check_values     for debugging: after its work each pass looks for NaN, infinity and decays above 0 in what it read
                     and wrote, and raises :class:`liblasp.WrongValues`; on a GPU it waits for the pass, which cannot
                     be captured

    Raises :class:`liblasp.InvalidArgument`, and :class:`liblasp.Unsupported` where the device is absent. ``comm``,
    ``device`` and ``device_index`` say where it computes.
    """

    _kind = "context"
    _instead = "make another by liblasp.Context(comm)"
    _destroy = staticmethod(raw.lasp_context_destroy)

    comm: Comm
    device: Device
    device_index: int

    def __init__(self, comm: Comm | None = None, *, device: str | Device | _TorchDevice = "auto",
                 time_limit: float | None = None, cpu_threads: int = 0, log: LogFunction | None = None,
                 log_level: LogLevelLike | None = None, latency_us: float = 0.0, bandwidth_gbs: float = 0.0,
                 profiler_ranges: bool = False, verify_messages: bool = False, check_values: bool = False):
        self._plans: weakref.WeakSet[Plan] = weakref.WeakSet()
        self._handles: dict[int, object] = {}  # the raw handles of all plans that have not been destroyed
        self._orphans: list[int] = []  # keys in it, of plans that were garbage-collected
        self._own_comm: Comm | None = None
        if comm is not None and not isinstance(comm, Comm):
            raise InvalidArgument(f"comm = {describe(comm)}: must be a liblasp.Comm, or None for a group of one")
        asked, index = _take_device(device)
        options = raw.lasp_context_options()
        for field, value in (("device", asked), ("device_index", index),
                             ("time_limit_ms", take_time_limit(time_limit)),
                             ("cpu_threads", take_int32(cpu_threads, "cpu_threads")),
                             ("latency_us", take_number(latency_us, "latency_us")),
                             ("bandwidth_gbs", take_number(bandwidth_gbs, "bandwidth_gbs")),
                             ("profiler_ranges", int(take_flag(profiler_ranges, "profiler_ranges"))),
                             ("verify_messages", int(take_flag(verify_messages, "verify_messages"))),
                             ("check_values", int(take_flag(check_values, "check_values")))):
            setattr(options, field, value)
        self._set_log(options, log, log_level)
        raw.set_interrupted(options, threading.main_thread().ident)
        self.comm = comm if comm is not None else Comm.self_()
        if comm is None:
            self._own_comm = self.comm
        self._handle = raw.lasp_context_create(raw.LASP_ABI, self.comm.handle, options)
        found, self.device_index = raw.lasp_context_get_device(self._handle)
        self.device = Device(found)

    @overload
    def plan(self, problem: Problem) -> Plan: ...

    @overload
    def plan(self, problem: None = None, **fields: Unpack[Fields]) -> Plan: ...

    def plan(self, problem: Problem | None = None, **fields: object) -> Plan:
        """Makes a plan, out of a `problem` (:class:`liblasp.Problem`) or its fields as keywords. Collective: every rank
        of the group comes, with the same values but for ``tokens`` and ``strides``. A rank whose
        fields are refused comes too, so that the others learn of it.

        Raises InvalidArgument for a mistake, Unsupported, Disagreement on every rank where ranks differ, PeerLost.
        """
        self._destroy_orphans()
        try:
            if problem is None:
                problem = Problem(**fields)  # type: ignore[arg-type]
            elif fields:
                raise InvalidArgument(f"plan: a problem or its fields, not both (given: {', '.join(fields)})")
        except Exception:
            self._refuse_plan()
            raise
        made = Plan(self, problem)
        self._plans.add(made)
        return made

    def _refuse_plan(self) -> None:
        """Takes part in making a plan without a problem, which the library refuses here and tells the other ranks."""
        try:
            raw.lasp_plan_create(self.handle, None)
        except Error:
            pass

    def _destroy_orphans(self) -> None:
        """A plan is garbage-collected on whatever thread it happens, where this context may be in a call: so it is
        destroyed here, on the thread that uses the context."""
        while self._orphans:
            handle = self._handles.pop(self._orphans.pop(), None)
            if handle is not None:
                raw.lasp_plan_destroy(handle)

    def abort(self) -> None:
        """Breaks the group: calls in flight here and on other ranks raise :class:`liblasp.Aborted`. From any
        thread. Context and comm can then only be closed."""
        raw.lasp_context_abort(self.handle)

    def check(self) -> None:
        """Raises what a failure outside any call left behind (a failed kernel, a lost rank). Never blocks."""
        status, sentence = raw.lasp_context_get_async_error(self.handle, 1024)
        if status != raw.LASP_OK:
            raise error_of(status, sentence)

    @contextlib.contextmanager
    def trace(self, path: str | os.PathLike[str], *, max_records: int = 0) -> Iterator[None]:
        """Records what this rank does inside a `with`: calls, the phases of passes, messages with their peers, waits, and
        on a GPU when it did each part. Writes it to the file `path` at the end, also after an exception: JSON that
        Perfetto opens. On a GPU the file has what the device has done by then, so synchronise it inside.

        max_records   kept, of 64 bytes each, and older ones give way; 0: 65,536

            with context.trace(f"trace-{comm.rank}.json"):
                plan.forward(...)

        Raises :class:`liblasp.InvalidArgument` where the comm is traced already, as by the environment variable LASP_TRACE.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidArgument(f"path = {describe(path)}: must be a string or a path")
        name = os.fspath(path)
        if not isinstance(name, str) or "\0" in name:
            raise InvalidArgument(f"path = {describe(name)}: must be a string without a zero byte")
        options = raw.lasp_trace_options()
        options.max_records = take_int64(max_records, "max_records")
        raw.lasp_trace_start(self.handle, options)
        try:
            yield
        finally:
            if not self.closed:
                raw.lasp_trace_stop(self.handle)
                raw.lasp_trace_write(self.handle, name)

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
        where = f"cuda:{self.device_index}" if self.device == Device.CUDA else "cpu"
        if self.closed:
            return f"<liblasp.Context closed, on {where}>"
        plans = f"{len(self._handles)} plan{'' if len(self._handles) == 1 else 's'}"
        return f"<liblasp.Context on {where}, rank {self.comm.rank} of {self.comm.nranks}, {plans}>"

    def _set_log(self, options: object, log: LogFunction | None, level: LogLevelLike | None) -> None:
        if log is None:
            if level is not None:
                raise InvalidArgument(f"log_level = {describe(level)}: is of a log, and none is given (log=)")
            return
        if not callable(log):
            raise InvalidArgument(f"log = {describe(log)}: must be a callable(level, message)")
        chosen = take(LogLevel, "warning" if level is None else level, "log_level")
        setattr(options, "log_level", chosen)
        self._log = lambda level, message: log(LogLevel(level), message)  # kept: the handle points to it
        raw.set_log(options, self._log)
