"""linear_attention: the library's forward and backward as one differentiable function of torch tensors.

No tensor is copied: q, k, v and decay go in by their strides, wherever the last dimension is contiguous.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Optional, Sequence, Tuple, TypedDict, Union, overload

import torch
from torch import is_autocast_enabled, is_grad_enabled
from torch._C import (_are_functorch_transforms_active as has_transforms, _is_any_autocast_enabled as any_autocast,
                      _len_torch_dispatch_stack as dispatch_modes)
from torch._C._functorch import unwrap_if_dead
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

from liblasp import Comm
from liblasp.arguments import take_flag, take_integer, take_scale

from . import calls, checkpointing, passes, walking
from .keys import check_tensors, key_of, step_key_of
from .ownership import OwnershipLike
from .packing import PackedPlan
from .problem import invalid_argument
from .sequence_group import Group, owned, sequence_group

if TYPE_CHECKING:
    from typing_extensions import Unpack

    class _Options(TypedDict, total=False):
        beta: Optional[torch.Tensor]
        initial_state: Optional[torch.Tensor]
        cu_seqlens: Union[None, torch.Tensor, Sequence[int]]
        scale: Optional[float]
        causal: bool
        group: Group
        broadcast_final_state: bool
        total_tokens: Optional[int]
        state_cache: Optional[Literal["chunks", "incoming"]]
        ownership: Optional[OwnershipLike]


@overload
def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: Optional[torch.Tensor] = None, *,
                     output_final_state: Literal[False] = False, **options: Unpack[_Options]) -> torch.Tensor: ...


@overload
def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: Optional[torch.Tensor] = None, *,
                     output_final_state: Literal[True],
                     **options: Unpack[_Options]) -> Tuple[torch.Tensor, torch.Tensor]: ...


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: Optional[torch.Tensor] = None, *,
                     beta: Optional[torch.Tensor] = None, initial_state: Optional[torch.Tensor] = None,
                     cu_seqlens: Union[None, torch.Tensor, Sequence[int]] = None, scale: Optional[float] = None,
                     causal: bool = True, group: Group = None, output_final_state: bool = False,
                     broadcast_final_state: bool = False, total_tokens: Optional[int] = None,
                     state_cache: Optional[Literal["chunks", "incoming"]] = None,
                     ownership: Optional[OwnershipLike] = None) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Linear attention of this rank's tokens within a sequence that is split over the ranks of `group`.

    q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, Hv, V], of one dtype (float32, bfloat16, float16) and device, any
    strides whose last dimension is contiguous; H = max(Hq, Hk, Hv), each divides it. Gives o [B, T, H, V], and with
    output_final_state=True (o, final_state). Collective: every rank of the group calls it, and runs its backward
    pass.

    decay: log-decays, at most 0: None, [H], [B, T, H] or [B, T, H, K]; the last two float32 or the dtype of q.
    beta: [B, T, H], float32 or the dtype of q: the delta rule, whose names are delta_rule, gated_delta_rule and kda;
      with causal=True.
    initial_state: float32 [N, H, K, V], for each sequence read by the rank that holds its begin; its gradient is
      zero on the other ranks.
    cu_seqlens: packed sequences: N + 1 offsets into the whole of all ranks' tokens, the same on every rank, B = 1.
      Behind the last one is padding, where o is zero. Offsets may change with every call: calls that differ in nothing
      else share a plan. Whole numbers, or a tensor of int32 or int64 on q's device or the CPU, which both passes read:
      leave it as it is until the backward pass. On a GPU nobody waits for it or checks it: repeat the last offset
      where sequences are missing; offsets out of order give numbers that mean nothing. Causal;
      broadcast_final_state=True then needs a process group.
    scale: multiplies o; None: 1 / sqrt(K).
    causal: False reads the whole sequence at every token, without decay.
    group: a torch process group, a SequenceGroup or liblasp.Comm; None: this rank holds whole sequences.
    final_state: float32 [N, H, K, V], of each sequence on the rank that holds its end and zero on the others, or
      with broadcast_final_state=True (beside output_final_state=True) everywhere; its gradient is then summed over the
      ranks of the process group.
    total_tokens: tokens of all ranks. Needed where ranks' shares change from call to call: plans are kept by shape,
      and ranks make a new plan together, so that a rank's share must follow from total_tokens.
    state_cache: what is kept for the backward pass: "chunks" (fast), "incoming" (small, recomputes), or None:
      "incoming" inside liblasp.torch.checkpoint and "chunks" elsewhere.
    ownership: which tokens each rank holds: "contiguous", "zigzag", "zigzag_each" or a list of (tokens, rank), as
      SequenceGroup says; None: as the group does. Causal where it is not contiguous.

    Under autocast q, k and v are cast to its dtype. Raises liblasp.Error: liblasp.InvalidArgument (a ValueError) for a
    mistake in the arguments, liblasp.Unsupported, liblasp.Disagreement where ranks differ, liblasp.PeerLost where a
    rank does not come.
    """
    if ownership is not None:
        if is_compiling():  # whose groups are known by name
            return _outside_the_graph(q, k, v, decay, beta=beta, initial_state=initial_state, cu_seqlens=cu_seqlens,
                                      scale=scale, causal=causal, group=group, output_final_state=output_final_state,
                                      broadcast_final_state=broadcast_final_state, total_tokens=total_tokens,
                                      state_cache=state_cache, ownership=ownership)
        group = owned(group, ownership, q)
    if is_compiling():
        # Time segments and checkpoint hand states on from call to call, outside of any graph; under torch.func the
        # compiler takes no operator with a derivative of its own; and a Comm has no name for a graph to keep.
        outside = walking.walks or checkpointing.scopes or has_transforms() or isinstance(group, Comm)
        through = _outside_the_graph if outside else calls.linear_attention
        return through(q, k, v, decay, beta=beta, initial_state=initial_state, cu_seqlens=cu_seqlens, scale=scale,
                       causal=causal, group=group, output_final_state=output_final_state,
                       broadcast_final_state=broadcast_final_state, total_tokens=total_tokens,
                       state_cache="chunks" if state_cache is None else state_cache)
    walk = walking.current() if walking.walks or walking.backward_passes else None
    if walk is not None:
        return walk.attend(linear_attention, q, k, v, decay, beta=beta, initial_state=initial_state,
                           cu_seqlens=cu_seqlens, scale=scale, causal=causal, group=group,
                           output_final_state=output_final_state, broadcast_final_state=broadcast_final_state,
                           total_tokens=total_tokens, state_cache=state_cache)
    group = sequence_group(group)
    plan = key = kept = None
    try:
        checkpointed = checkpointing.scopes and checkpointing.is_checkpointed()
        by_operator = has_transforms() or (dispatch_modes() and not checkpointed)
        differentiable = is_grad_enabled() and (
            q.requires_grad or k.requires_grad or v.requires_grad or (decay is not None and decay.requires_grad)
            or (beta is not None and beta.requires_grad)
            or (initial_state is not None and initial_state.requires_grad))
        autocast = any_autocast() and is_autocast_enabled("cpu" if q.is_cpu else "cuda")
        # What is no flag and no number may yet equal one, so that a plan would be found by it.
        if scale is not None and type(scale) is not float:
            scale = take_scale(scale)
        if causal is not True:
            causal = take_flag(causal, "causal")
        if total_tokens is not None and type(total_tokens) is not int:
            total_tokens = take_integer(total_tokens, "total_tokens")
        if output_final_state is not False:
            output_final_state = take_flag(output_final_state, "output_final_state")
        if broadcast_final_state is not False and take_flag(broadcast_final_state, "broadcast_final_state"):
            if not output_final_state:
                raise invalid_argument("broadcast_final_state=True: needs output_final_state=True")
        if state_cache is None:
            state_cache = "incoming" if checkpointed else "chunks"
        # In the order of Key.
        settings = (scale, causal, total_tokens, state_cache, differentiable, broadcast_final_state)
        if cu_seqlens is None and not autocast and not by_operator:
            plan = group.recent_plan(settings, q, k, v, decay, beta, initial_state)
        if plan is None and not by_operator:
            by_operator = calls.needed(q, k, v, decay, beta, initial_state, cu_seqlens)
        if plan is None and not by_operator:
            q, k, v, decay, key, packing = key_of(settings, autocast, q, k, v, decay, beta, initial_state, cu_seqlens)
    except BaseException as error:
        group.give_up(getattr(q, "device", None))
        if isinstance(error, AttributeError):
            check_tensors(q, k, v, decay, beta, initial_state)  # says it by name
        raise
    if by_operator:
        return calls.linear_attention(
            q, k, v, decay, beta=beta, initial_state=initial_state, cu_seqlens=cu_seqlens, scale=scale, causal=causal,
            group=group, output_final_state=output_final_state,
            broadcast_final_state=broadcast_final_state, total_tokens=total_tokens, state_cache=state_cache)
    if plan is None:
        plan = group.plan(key)
        if packing is not None:
            plan = PackedPlan(plan, packing, group)
        elif not autocast:
            group.keep_recent(plan, settings, q, k, v, decay, beta, initial_state)
    if differentiable:
        if checkpointed:
            kept = checkpointing.recomputed(plan.key)
        given = [each if each is None else unwrap_if_dead(each) for each in (q, k, v, decay, beta, initial_state)]
        o, final_state = _record((group, plan, output_final_state, kept), *given)
    else:
        o, final_state, _ = passes.forward(group, plan, output_final_state, None, q, k, v, decay, beta, initial_state)
    return (o, final_state) if output_final_state else o


_outside_the_graph = torch.compiler.disable(linear_attention)


def linear_attention_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor,
                          decay: Optional[torch.Tensor] = None, *, beta: Optional[torch.Tensor] = None,
                          scale: Optional[float] = None) -> torch.Tensor:
    """Decoding by the recurrence itself, for one token or a short run of whole sequences, on this rank alone: o
    [B, T, H, V] from q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, Hv, V], decay and beta, as in linear_attention.
    `state` [B, H, K, V] float32 is advanced in place. Without gradients. Raises liblasp.InvalidArgument (a ValueError)
    for tensors that do not go together. `scale` multiplies o; None: 1 / sqrt(K)."""
    if is_compiling():
        return calls.linear_attention_step(q, k, v, state, decay, beta, scale)
    if is_grad_enabled():
        with torch.no_grad():
            return linear_attention_step(q, k, v, state, decay, beta=beta, scale=scale)
    if scale is not None and type(scale) is not float:
        scale = take_scale(scale)
    if dispatch_modes() or has_transforms():
        return calls.linear_attention_step(q, k, v, state, decay, beta, scale)
    group = sequence_group(None)
    settings = ("step", scale)
    plan = group.recent_plan(settings, q, k, v, decay, beta, state)
    if plan is None:
        if calls.needed(q, k, v, state, decay, beta):
            return calls.linear_attention_step(q, k, v, state, decay, beta, scale)
        check_tensors(q, k, v, state, decay, beta)
        given = decay
        if decay is not None and decay.dim() == 1 and decay.dtype != torch.float32:
            decay = decay.float()
        plan = group.plan(step_key_of(q, k, v, decay, beta, state, scale))
        if decay is given:
            group.keep_recent(plan, settings, q, k, v, decay, beta, state)
    o = plan.new_output(q)
    plan.step(q, k, v, decay, beta, state, o)
    return o


class _LinearAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, q, k, v, decay, beta, initial_state):
        """`call`: the first four arguments of passes.forward; one argument costs less than four."""
        o, final_state, cache = passes.forward(*call, q, k, v, decay, beta, initial_state)
        ctx.call = call
        ctx.set_materialize_grads(False)
        # The offsets too, which the backward pass reads again: autograd refuses what was written to in between.
        ctx.save_for_backward(q, k, v, decay, beta, initial_state, cache, call[1].offsets)
        if checkpointing.scopes and checkpointing.is_checkpointed():
            _, plan, _, kept = call
            checkpointing.keep(kept or checkpointing.Kept(
                plan.key, cache, final_state if plan.key.broadcast_final_state else None))
        return o, final_state

    @staticmethod
    def backward(ctx, d_o, d_final_state):
        if is_grad_enabled():  # the library has no second derivative, and autograd says so
            return _backward_once(ctx, d_o, d_final_state)
        return _LinearAttention.gradients(ctx, d_o, d_final_state)  # most often, and sooner

    @staticmethod
    def gradients(ctx, d_o, d_final_state):
        group, plan = ctx.call[:2]
        try:
            *saved, _ = ctx.saved_tensors
        except BaseException:  # also where no memory is left
            plan.give_up_backward()
            raise
        return None, *passes.backward(group, plan, *saved, d_o, d_final_state, *ctx.needs_input_grad[4:])


_backward_once = once_differentiable(_LinearAttention.gradients)
# Function.apply without its Python, which takes 4.5 microseconds: it looks for transforms of torch.func, which
# has_transforms() did, and unwraps tensors that one left behind, which the caller does.
_record = super(torch.autograd.Function, _LinearAttention).apply
