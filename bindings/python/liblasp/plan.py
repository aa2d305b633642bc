"""Plan: one validated problem, and its calls."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal, Mapping, Sequence, TypedDict, overload

from . import raw
from .arguments import describe, take_flag, take_int64
from .arrays import enter_stream, is_array, pointer_of_stream, without_stream
from .enums import Device
from .errors import InvalidArgument, error_of
from .gradients import check_out, take_add
from .handle import Handle
from .outputs import Outputs
from .passes import ADD_SHIFT, ARRAYS, REUSE_CACHE, make_pass, pack, read_info
from .problem import STATES, Problem
from .protocols import Array, BoundCall, OutputT, Stream, WritableT
from .results import GradientArrays, Gradients, Owners, PlanInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .context import Context

__all__ = ["Plan"]

_keys = itertools.count()  # of plans in their contexts


class _Forward(TypedDict, total=False):  # what all forms of forward take by name
    beta: Array | None
    initial_state: Array | None
    cache: Array | None
    workspace: Array | None
    reuse_cache: bool
    cu_seqlens: Sequence[int] | Array | None
    stream: Stream | None


class _Step(TypedDict, total=False):
    beta: Array | None
    tokens: int
    stream: Stream | None


class Plan(Handle):
    """One problem, validated and laid out. Made by :meth:`liblasp.Context.plan`.

    Arrays go in without a copy: NumPy arrays and everything with the buffer protocol on the CPU; on either device
    anything with ``__dlpack__`` or ``__cuda_array_interface__`` (torch, CuPy, JAX). Their shapes, dtypes and
    strides must be those the plan was made for, or :class:`liblasp.InvalidArgument` says how they differ. bfloat16 is
    ml_dtypes' in NumPy, or uint16. Outputs that are not given are made by the framework of the inputs; so are
    workspace and state cache, which the plan keeps. (JAX's arrays cannot be written: beside them are made NumPy's on
    the CPU, on a GPU torch's or CuPy's, whichever is imported.) On a GPU a call is ordered on `stream`, or else on
    the framework's current one; JAX has none, the default stream is taken.

    A rank without tokens may give None for all [B, T, ...] arrays.

    ``context`` and ``problem`` are what it was made from; ``info`` is a :class:`liblasp.PlanInfo`.
    """

    _kind = "plan"
    _instead = "make another by context.plan(plan.problem)"
    _destroy = staticmethod(raw.lasp_plan_destroy)

    context: Context
    problem: Problem
    info: PlanInfo

    def __init__(self, context: Context, problem: Problem):
        if getattr(context, "_kind", None) != "context":
            raise InvalidArgument(f"context = {describe(context)}: must be a liblasp.Context")
        self.context, self.problem = context, problem
        if not isinstance(problem, Problem):
            context._refuse_plan()
            raise InvalidArgument(f"problem = {describe(problem)}: must be a liblasp.Problem")
        self._handle = raw.lasp_plan_create(context.handle, problem.fill())
        self._key = next(_keys)
        context._handles[self._key] = self._handle
        self.info = read_info(self._handle)
        self._on_gpu = context.device == Device.CUDA
        self._packed = problem.max_sequences > 0
        outputs = self._outputs = Outputs(problem, self.info, context.device, context.device_index)
        self._new_o, self._new_gradient, self._new_states = outputs.new_o, outputs.new_gradient, outputs.new_states
        where = context.device, context.device_index
        self._pass_forward = make_pass("forward", self._handle, problem, where)
        self._pass_backward = make_pass("backward", self._handle, problem, where, self._pass_forward)
        self._pass_step = make_pass("step", self._handle, problem, where)
        self._run_forward = self._pass_forward.run
        self._cache: Any = None
        self._workspace: Any = None
        self._kept_for: Any = None  # the kind of array and stream that _cache and _workspace are for

    # ---- The three calls ----

    @overload
    def forward(self, q: WritableT, k: Array | None, v: Array | None, decay: Array | None = None, *,
                out: None = None, final_state: Literal[False] | None = None,
                **rest: Unpack[_Forward]) -> WritableT: ...

    @overload
    def forward(self, q: WritableT, k: Array | None, v: Array | None, decay: Array | None = None, *,
                out: None = None, final_state: Literal[True] | Array,
                **rest: Unpack[_Forward]) -> tuple[WritableT, Any]: ...

    @overload
    def forward(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
                out: OutputT, final_state: Literal[False] | None = None, **rest: Unpack[_Forward]) -> OutputT: ...

    @overload
    def forward(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
                out: OutputT, final_state: Literal[True] | Array,
                **rest: Unpack[_Forward]) -> tuple[OutputT, Any]: ...

    @overload
    def forward(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
                out: None = None, final_state: Literal[False] | None = None, **rest: Unpack[_Forward]) -> Any: ...

    @overload
    def forward(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
                out: None = None, final_state: Literal[True] | Array,
                **rest: Unpack[_Forward]) -> tuple[Any, Any]: ...

    def forward(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
                beta: Array | None = None, initial_state: Array | None = None, out: Array | None = None,
                final_state: bool | Array | None = None, cache: Array | None = None,
                workspace: Array | None = None, reuse_cache: bool = False,
                cu_seqlens: Sequence[int] | Array | None = None, stream: Stream | None = None) -> Any:
        """o [B, T, H, V] from q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, Hv, V] and the decay of the plan's kind; with
        final_state=True or an array, (o, final_state [N, H, K, V]). Collective.

        beta           beta [B, T, H], for the delta write
        initial_state  initial_state [N, H, K, V] float32, read by each sequence's first rank; None: zero
        out            where o is written; made when not given
        final_state    an array to write, or True; a rank writes the sequences it is last rank of, and with
                       broadcast_final_state all. True gives zeros elsewhere
        cache          a block of state_cache_bytes (:meth:`new_cache`) to keep for backward; None: the plan's own,
                       which the plan's next forward overwrites
        workspace      a block of workspace_forward_bytes; None: the plan's own
        reuse_cache    the cache holds an earlier forward's of the same inputs: nothing is exchanged
        cu_seqlens     for a plan with max_sequences, else None: the packed sequences, up to max_sequences + 1 offsets
                       from 0 to at most the tokens of all ranks, the same on every rank; what follows the last is
                       padding. Whole numbers or an array of int32 or int64, in host memory, or on a GPU in device
                       memory (__cuda_array_interface__), where it is read when the pass runs and not checked
        stream         on a GPU, else None: the framework's current one when None

        Raises :class:`liblasp.InvalidArgument` for arrays that are not the plan's, with a sentence that names them;
        :class:`liblasp.PeerLost`, :class:`liblasp.Aborted` and other :class:`liblasp.CommFailed` where the group broke.
        """
        try:
            kind: Any = type(q)
            if self._on_gpu:
                stream = enter_stream(stream, q, self.context.device_index)
                kind = kind, stream
            if kind != self._kept_for:
                self._keep_for(kind, q)
            if out is None:
                out = self._new_o(q)
            if final_state is True:
                final_state = self._new_states(q)
            elif final_state is False:
                final_state = None
            if reuse_cache is not False:
                reuse_cache = take_flag(reuse_cache, "reuse_cache")
            if self._packed or cu_seqlens is not None:
                pack(self._pass_forward, cu_seqlens)
        except BaseException:  # also where no memory is left
            if reuse_cache is not True:  # which exchanges nothing
                self._pass_forward.tell_others()
            raise
        self._run_forward(stream, REUSE_CACHE if reuse_cache else 0, q, k, v, decay, beta, initial_state, out,
                          final_state,
                          self._cache if cache is None else cache,
                          self._workspace if workspace is None else workspace)
        return out if final_state is None else (out, final_state)

    def backward(self, d_o: Array | None, q: Array | None, k: Array | None, v: Array | None,
                 decay: Array | None = None, *, beta: Array | None = None, initial_state: Array | None = None,
                 d_final_state: Array | None = None, cache: Array | None = None, workspace: Array | None = None,
                 d_decay: bool | Array | None = None, d_initial_state: bool | Array | None = None,
                 out: GradientArrays | None = None, add: Collection[str] = (),
                 cu_seqlens: Sequence[int] | Array | None = None, stream: Stream | None = None) -> Gradients:
        """All gradients of the forward pass whose cache is given (None: the plan's own, of its latest forward, which
        must have kept it there). Collective.

        q, k, v, decay, beta, initial_state, cu_seqlens  as in that forward pass
        d_o            d_o [B, T, H, V]
        d_final_state  d_final_state [N, H, K, V] float32, read by each sequence's last rank; None: zero
        out            arrays to write by name: dq, dk, dv, d_beta; those not given are made
        add            names of gradients that are added to what their arrays hold, as the microbatches after the first
                       do: "dq", "dk", "dv", "d_decay", "d_beta", "d_initial_state". A sum in float32, rounded once;
                       after an error in the pass it is lost
        d_decay        True: made; False: not wanted; an array; None: made where there is a decay. Per head (d_decay
                       [H] float32) it is this rank's share: sum it over ranks
        d_initial_state  likewise, d_initial_state [N, H, K, V] float32, written by each sequence's first rank; None:
                       made where there is an initial state
        workspace      a block of workspace_backward_bytes, to add to dv of workspace_add_bytes; None: the plan's own
        stream         as in forward

        Other gradients are written. Raises as forward does, and :class:`liblasp.InvalidArgument` where the
        plan's own cache is not of its latest forward.
        """
        try:
            if not self.problem.backward:
                raise InvalidArgument("backward: the plan was made with backward=False")
            kind: Any = type(q)
            if self._on_gpu:
                stream = enter_stream(stream, q, self.context.device_index)
                kind = kind, stream
            if kind != self._kept_for:
                self._keep_for(kind, q)
            added = 0
            dq = dk = dv = d_beta = None
            if out is not None:
                if type(out) is not dict:
                    check_out(out)
                dq, dk, dv, d_beta = out.get("dq"), out.get("dk"), out.get("dv"), out.get("d_beta")
                if len(out) != (dq is not None) + (dk is not None) + (dv is not None) + (d_beta is not None):
                    check_out(out)
            if type(add) is not tuple or add:
                added = take_add(add, dq=dq, dk=dk, dv=dv, d_decay=d_decay, d_beta=d_beta,
                                 d_initial_state=d_initial_state)
            if dq is None:
                dq = self._new_gradient("dq", q)
            if dk is None:
                dk = self._new_gradient("dk", k)
            if dv is None:
                dv = self._new_gradient("dv", v)
            if d_decay is None or d_decay is True:
                d_decay = self._new_d_decay(decay, d_decay)
            elif d_decay is False:
                d_decay = None
            if d_beta is None:
                d_beta = self._new_gradient("d_beta", beta)
            if d_initial_state is True or d_initial_state is None and initial_state is not None:
                d_initial_state = self._new_states(q)
            elif d_initial_state is False:
                d_initial_state = None
            if workspace is None:
                workspace = self._backward_workspace(added, kind, q)
            if self._packed or cu_seqlens is not None:
                pack(self._pass_backward, cu_seqlens)
        except BaseException:  # also where no memory is left
            self._pass_backward.tell_others()
            raise
        self._pass_backward.run(stream, added << ADD_SHIFT, q, k, v, decay, beta, initial_state, d_o, d_final_state,
                                self._cache if cache is None else cache, dq, dk, dv, d_decay, d_beta,
                                d_initial_state, workspace)
        return Gradients(dq, dk, dv, d_decay, d_beta, d_initial_state)

    @overload
    def step(self, q: WritableT, k: Array | None, v: Array | None, decay: Array | None = None, *, state: Array,
             out: None = None, **rest: Unpack[_Step]) -> WritableT: ...

    @overload
    def step(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *, state: Array,
             out: OutputT, **rest: Unpack[_Step]) -> OutputT: ...

    @overload
    def step(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *, state: Array,
             out: None = None, **rest: Unpack[_Step]) -> Any: ...

    def step(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *, state: Array,
             beta: Array | None = None, out: Array | None = None, tokens: int = 0, stream: Stream | None = None) -> Any:
        """Decoding: o [B, T, H, V] of one token or a short run by the recurrence itself, from q [B, T, Hq, K],
        k [B, T, Hk, K], v [B, T, Hv, V] and the decay; `state` [N, H, K, V] float32 is read and updated in place.
        `tokens`: the call has only so many, the first of each row, and leaves the others of o alone; 0: all T. `beta`,
        `out` and `stream` are as in :meth:`forward`. It talks to nobody, whatever the plan's group. Refused
        where the plan is not causal, or has max_sequences."""
        if self._on_gpu:
            stream = enter_stream(stream, q, self.context.device_index)
        if out is None:
            out = self._new_o(q)
        self._pass_step.run(stream, self._of_step(tokens), q, k, v, decay, beta, state, out)
        return out

    # ---- Calls whose arrays are given once ----

    @without_stream
    def bind_forward(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
                     out: Array, beta: Array | None = None, initial_state: Array | None = None,
                     final_state: Array | None = None, cache: Array | None = None, workspace: Array | None = None,
                     reuse_cache: bool = False, cu_seqlens: Sequence[int] | Array | None = None) -> BoundCall:
        """call(stream=None), which runs forward on these arrays each time; they are checked and taken now, with the
        shapes that :meth:`forward` has. For a loop over the same buffers. On a GPU give the stream as an int (0 is
        the default stream)."""
        self._keep_for((type(q), 0) if self._on_gpu else type(q), q)
        pack(self._pass_forward, cu_seqlens)
        return self._pass_forward.bind(REUSE_CACHE if take_flag(reuse_cache, "reuse_cache") else 0, q, k, v, decay,
                                       beta, initial_state, out, final_state,
                                       self._cache if cache is None else cache,
                                       self._workspace if workspace is None else workspace).run

    @without_stream
    def bind_backward(self, d_o: Array | None, q: Array | None, k: Array | None, v: Array | None,
                      decay: Array | None = None, *, out: GradientArrays, beta: Array | None = None,
                      initial_state: Array | None = None, d_final_state: Array | None = None,
                      cache: Array | None = None, workspace: Array | None = None, d_decay: Array | None = None,
                      d_initial_state: Array | None = None, add: Collection[str] = (),
                      cu_seqlens: Sequence[int] | Array | None = None) -> BoundCall:
        """call(stream=None), which runs backward on these arrays each time, with the shapes that :meth:`backward`
        has, and its `add`; `out` holds dq, dk and dv. Without `d_decay` and `d_initial_state` these are not computed. Whether the
        plan's own cache is of its latest forward is looked at in each call."""
        if not self.problem.backward:
            raise InvalidArgument("bind_backward: the plan was made with backward=False")
        kind = (type(q), 0) if self._on_gpu else type(q)
        self._keep_for(kind, q)
        check_out(out)
        added = take_add(add, dq=out.get("dq"), dk=out.get("dk"), dv=out.get("dv"), d_decay=d_decay,
                         d_beta=out.get("d_beta"), d_initial_state=d_initial_state)
        if workspace is None:
            workspace = self._backward_workspace(added, kind, q)
        pack(self._pass_backward, cu_seqlens)
        return self._pass_backward.bind(added << ADD_SHIFT, q, k, v, decay, beta, initial_state, d_o, d_final_state,
                                        self._cache if cache is None else cache, out.get("dq"), out.get("dk"),
                                        out.get("dv"), d_decay, out.get("d_beta"), d_initial_state, workspace).run

    @without_stream
    def bind_step(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
                  state: Array, out: Array, beta: Array | None = None, tokens: int = 0) -> BoundCall:
        """call(stream=None), which runs step on these arrays each time, with the shapes and `tokens` that :meth:`step`
        has."""
        return self._pass_step.bind(self._of_step(tokens), q, k, v, decay, beta, state, out).run

    def run_pointers(self, call: Literal["forward", "backward", "step"], stream: int,
                     arrays: Mapping[str, tuple[int, int]], reuse_cache: bool = False,
                     cu_seqlens: Sequence[int] | Array | None = None) -> None:
        """The bare `call` ("forward", "backward" or "step") on `arrays`, which are (address, bytes) by the name of the
        argument in lasp.h, such as "q", "d_final_state" or "state_cache"; `stream` is an address, 0 on the CPU, and
        `reuse_cache` and `cu_seqlens` as in :meth:`forward`. Shapes, dtypes and devices are the caller's to check; the library checks
        sizes. Raises :class:`liblasp.InvalidArgument` for names and sizes that are not the plan's."""
        passes = {"forward": self._pass_forward, "backward": self._pass_backward, "step": self._pass_step}
        if not isinstance(call, str) or call not in passes:
            raise InvalidArgument(f'call = {describe(call)}: must be "forward", "backward" or "step"')
        made, names = passes[call], ARRAYS[call]
        try:
            if not isinstance(arrays, Mapping):
                raise InvalidArgument(f"arrays = {describe(arrays)}: must be (address, bytes) by the argument's name")
            for name in arrays:
                if name not in names:
                    raise InvalidArgument(f"arrays: {call} has no {name!r}; it has {', '.join(names)}")
            flags = REUSE_CACHE if take_flag(reuse_cache, "reuse_cache") else 0
            pack(made, cu_seqlens)
        except InvalidArgument:
            if reuse_cache is not True:
                made.tell_others()
            raise
        made.run_pointers(stream, flags, *map(arrays.get, names))

    def prepare(self, stream: Stream | None = None) -> None:
        """Does now what a first call on `stream` would do lazily, so that later calls can be captured into a CUDA
        graph. Collective. Raises :class:`liblasp.Unsupported` where passes of this group cannot be captured."""
        handle = self.handle
        try:
            if self._on_gpu:
                stream = enter_stream(stream, None, self.context.device_index)
            address = None if stream is None else pointer_of_stream(stream)
        except InvalidArgument:
            self._pass_forward.tell_others()
            raise
        raw.lasp_plan_prepare(handle, address)

    # ---- What the plan is ----

    def owners(self, begin: int, end: int) -> Owners:
        """Which ranks hold the first and the last of tokens [begin, end), counted over all ranks, such as those of a
        packed sequence: the first one reads its initial state, the last one writes its final state. Raises
        :class:`liblasp.InvalidArgument` for tokens that the ranks do not hold."""
        return Owners(*raw.lasp_plan_get_owners(self.handle, take_int64(begin, "begin"), take_int64(end, "end")))

    def describe(self) -> str:
        """The schedule and kernels chosen, and why, as text."""
        needed = raw.lasp_plan_describe(self.handle, 0)[1]
        return raw.lasp_plan_describe(self.handle, needed)[0]

    def new_cache(self, like: Array | None = None) -> Any:
        """A block for one forward's state cache, of state_cache_bytes, by the framework of `like` (None: NumPy); None
        where the plan needs none."""
        if self.closed:
            raise error_of(raw.LASP_ERROR_INVALID_HANDLE, "plan: it is closed")
        if like is not None and not is_array(like):
            raise InvalidArgument(f"like = {describe(like)}: must be an array, or None")
        return self._outputs.new_bytes(like, self.info.state_cache_bytes)

    def close(self) -> None:
        """Frees the plan and what it keeps. Raises InvalidArgument while another thread is in one of its calls."""
        super().close()
        self.context._handles.pop(getattr(self, "_key", -1), None)
        for name in ("_pass_forward", "_pass_backward", "_pass_step"):
            made = getattr(self, name, None)
            if made is not None:
                made.close()
        self._cache = self._workspace = self._kept_for = None
        if hasattr(self, "_outputs"):
            self._outputs.clear()

    def __del__(self) -> None:
        if self._handle is not None:  # Context._destroy_orphans says why not here
            self.context._orphans.append(self._key)

    def __repr__(self) -> str:
        problem, info = self.problem, self.info
        shapes = ", ".join(f"{name} {list(problem.shape_of(name) or ())}" for name in ("q", "k", "v", "o"))
        decay = "no decay" if problem.shape_of("decay") is None else f"decay {list(problem.shape_of('decay') or ())}"
        end = info.token_begin + problem.tokens
        return (f"<liblasp.Plan{' closed' if self.closed else ''}: {shapes}, {decay}, {problem.dtype}; tokens "
                f"{info.token_begin} to {end} of {info.total_tokens}, rank {info.rank} of {info.nranks}, schedule "
                f"{info.schedule}>")

    # ---- Inside ----

    def _backward_workspace(self, added: int, kind: Any, like: Any) -> Any:
        if added & raw.LASP_ADD_DV and self.info.workspace_add_bytes > self.info.workspace_backward_bytes:
            return self._outputs.block("backward that adds", kind, like, self.info.workspace_add_bytes)
        return self._outputs.block("backward", kind, like, self.info.workspace_backward_bytes)

    def _of_step(self, tokens: int) -> int:
        """What is said to a step of so many tokens."""
        if not 0 <= take_int64(tokens, "tokens") <= self.problem.tokens:
            raise InvalidArgument(f"tokens = {tokens}: must be 0 to the plan's, {self.problem.tokens}")
        return tokens << ADD_SHIFT

    def _new_d_decay(self, decay: Any, wanted: bool | None) -> Any:
        made = self._new_gradient("d_decay", decay)
        if made is None and wanted:
            raise InvalidArgument("d_decay: the plan was made without a decay")
        return made

    def _keep_for(self, kind: Any, like: Any) -> None:
        if self.closed:
            raise error_of(raw.LASP_ERROR_INVALID_HANDLE, "plan: it is closed")
        self._workspace = self._outputs.block("forward", kind, like, self.info.workspace_forward_bytes)
        self._cache, *where = self._outputs.own_cache(like, self.info.state_cache_bytes)
        self._pass_forward.own_cache(*where)
        self._kept_for = kind
