"""Comm: one rank's end of one sequence-parallel group, and transports written in Python."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Mapping, NamedTuple, Protocol, Union

from . import raw
from .arguments import describe, take_address, take_int32, take_number
from .enums import Device, MemoryLike, take
from .errors import InvalidArgument, error_of
from .handle import Handle

__all__ = ["Comm", "Transport", "Traffic"]


class Transport(Protocol):
    """What :meth:`Comm.custom` wants of an object: point-to-point messages between the ranks of one group.

    The library calls these from inside its own calls, on the calling thread. Between one sender and one receiver,
    messages of one tag (0 to 32767) arrive in the order sent. An exception is a failed transport
    (``LASP_ERROR_TRANSPORT``), but :class:`liblasp.PeerLost` and :class:`liblasp.Aborted` keep their meaning; it
    becomes the ``__cause__`` of the error that the call raises.
    """

    def send(self, data: Any, peer: int, tag: int, stream: int) -> Any:
        """Starts sending; returns a request at once. `data` is a memoryview of bytes, valid until the request ends
        (memory="cuda": a pair (address, bytes), and the work is ordered on `stream`)."""

    def receive(self, data: Any, peer: int, tag: int, stream: int) -> Any:
        """Starts receiving exactly len(data) bytes into `data`; returns a request at once."""

    def test(self, request: Any) -> bool:
        """Whether the request is complete; does not block. It is still ended by `wait`."""

    def wait(self, request: Any, time_limit_ms: int) -> None:
        """Waits until the request is complete and ends it. After `time_limit_ms` (-1: no limit) raises
        ``liblasp.PeerLost(sentence, rank=...)``; the request is then cancelled by the library."""

    def cancel(self, request: Any) -> None:
        """Ends a request, complete or not. When it returns, the data is no longer touched."""

    def abort(self, lost_rank: int) -> None:
        """Breaks the group, here and as far as possible elsewhere; from any thread. -1: no rank was lost. A rank whose
        own call was refused or failed gives its own number."""

    def close(self) -> None:
        """Called once, when the comm is closed."""


class _HasPtr(Protocol):  # nccl4py, nccl-bindings
    @property
    def ptr(self) -> int: ...


class _HasComm(Protocol):  # CuPy
    @property
    def comm(self) -> int: ...


class _HasCommPtr(Protocol):  # torch's ProcessGroupNCCL
    def _comm_ptr(self) -> int: ...


NcclCommunicator = Union[int, _HasPtr, _HasComm, _HasCommPtr]


class Traffic(NamedTuple):
    """What a rank has put on its transport since the comm was made: bytes_sent, bytes_received (payload only),
    messages_sent, messages_received, and wait_seconds, the time that it was blocked there."""

    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    wait_seconds: float


class Comm(Handle):
    """One rank's end of a group. Make one with :meth:`self_`, :meth:`threads`, :meth:`nccl`, :meth:`mpi` or
    :meth:`custom`. It is used by one thread at a time and outlives its contexts.

    ``Comm(handle)`` takes over a comm that functions of :mod:`liblasp.raw` made."""

    _kind = "comm"
    _instead = "make the group anew where it is needed"
    _destroy = staticmethod(raw.lasp_comm_destroy)

    def __init__(self, handle: Any, keep: Any = None):
        try:
            raw.lasp_comm_get_rank(handle)  # refuses what is no live comm
        except TypeError:
            raise InvalidArgument(f"handle = {describe(handle)}: must be a comm of liblasp.raw; Comm.self_(), "
                                  ".threads(n), .nccl(c), .mpi(c) and .custom(t, ...) make comms") from None
        self._handle = handle
        self._keep = keep  # what the handle borrows

    @classmethod
    def self_(cls) -> Comm:
        """A group of one."""
        return cls(raw.lasp_comm_create_self())

    @classmethod
    def threads(cls, nranks: int) -> list[Comm]:
        """A group of `nranks` (1 to 1024) in this process: entry r is rank r's end and is used by rank r's
        thread. Raises :class:`liblasp.InvalidArgument` for another number."""
        return [cls(handle) for handle in raw.lasp_comm_create_threads(take_int32(nranks, "nranks"))]

    @classmethod
    def detached(cls, rank: int, nranks: int) -> Comm:
        """A place in a group, `rank` of `nranks`, whose messages are the program's business: there is no transport. It
        serves :class:`liblasp.Stages` and all that asks; what would send raises :class:`liblasp.Unsupported`. A plan on
        it takes the other ranks to have as many tokens as this one."""
        return cls(raw.lasp_comm_create_detached(take_int32(rank, "rank"), take_int32(nranks, "nranks")))

    @classmethod
    def nccl(cls, communicator: NcclCommunicator, functions: Mapping[str, int] | None = None) -> Comm:
        """Over a borrowed NCCL communicator, which must outlive the comm and is never destroyed here.

        `communicator` is the ``ncclComm_t`` as an int, or an object with ``ptr`` (nccl4py, nccl-bindings), ``comm``
        (CuPy) or ``_comm_ptr()`` (torch's ProcessGroupNCCL). `functions` gives the addresses of NCCL's functions by
        name (``send``, ``recv``, ``all_gather``, ...), of the very NCCL that made the communicator; needed where the
        process shows none or has loaded two. Raises :class:`liblasp.Unsupported` there, and where this build has no
        NCCL.
        """
        table = None
        if functions is not None:
            table = raw.lasp_nccl_functions()
            if not isinstance(functions, Mapping):
                raise InvalidArgument(f"functions = {describe(functions)}: must be addresses by the function's name")
            for name, address in functions.items():
                if not hasattr(table, name) or name in ("size", "this", "thisown"):
                    raise InvalidArgument(f"functions: NCCL's {name} is not among those that are used")
                setattr(table, name, take_address(address, f"functions[{name!r}]"))
        return cls(raw.lasp_comm_create_nccl(_pointer_of_nccl(communicator), table), keep=communicator)

    @classmethod
    def mpi(cls, communicator: Any = None) -> Comm:
        """Over an mpi4py `communicator` (None: ``MPI.COMM_WORLD``), which is duplicated: collective over it.

        Calls on this comm come from the thread that initialised MPI. Needs mpi4py and liblasp_mpi, both built for
        the same MPI. liblasp_mpi is the one whose path ``LASP_MPI_LIBRARY`` is; else it is looked for
        beside the liblasp in use, and where the system's loader looks. Raises :class:`liblasp.Unsupported` where there
        is none.
        """
        from mpi4py import MPI

        communicator = MPI.COMM_WORLD if communicator is None else communicator
        if not isinstance(communicator, MPI.Comm):
            raise InvalidArgument(f"communicator is a {type(communicator).__name__}: must be an mpi4py.MPI.Comm")
        library = _mpi_library()
        kind = ctypes.c_int if MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p
        value = kind.from_address(MPI._addressof(communicator))
        made = ctypes.c_void_p()
        library.lasp_mpi_comm_create.argtypes = [kind, ctypes.POINTER(ctypes.c_void_p)]
        library.lasp_mpi_comm_create.restype = ctypes.c_int32
        status = library.lasp_mpi_comm_create(value, ctypes.byref(made))
        if status != raw.LASP_OK:
            raise error_of(status, raw.lasp_last_error())
        return cls(raw.comm_from_address(made.value), keep=communicator)

    @classmethod
    def custom(cls, transport: Transport, *, rank: int, nranks: int, name: str = "python", local_ranks: int = 0,
               memory: MemoryLike = "cpu", latency_us: float = 0.0, bandwidth_gbs: float = 0.0) -> Comm:
        """Over your own transport, of this `rank` (from 0) of `nranks`. `name` is for messages; `local_ranks` share
        this machine's CPUs; `latency_us` (microseconds) and `bandwidth_gbs` (1e9 bytes per second) inform the
        automatic schedule; 0 is "not known". With memory="cuda" messages are device memory. Raises
        :class:`liblasp.InvalidArgument`."""
        for method in ("send", "receive", "test", "wait", "cancel", "abort", "close"):
            if not callable(getattr(transport, method, None)):
                raise InvalidArgument(f"transport.{method}: must be a method")
        if not isinstance(name, str) or "\0" in name:
            raise InvalidArgument(f"name = {describe(name)}: must be a str without a zero character")
        sizes = take_int32(rank, "rank"), take_int32(nranks, "nranks"), take_int32(local_ranks, "local_ranks")
        where = take(Device, memory, "memory")
        return cls(raw.comm_create_python(transport, name, *sizes, where, take_number(latency_us, "latency_us"),
                                          take_number(bandwidth_gbs, "bandwidth_gbs")))

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return raw.lasp_comm_get_rank(self.handle)[0]

    @property
    def nranks(self) -> int:
        """The size of the group."""
        return raw.lasp_comm_get_rank(self.handle)[1]

    def traffic(self) -> Traffic:
        """Payload sent and received so far."""
        counted = raw.lasp_traffic()
        raw.lasp_comm_get_traffic(self.handle, counted)
        return Traffic(*(getattr(counted, field) for field in Traffic._fields))

    def __repr__(self) -> str:
        return "<liblasp.Comm closed>" if self.closed else f"<liblasp.Comm rank {self.rank} of {self.nranks}>"


def _pointer_of_nccl(communicator: Any) -> int:
    if isinstance(communicator, int):
        return take_address(communicator, "communicator")
    for attribute in ("ptr", "comm", "_comm_ptr"):
        value = getattr(communicator, attribute, None)
        value = value() if callable(value) else value
        if isinstance(value, int):
            return take_address(value, f"communicator.{attribute}")
    raise InvalidArgument(f"communicator is a {type(communicator).__name__}: must be an ncclComm_t as an int, or "
                          "have ptr, comm or _comm_ptr")


def _mpi_library() -> Any:
    """liblasp_mpi, loaded; what was tried is in the error."""
    name = f"liblasp_mpi.so.{raw.LASP_ABI}"
    named = os.environ.get("LASP_MPI_LIBRARY")
    places = [named] if named else [os.path.join(os.path.dirname(raw.library_path()), name), name]
    reasons = []
    for place in places:
        try:
            return ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL)
        except OSError as reason:
            reasons.append(f"{place} ({reason})")
    found = f"LASP_MPI_LIBRARY = {named}" if named else "LASP_MPI_LIBRARY is not set"
    raise error_of(raw.LASP_ERROR_LIBRARY_MISSING, f"liblasp_mpi cannot be loaded: {found}; tried "
                   f"{', '.join(reasons)}. Set LASP_MPI_LIBRARY to the path of {name}")
