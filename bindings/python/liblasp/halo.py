"""Halo: the rows before a rank's first token, for short convolutions and token shifts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from . import raw
from .arguments import describe, take_int64
from .arrays import enter_stream
from .enums import Device, DType, DTypeLike, Ownership, take_dtype
from .errors import Error, InvalidArgument
from .handle import Handle
from .memory import Expected, Memory
from .outputs import Outputs
from .protocols import Array, Stream

if TYPE_CHECKING:
    from .plan import Plan
    from .problem import Problem

__all__ = ["Halo", "HaloInfo"]


class HaloInfo(NamedTuple):
    """What a halo needs and will do, on this rank. The fields of lasp_halo_info.

    workspace_bytes       of a call
    before_bytes, d_before_bytes  of [B, rows, channels]; where ranks own several runs of tokens, of
                      [num_runs, B, rows, channels]
    forward_bytes_sent, backward_bytes_sent, forward_messages_sent, backward_messages_sent  by this rank in a call
    """

    workspace_bytes: int
    before_bytes: int
    d_before_bytes: int
    forward_bytes_sent: int
    backward_bytes_sent: int
    forward_messages_sent: int
    backward_messages_sent: int


class Halo(Handle):
    """Brings, of a tensor x [B, T, C], the `rows` before this rank's first token within that token's sequence, and
    their gradients back. B, T and the split into ranks are the plan's. Making one is collective, as a plan is.

    Where ranks own several runs of tokens (``plan.info.num_runs`` is more than 1), rows come for each of them: `before`
    and d_before then are [num_runs, B, n, C]. With the ownership "zigzag_each" max_sequences stands for B.

    plan      a :class:`liblasp.Plan`, which the halo keeps alive; close the halo first
    rows      n, 1 to 64: the width of a convolution less 1
    channels  C
    dtype     of x and of the rows; None: the plan's
    d_dtype   of d_x and of the gradients of the rows; None: `dtype`

    ``info`` is a :class:`liblasp.HaloInfo`. Raises :class:`liblasp.InvalidArgument`, and
    :class:`liblasp.Disagreement` where ranks differ.
    """

    _kind = "halo"
    _instead = "make another of its plan"
    _destroy = staticmethod(raw.lasp_halo_destroy)

    plan: Plan
    info: HaloInfo

    def __init__(self, plan: Plan, rows: int, channels: int, *, dtype: DTypeLike | None = None,
                 d_dtype: DTypeLike | None = None):
        if getattr(plan, "_kind", None) != "plan":
            raise InvalidArgument(f"plan = {describe(plan)}: must be a liblasp.Plan")
        self.plan = plan
        problem, context = plan.problem, plan.context
        try:
            options = halo_options(problem, rows, channels, dtype, d_dtype)
        except InvalidArgument:
            _refuse(plan)
            raise
        self._dtype, self._d_dtype = DType(options.x.dtype), DType(options.d_x.dtype)
        self._handle = raw.lasp_halo_create(plan.handle, options)
        found = raw.lasp_halo_info()
        raw.lasp_halo_get_info(self._handle, found)
        self.info = HaloInfo(*(getattr(found, name) for name in HaloInfo._fields))
        self._x = problem.batch, problem.tokens, options.channels
        lines = problem.max_sequences if problem.ownership == Ownership.ZIGZAG_EACH else problem.batch
        runs = (plan.info.num_runs,) if plan.info.num_runs > 1 else ()
        self._before: tuple[int, ...] = (*runs, lines, options.rows, options.channels)
        self._memory = Memory(context.device, context.device_index)
        self._outputs = Outputs(problem, plan.info, context.device, context.device_index)

    def forward(self, x: Array | None, *, before: Array | None = None,
                cu_seqlens: Sequence[int] | Array | None = None, stream: Stream | None = None) -> Any:
        """before [B, n, C]: the n rows before this rank's first token, oldest first; zero before the beginning of its
        sequence. x [B, T, C] is contiguous; a rank without tokens may give None, with `before`. `before` is made when
        not given. `cu_seqlens` and `stream` as in :meth:`liblasp.Plan.forward`. Collective; what is refused on one rank
        breaks the group of the others."""
        args = raw.lasp_halo_args()
        try:
            if before is None:
                before = self._outputs.new_like(x, self._before, self._dtype)
            self._memory.put(args, "x", x, Expected(self._dtype, self._x))
            self._memory.put(args, "before", before, Expected(self._dtype, self._before), write=True)
            stream, kept = self._prepare(args, stream, cu_seqlens, before)
        except BaseException:
            self._tell_others(raw.lasp_halo_forward)
            raise
        raw.lasp_halo_forward(self.handle, args, stream)
        del kept
        return before

    def backward(self, d_before: Array, d_x: Array | None, *, cu_seqlens: Sequence[int] | Array | None = None,
                 stream: Stream | None = None) -> Any:
        """Adds to d_x [B, T, C] the gradients of rows that other ranks took from here, a sum in float32 that is rounded
        once, and gives d_x. d_before [B, n, C] is the gradient of what forward gave; both are contiguous. A rank
        without tokens may give None for `d_x`. `cu_seqlens` and `stream` as in forward. Collective."""
        args = raw.lasp_halo_args()
        try:
            self._memory.put(args, "d_before", d_before, Expected(self._d_dtype, self._before))
            self._memory.put(args, "d_x", d_x, Expected(self._d_dtype, self._x), write=True)
            stream, kept = self._prepare(args, stream, cu_seqlens, d_before)
        except BaseException:
            self._tell_others(raw.lasp_halo_backward)
            raise
        raw.lasp_halo_backward(self.handle, args, stream)
        del kept
        return d_x

    def close(self) -> None:
        """Frees the halo and what it keeps."""
        super().close()
        if hasattr(self, "_outputs"):
            self._outputs.clear()

    def _prepare(self, args: Any, stream: Any, cu_seqlens: Any, like: Any) -> Any:
        if self.plan.context.device == Device.CUDA:
            stream = enter_stream(stream, like, self.plan.context.device_index)
        elif stream is not None:
            raise InvalidArgument(f"stream = {describe(stream)}: must be None on the CPU")
        workspace = self._outputs.block("halo", (type(like), stream), like, self.info.workspace_bytes)
        self._memory.put_bytes(args, "workspace", workspace, write=True)
        return stream, self._memory.pack(args, cu_seqlens, self.plan.problem.max_sequences)

    def _tell_others(self, function: Any) -> None:
        """Others wait in this call: one without arguments is refused there, and they are told."""
        if self._handle is not None:
            try:
                function(self._handle, None, None)
            except Error:
                pass


def halo_options(problem: Problem, rows: int, channels: int, dtype: DTypeLike | None,
                 d_dtype: DTypeLike | None) -> Any:
    """The lasp_halo_options of these arguments."""
    options = raw.lasp_halo_options()
    options.rows, options.channels = take_int64(rows, "rows"), take_int64(channels, "channels")
    options.x.dtype = problem.dtype if dtype is None else take_dtype(dtype, "dtype")
    options.d_x.dtype = options.x.dtype if d_dtype is None else take_dtype(d_dtype, "d_dtype")
    return options


def _refuse(plan: Any) -> None:
    """Takes part in making a halo without options, which the library refuses here and tells the other ranks."""
    try:
        raw.lasp_halo_create(plan.handle, None)
    except Error:
        pass
