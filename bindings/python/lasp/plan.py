"""Plan: one validated problem, and its calls."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from . import raw
from .arrays import (aligned_bytes, contiguous_strides, empty_like_those_of, enter_stream, framework_of,
                     torch_output_maker, without_stream)
from .enums import Device, DType, Schedule
from .errors import InvalidArgument, error_of
from .handle import Handle
from .problem import Problem

if TYPE_CHECKING:
    from .context import Context

__all__ = ["Plan", "PlanInfo", "SequenceInfo", "Gradients"]

_FORWARD, _BACKWARD, _STEP = 0, 1, 2
_REUSE_CACHE = 1
_BYTES = -1
_FORWARD_ARRAYS = ("q", "k", "v", "decay", "beta", "initial_state", "o", "final_state", "state_cache", "workspace")
_BACKWARD_ARRAYS = ("q", "k", "v", "decay", "beta", "initial_state", "d_o", "d_final_state", "state_cache", "dq",
                    "dk", "dv", "d_decay", "d_beta", "d_initial_state", "workspace")
_STEP_ARRAYS = ("q", "k", "v", "decay", "beta", "state", "o")
_STATES = ("initial_state", "final_state", "d_final_state", "d_initial_state", "state")
_keys = itertools.count()  # of plans in their contexts


class PlanInfo(NamedTuple):
    """What a plan needs and will do; sizes are this rank's. The fields of lasp_plan_info."""

    workspace_forward_bytes: int
    workspace_backward_bytes: int
    state_cache_bytes: int
    state_cache_incoming_bytes: int
    state_cache_chunks_bytes: int
    alignment: int
    forward_bytes_sent: int
    backward_bytes_sent: int
    forward_messages_sent: int
    backward_messages_sent: int
    token_begin: int
    total_tokens: int
    num_sequences: int
    local_chunks: int
    rank: int
    nranks: int
    heads: int
    chunk: int
    schedule: Schedule
    pieces: int
    predicted_us: tuple[float, ...]


class SequenceInfo(NamedTuple):
    """Which ranks hold a sequence: `first_rank` reads its initial state, `last_rank` writes its final state."""

    begin: int
    end: int
    first_rank: int
    last_rank: int


class Gradients(NamedTuple):
    """What backward gives; None for what the problem has not or was not asked for."""

    dq: Any
    dk: Any
    dv: Any
    d_decay: Any
    d_beta: Any
    d_initial_state: Any


class Plan(Handle):
    """One problem, validated and laid out. Made by :meth:`lasp.Context.plan`.

    Arrays go in without a copy: NumPy arrays and everything with the buffer protocol on the CPU; on either device
    anything with ``__dlpack__`` or ``__cuda_array_interface__`` (torch, CuPy, JAX). Their shapes, dtypes and
    strides must be those the plan was made for, or :class:`lasp.InvalidArgument` says how they differ. bfloat16 is
    ml_dtypes' in NumPy, or uint16. Outputs that are not given are made by the framework of the inputs; so are
    workspace and state cache, which the plan keeps. (JAX's arrays cannot be written: beside them are made NumPy's on
    the CPU, on a GPU torch's or CuPy's, whichever is imported.) On a GPU a call is ordered on `stream`, or else on
    the framework's current one; JAX has none, the default stream is taken.

    A rank without tokens may give None for all [B, T, ...] arrays.
    """

    _kind = "plan"
    _destroy = staticmethod(raw.lasp_plan_destroy)

    def __init__(self, context: Context, problem: Problem):
        self.context, self.problem = context, problem
        given, keep = problem.fill()
        self._handle = raw.lasp_plan_create(context.handle, given)
        self._key = next(_keys)
        context._handles[self._key] = self._handle
        del keep
        self.info = self._read_info()
        self._on_gpu = context.device == Device.CUDA
        self._states = (self.info.num_sequences, self.info.heads, problem.head_dim_k, problem.head_dim_v)
        self._blocks: dict[tuple[Any, ...], Any] = {}
        self._makers: dict[type, tuple[str, Any, bool]] = {}
        self._outputs: dict[type, Callable[[Any], Any]] = {}  # makes o, by the type of q
        self._shape_o = problem.shape_of("o") or ()
        self._usual_o = problem.strides_of("o") == contiguous_strides(self._shape_o)
        self._gradients = {name: (problem.shape_of(name), problem.strides_of(name) == contiguous_strides(
            problem.shape_of(name) or ())) for name in ("dq", "dk", "dv", "d_decay", "d_beta")}
        self._pass_forward = self._make_pass(_FORWARD, _FORWARD_ARRAYS)
        self._pass_backward = self._make_pass(_BACKWARD, _BACKWARD_ARRAYS)
        self._pass_step = self._make_pass(_STEP, _STEP_ARRAYS)
        self._run_forward = self._pass_forward.run
        self._cache: Any = None
        self._workspace: Any = None
        self._kept_for: Any = None  # the kind of array and stream that _cache and _workspace are for

    # ---- The three calls ----

    def forward(self, q: Any, k: Any, v: Any, decay: Any = None, *, beta: Any = None, initial_state: Any = None,
                out: Any = None, final_state: Any = None, cache: Any = None, workspace: Any = None,
                reuse_cache: bool = False, stream: Any = None) -> Any:
        """o [B, T, H, V]; with final_state=True or an array, (o, final_state [N, H, K, V]). Collective.

        out            where o is written; made when not given
        initial_state  [N, H, K, V] float32, read by each sequence's first rank; None: zero
        final_state    an array to write, or True; a rank writes the sequences it is last rank of, and with
                       broadcast_final_state all. True gives zeros elsewhere
        cache          a block of state_cache_bytes (:meth:`new_cache`) to keep for backward; None: the plan's own,
                       which the plan's next forward overwrites
        reuse_cache    the cache holds an earlier forward's of the same inputs: nothing is exchanged
        """
        kind: Any = type(q)
        if self._on_gpu:
            stream = enter_stream(stream, q, self.context.device_index)
            kind = kind, stream
        if kind != self._kept_for:
            self._keep_for(kind, q)
        if out is None:
            out = self._new_output(q)
        if final_state is True:
            final_state = self._new_states(q)
        self._run_forward(stream, _REUSE_CACHE if reuse_cache else 0, q, k, v, decay, beta, initial_state, out,
                          final_state,
                          self._cache if cache is None else cache,
                          self._workspace if workspace is None else workspace)
        return out if final_state is None else (out, final_state)

    def backward(self, d_o: Any, q: Any, k: Any, v: Any, decay: Any = None, *, beta: Any = None,
                 initial_state: Any = None, d_final_state: Any = None, cache: Any = None, workspace: Any = None,
                 d_decay: Any = True, d_initial_state: Any = None, out: dict[str, Any] | None = None,
                 stream: Any = None) -> Gradients:
        """All gradients, of the forward pass whose cache is given (None: the plan's own, of its latest forward).
        Collective.

        d_o [B, T, H, V]; d_final_state [N, H, K, V] or None for zero, read by each sequence's last rank. ``out``
        holds arrays to write by name (dq, dk, dv, d_beta); ``d_decay`` is True, False or an array,
        ``d_initial_state`` True, False, an array, or None: as there is an initial state. The decay's gradient per
        head ([H]) is this rank's share: sum it over ranks. Gradients are written, not added to.
        """
        if not self.problem.backward:
            raise InvalidArgument("backward: the plan was made with backward=False")
        kind: Any = type(q)
        if self._on_gpu:
            stream = enter_stream(stream, q, self.context.device_index)
            kind = kind, stream
        if kind != self._kept_for:
            self._keep_for(kind, q)
        dq = dk = dv = d_beta = None
        if out:
            dq, dk, dv, d_beta = out.get("dq"), out.get("dk"), out.get("dv"), out.get("d_beta")
        if dq is None:
            dq = self._new_gradient("dq", q)
        if dk is None:
            dk = self._new_gradient("dk", k)
        if dv is None:
            dv = self._new_gradient("dv", v)
        if d_decay is False:
            d_decay = None
        elif d_decay is True or d_decay is None:
            d_decay = self._new_gradient("d_decay", decay)
        if d_beta is None:
            d_beta = self._new_gradient("d_beta", beta)
        if d_initial_state is None:
            d_initial_state = initial_state is not None
        if d_initial_state is True:
            d_initial_state = self._new_states(q)
        elif d_initial_state is False:
            d_initial_state = None
        if workspace is None:
            workspace = self._block("backward", kind, q, self.info.workspace_backward_bytes)
        self._pass_backward.run(stream, 0, q, k, v, decay, beta, initial_state, d_o, d_final_state,
                                self._cache if cache is None else cache, dq, dk, dv, d_decay, d_beta,
                                d_initial_state, workspace)
        return Gradients(dq, dk, dv, d_decay, d_beta, d_initial_state)

    def step(self, q: Any, k: Any, v: Any, decay: Any = None, *, state: Any, beta: Any = None, out: Any = None,
             stream: Any = None) -> Any:
        """o [B, T, H, V] of one token or a short run by the recurrence itself; ``state`` [N, H, K, V] float32 is
        read and updated in place. The plan belongs to a group of one and is causal."""
        if self._on_gpu:
            stream = enter_stream(stream, q, self.context.device_index)
        if out is None:
            out = self._new_output(q)
        self._pass_step.run(stream, 0, q, k, v, decay, beta, state, out)
        return out

    # ---- Calls whose arrays are given once ----

    @without_stream
    def bind_forward(self, q: Any, k: Any, v: Any, decay: Any = None, *, out: Any, beta: Any = None,
                     initial_state: Any = None, final_state: Any = None, cache: Any = None, workspace: Any = None,
                     reuse_cache: bool = False) -> Callable[..., None]:
        """call(stream=None), which runs forward on these arrays each time; they are checked and taken now. For a
        loop over the same buffers. On a GPU give the stream as an int (0 is the default stream)."""
        self._keep_for((type(q), 0) if self._on_gpu else type(q), q)
        return self._pass_forward.bind(_REUSE_CACHE if reuse_cache else 0, q, k, v, decay, beta, initial_state, out,
                                       final_state, self._cache if cache is None else cache,
                                       self._workspace if workspace is None else workspace).run

    @without_stream
    def bind_step(self, q: Any, k: Any, v: Any, decay: Any = None, *, state: Any, out: Any,
                  beta: Any = None) -> Callable[..., None]:
        """call(stream=None), which runs step on these arrays each time."""
        return self._pass_step.bind(0, q, k, v, decay, beta, state, out).run

    def run_pointers(self, call: str, stream: int, arrays: dict[str, tuple[int, int]],
                     reuse_cache: bool = False) -> None:
        """The bare call: "forward", "backward" or "step" on (address, bytes) by the name of the argument. Shapes,
        dtypes and devices are the caller's to check; the library checks sizes."""
        made, names = {"forward": (self._pass_forward, _FORWARD_ARRAYS),
                       "backward": (self._pass_backward, _BACKWARD_ARRAYS),
                       "step": (self._pass_step, _STEP_ARRAYS)}[call]
        made.run_pointers(stream, _REUSE_CACHE if reuse_cache else 0, *map(arrays.get, names))

    def prepare(self, stream: Any = None) -> None:
        """Does now what a first call would do lazily, so that later calls can be captured into a CUDA graph.
        Collective."""
        if self._on_gpu:
            stream = enter_stream(stream, None, self.context.device_index)
        raw.lasp_plan_prepare(self.handle, stream)

    # ---- What the plan is ----

    def sequence(self, index: int) -> SequenceInfo:
        """Where sequence `index` (0 .. N-1) lies."""
        found = raw.lasp_sequence_info()
        raw.lasp_plan_get_sequence(self.handle, index, found)
        return SequenceInfo(found.begin, found.end, found.first_rank, found.last_rank)

    def describe(self) -> str:
        """The schedule and kernels chosen, and why, as text."""
        needed = raw.lasp_plan_describe(self.handle, 0)[1]
        return raw.lasp_plan_describe(self.handle, needed)[0]

    def new_cache(self, like: Any = None) -> Any:
        """A block for one forward's state cache, by the framework of `like` (None: NumPy)."""
        if self.closed:
            raise error_of(raw.LASP_ERROR_INVALID_HANDLE, "plan: it is closed")
        return self._bytes(like, self.info.state_cache_bytes)

    def close(self) -> None:
        """Frees the plan and what it keeps. Raises InvalidArgument while another thread is in one of its calls."""
        super().close()
        self.context._handles.pop(getattr(self, "_key", -1), None)
        for name in ("_pass_forward", "_pass_backward", "_pass_step"):
            made = getattr(self, name, None)
            if made is not None:
                made.close()
        self._cache = self._workspace = self._kept_for = None
        if hasattr(self, "_blocks"):
            self._blocks.clear()

    def __del__(self) -> None:
        if self._handle is not None:  # Context._destroy_orphans says why not here
            self.context._orphans.append(self._key)

    def __repr__(self) -> str:
        return f"<lasp.Plan rank {self.info.rank} of {self.info.nranks}{' closed' if self.closed else ''}>"

    # ---- Inside ----

    def _read_info(self) -> PlanInfo:
        found = raw.lasp_plan_info()
        raw.lasp_plan_get_info(self._handle, found)
        values = {field: getattr(found, field) for field in PlanInfo._fields}
        return PlanInfo(**{**values, "schedule": Schedule(values["schedule"])})

    def _make_pass(self, kind: int, names: tuple[str, ...]) -> Any:
        specs = tuple(self._spec(name) for name in names)
        return raw.pass_create(kind, self._handle, self.context.device, self.context.device_index, specs)

    def _spec(self, name: str) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
        if name in ("workspace", "state_cache"):
            return _BYTES, (), ()
        if name in _STATES:
            return DType.FLOAT32, self._states, contiguous_strides(self._states)
        shape = self.problem.shape_of(name)
        return None if shape is None else (self.problem.dtype_of(name), shape, self.problem.strides_of(name))

    def _maker(self, like: Any) -> tuple[str, Any, bool]:
        """How arrays beside `like` are made: framework, empty(shape, dtype), and whether like.dtype is a dtype for
        it."""
        maker = self._makers.get(type(like))
        if maker is None:
            framework, empty = empty_like_those_of(like, self.context.device, self.context.device_index)
            own = framework == framework_of(like) and hasattr(like, "dtype")
            maker = self._makers[type(like)] = framework, empty, own
        return maker

    def _new_output(self, like: Any) -> Any:
        make = self._outputs.get(type(like)) or self._output_maker(like)
        return make(like)

    def _output_maker(self, like: Any) -> Callable[[Any], Any]:
        if not self._usual_o:
            raise InvalidArgument("out: the plan's o is not contiguous, so that it must be given")
        framework, empty, own = self._maker(like)
        shape, dtype = self._shape_o, self.problem.dtype
        if framework == "torch":
            make = torch_output_maker(empty((1,), dtype), shape)
        elif own:
            def make(like: Any) -> Any:
                return empty(shape, like.dtype)
        else:
            def make(like: Any) -> Any:
                return empty(shape, dtype)
        self._outputs[type(like)] = make
        return make

    def _new_gradient(self, name: str, like: Any) -> Any:
        """An array for a gradient, made like the input it belongs to; None where the problem has none."""
        shape, usual = self._gradients[name]
        if shape is None:
            return None
        if not usual:
            raise InvalidArgument(f"{name}: the plan's is not contiguous, so that it must be given")
        _, empty, own = self._maker(like)
        return empty(shape, like.dtype if own else self.problem.dtype_of(name))

    def _new_states(self, like: Any) -> Any:
        states = self._maker(like)[1](self._states, DType.FLOAT32)
        if hasattr(states, "zero_"):
            states.zero_()
        else:
            states[...] = 0
        return states

    def _bytes(self, like: Any, count: int) -> Any:
        return aligned_bytes(self._maker(like)[1], count, self.info.alignment) if count else None

    def _block(self, name: str, kind: Any, like: Any, count: int) -> Any:
        """A block of scratch memory that the plan keeps, for one kind of array and one stream."""
        block = self._blocks.get((name, kind))
        if block is None and count:
            block = self._blocks[name, kind] = self._bytes(like, count)
        return block

    def _keep_for(self, kind: Any, like: Any) -> None:
        if self.closed:
            raise error_of(raw.LASP_ERROR_INVALID_HANDLE, "plan: it is closed")
        self._workspace = self._block("forward", kind, like, self.info.workspace_forward_bytes)
        self._cache = self._block("cache", self._maker(like)[0], like, self.info.state_cache_bytes)
        self._kept_for = kind
