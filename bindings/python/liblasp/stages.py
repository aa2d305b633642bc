"""Stages: a plan's passes in two halves, for programs that move the maps of the ranks by a collective of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from . import raw
from .arguments import describe, take_flag, take_int32
from .arrays import enter_stream, is_array
from .enums import Device, DType, Write
from .errors import InvalidArgument, Unsupported, error_of
from .memory import Expected, Memory
from .outputs import Outputs
from .protocols import Array, Stream
from .results import Gradients

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["Stages"]


class Stages:
    """One pass of a plan, forward and backward, with the program's own collective in between::

        own = stages.summarize(q, k, v, decay)             # this rank's map, bytes
        all = stages.new_maps(nranks, like=q)              # where yours puts those of all ranks
        all_gather(all, own)                               # by torch.distributed, MPI, ...
        o = stages.apply(q, k, v, decay, incoming=stages.incoming(all))

    and backward by summarize_backward, incoming(all, backward=True) and apply_backward. Nobody is talked to, on any
    comm: :meth:`liblasp.Comm.detached` has none. It keeps what lies between the stages (carry, state cache, workspace),
    so that a second pass in flight on the same plan takes a Stages of its own.

    plan   a :class:`liblasp.Plan` with stages, else :class:`liblasp.Unsupported`

    ``map_bytes`` is the size of a rank's map, ``state_shape`` [B, H, K, V] the shape of the state that enters a rank.
    Arrays are the plan's, as in :meth:`liblasp.Plan.forward`. Refusals are nobody else's
    business.
    """

    plan: Plan
    map_bytes: int
    state_shape: tuple[int, int, int, int]

    def __init__(self, plan: Plan):
        if getattr(plan, "_kind", None) != "plan":
            raise InvalidArgument(f"plan = {describe(plan)}: must be a liblasp.Plan")
        found = raw.lasp_plan_info()
        raw.lasp_plan_get_info(plan.handle, found)
        if found.map_bytes == 0:
            raise Unsupported("plan: it has no stages (bidirectional, or with segment)")
        self.plan, self.map_bytes = plan, found.map_bytes
        self._carries = {"forward": found.carry_forward_bytes, "backward": found.carry_backward_bytes}
        problem, context = plan.problem, plan.context
        self.state_shape = problem.batch, plan.info.heads, problem.head_dim_k, problem.head_dim_v
        self._memory = Memory(context.device, context.device_index)
        self._outputs = Outputs(problem, plan.info, context.device, context.device_index)
        self._summarized = {"forward": False, "backward": False}
        self._applied = False

    def summarize(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
                  beta: Array | None = None, initial_state: Array | None = None,
                  maps: Array | None = None, cu_seqlens: Sequence[int] | Array | None = None,
                  stream: Stream | None = None) -> Any:
        """This rank's map, `map_bytes` bytes: what its tokens do to the state that enters. q, k, v, decay, beta,
        initial_state, cu_seqlens and `stream` as in :meth:`liblasp.Plan.forward`; nothing of q is read, and it may be None.
        `maps` is where it is written; made when not given. initial_state is part of the map."""
        args, like = raw.lasp_forward_args(), q if k is None else k
        self._inputs(args, q=q, k=k, v=v, decay=decay, beta=beta, initial_state=initial_state)
        maps = self._maps(args, maps, like)
        self._summarized["forward"] = self._applied = False
        self._run(raw.lasp_forward_summarize, args, "forward", like, stream, cu_seqlens, cache=True)
        self._summarized["forward"] = True
        return maps

    def apply(self, q: Array | None, k: Array | None, v: Array | None, decay: Array | None = None, *,
              beta: Array | None = None, incoming: Array | None = None, initial_state: Array | None = None,
              out: Array | None = None, final_state: bool | Array | None = None,
              cu_seqlens: Sequence[int] | Array | None = None, stream: Stream | None = None) -> Any:
        """o [B, T, H, V], or (o, final_state) as :meth:`liblasp.Plan.forward` gives them; final states are not
        broadcast. `incoming` is the state that enters this rank, None for zero. What summarize has left is used;
        without it, it is worked out again. q, k, v, decay, beta, initial_state, `out`, `final_state`, cu_seqlens and
        `stream` as there."""
        args = raw.lasp_forward_args()
        if final_state is True:
            final_state = self._outputs.new_states(q)
        elif final_state is False:
            final_state = None
        out = self._outputs.new_o(q) if out is None else out
        self._inputs(args, q=q, k=k, v=v, decay=decay, beta=beta, initial_state=initial_state)
        self._writes(args, o=out, final_state=final_state)
        self._incoming(args, incoming)
        self._run(raw.lasp_forward_apply, args, "forward", q, stream, cu_seqlens, cache=True,
                  carry=self._summarized["forward"])
        self._applied = True
        return out if final_state is None else (out, final_state)

    def summarize_backward(self, d_o: Array | None, q: Array | None, decay: Array | None = None, *,
                           k: Array | None = None, beta: Array | None = None, d_final_state: Array | None = None,
                           maps: Array | None = None, cu_seqlens: Sequence[int] | Array | None = None,
                           stream: Stream | None = None) -> Any:
        """This rank's map of the gradient of the state, `map_bytes` bytes. d_o, q, decay, d_final_state, cu_seqlens and
        `stream` as in :meth:`liblasp.Plan.backward`; `maps` as in summarize. With the delta write k and beta too, after
        summarize or apply, which leave the state cache; nothing of k is read without it."""
        delta = self.plan.problem.write == Write.DELTA
        if delta and not (self._applied or self._summarized["forward"]):
            raise InvalidArgument("summarize_backward: summarize or apply comes first, which leaves the state cache")
        args = raw.lasp_backward_args()
        self._inputs(args, q=q, k=k, decay=decay, beta=beta, d_o=d_o, d_final_state=d_final_state)
        maps = self._maps(args, maps, q)
        self._summarized["backward"] = False
        self._run(raw.lasp_backward_summarize, args, "backward", q, stream, cu_seqlens, cache=delta)
        self._summarized["backward"] = True
        return maps

    def apply_backward(self, d_o: Array | None, q: Array | None, k: Array | None, v: Array | None,
                       decay: Array | None = None, *, beta: Array | None = None, incoming: Array | None = None,
                       initial_state: Array | None = None, d_final_state: Array | None = None,
                       cu_seqlens: Sequence[int] | Array | None = None, stream: Stream | None = None) -> Gradients:
        """All gradients (:class:`liblasp.Gradients`) of the pass that apply has run. `incoming` is the gradient of the
        state that leaves this rank, None for zero. d_o, q, k, v, decay, beta, initial_state, d_final_state, cu_seqlens and
        `stream` as in :meth:`liblasp.Plan.backward`. The gradient of an initial state is made where there is one."""
        if not self._applied:
            raise InvalidArgument("apply_backward: apply comes first, which leaves the state cache")
        args, new = raw.lasp_backward_args(), self._outputs.new_gradient
        made = {"dq": new("dq", q), "dk": new("dk", k), "dv": new("dv", v), "d_decay": new("d_decay", decay),
                "d_beta": new("d_beta", beta),
                "d_initial_state": None if initial_state is None else self._outputs.new_states(q)}
        self._inputs(args, q=q, k=k, v=v, decay=decay, beta=beta, initial_state=initial_state, d_o=d_o,
                     d_final_state=d_final_state)
        self._writes(args, **made)
        self._incoming(args, incoming)
        self._run(raw.lasp_backward_apply, args, "backward", q, stream, cu_seqlens, cache=True,
                  carry=self._summarized["backward"])
        return Gradients(**made)

    def incoming(self, maps: Array, *, backward: bool = False, out: Array | None = None,
                 stream: Stream | None = None) -> Any:
        """The state that enters this rank, float32 of `state_shape`, from the `maps` of all ranks, one after the other
        as an all-gather leaves them: nranks * map_bytes bytes. backward=True: of maps of summarize_backward. `out` is
        made when not given; `stream` as in summarize."""
        args = raw.lasp_maps_args()
        args.backward = int(take_flag(backward, "backward"))
        self._memory.put_bytes(args, "maps", maps, least=self.plan.info.nranks * self.map_bytes)
        if out is None:
            out = self._outputs.new_like(maps, self.state_shape, DType.FLOAT32)
        self._memory.put(args, "incoming", out, Expected(DType.FLOAT32, self.state_shape), write=True)
        raw.lasp_maps_apply(self._handle(), args, self._stream(stream, maps))
        return out

    def new_maps(self, count: int, like: Array | None = None) -> Any:
        """A block of bytes for `count` maps one after the other, aligned as the library needs it, by the framework of
        `like` (None: NumPy)."""
        if like is not None and not is_array(like):
            raise InvalidArgument(f"like = {describe(like)}: must be an array, or None")
        if take_int32(count, "count") < 1:
            raise InvalidArgument(f"count = {count}: must be at least 1")
        return self._outputs.new_bytes(like, count * self.map_bytes)

    def compose(self, later: Array, earlier: Array, *, out: Array | None = None, stream: Stream | None = None) -> Any:
        """The map of two neighbours: `later` after `earlier`, in the order in which a state passes them. `out` may be
        one of the two; made when not given. `stream` as in summarize."""
        args = raw.lasp_maps_args()
        out = self.new_maps(1, _shown(later)) if out is None else out
        self._memory.put_bytes(args, "later", later, least=self.map_bytes)
        self._memory.put_bytes(args, "earlier", earlier, least=self.map_bytes)
        self._memory.put_bytes(args, "to", out, write=True, least=self.map_bytes)
        raw.lasp_maps_compose(self._handle(), args, self._stream(stream, later))
        return out

    # ---- Inside ----

    def _handle(self) -> Any:
        if self.plan.closed:
            raise error_of(raw.LASP_ERROR_INVALID_HANDLE, "plan: it is closed")
        return self.plan.handle

    def _stream(self, stream: Any, like: Any) -> Any:
        if self.plan.context.device == Device.CUDA:
            return enter_stream(stream, like, self.plan.context.device_index)
        if stream is not None:
            raise InvalidArgument(f"stream = {describe(stream)}: must be None on the CPU")
        return None

    def _run(self, function: Any, args: Any, which: str, like: Any, stream: Any, cu_seqlens: Any,
             cache: bool = False, carry: bool = True) -> None:
        kept = self._memory.pack(args, cu_seqlens, self.plan.problem.max_sequences)
        info, block = self.plan.info, self._outputs.block
        stream = self._stream(stream, like)
        workspace = info.workspace_forward_bytes if which == "forward" else info.workspace_backward_bytes
        if carry:
            self._memory.put_bytes(args, "carry", block(f"carry {which}", "own", like, self._carries[which]))
        if cache:
            self._memory.put_bytes(args, "state_cache", block("cache", "own", like, info.state_cache_bytes))
        self._memory.put_bytes(args, "workspace", block(f"workspace {which}", stream, like, workspace))
        function(self._handle(), args, stream)
        del kept

    def _inputs(self, args: Any, **arrays: Any) -> None:
        for name, array in arrays.items():
            self._memory.put(args, name, array, self._expected(name, array))

    def _writes(self, args: Any, **arrays: Any) -> None:
        for name, array in arrays.items():
            self._memory.put(args, name, array, self._expected(name, array), write=True)

    def _expected(self, name: str, array: Any) -> Expected:
        problem = self.plan.problem
        shape = problem.shape_of(name)
        if shape is None:
            if array is not None:
                raise InvalidArgument(f"{name} must be None: the plan has none")
            return Expected(DType.FLOAT32, ())
        return Expected(problem.dtype_of(name), shape, problem.strides_of(name))

    def _incoming(self, args: Any, incoming: Any) -> None:
        self._memory.put(args, "incoming", incoming, Expected(DType.FLOAT32, self.state_shape))

    def _maps(self, args: Any, maps: Any, like: Any) -> Any:
        maps = self.new_maps(1, _shown(like)) if maps is None else maps
        self._memory.put_bytes(args, "maps", maps, write=True, least=self.map_bytes)
        return maps


def _shown(array: Any) -> Any:
    """An array whose framework makes more; what is none is refused by its own name, later."""
    return array if is_array(array) else None
