"""linear_attention: the library's forward and backward as one differentiable function of torch tensors.

No tensor is copied: q, k, v and decay go in by their strides, wherever the last dimension is contiguous.
"""
from __future__ import annotations

from typing import NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch.autograd.function import once_differentiable

from . import checkpointing
from .plans import Plan
from .problem import Key, invalid_argument, seen
from .sequence_group import SequenceGroup, sequence_group


@torch.compiler.disable  # the library's work is opaque to a compiler: the graph breaks around it
def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: Optional[torch.Tensor] = None, *,
                     beta: Optional[torch.Tensor] = None, initial_state: Optional[torch.Tensor] = None,
                     cu_seqlens: Union[None, torch.Tensor, Sequence[int]] = None, scale: Optional[float] = None,
                     causal: bool = True, group=None, output_final_state: bool = False,
                     broadcast_final_state: bool = False, total_tokens: Optional[int] = None,
                     state_cache: Optional[str] = None
                     ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Linear attention of this rank's tokens within a sequence that is split over the ranks of `group`.

    q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, Hv, V], of one dtype (float32, bfloat16, float16) and device, any
    strides whose last dimension is contiguous; H = max(Hq, Hk, Hv), each divides it. Gives o [B, T, H, V], and with
    output_final_state=True (o, final_state). Collective: every rank of the group calls it, and runs its backward
    pass.

    decay: log-decays, at most 0: None, [H], [B, T, H] or [B, T, H, K]; the last two float32 or the dtype of q.
    beta: [B, T, H], float32 or the dtype of q, for the delta-rule write; lasp.Unsupported in this version.
    initial_state: float32 [N, H, K, V], for each sequence read by the rank that holds its begin; its gradient is
      zero on the other ranks.
    cu_seqlens: packed sequences: N + 1 offsets into the whole of all ranks' tokens, B = 1.
    scale: multiplies o; None: 1 / sqrt(K).
    causal: False reads the whole sequence at every token, without decay.
    group: a torch process group, a SequenceGroup or lasp.Comm; None: this rank holds whole sequences.
    final_state: float32 [N, H, K, V], of each sequence on the rank that holds its end and zero on the others, or
      with broadcast_final_state=True everywhere; its gradient is then summed over the ranks of the process group.
    total_tokens: tokens of all ranks. Needed where ranks' shares change from call to call: plans are kept by shape,
      and ranks make a new plan together, so that a rank's share must follow from total_tokens.
    state_cache: what is kept for the backward pass: "chunks" (fast), "incoming" (small, recomputes), or None:
      "incoming" inside lasp.torch.checkpoint and "chunks" elsewhere.

    Under autocast q, k and v are cast to its dtype. Raises lasp.Error: lasp.InvalidArgument (a ValueError) for a
    mistake in the arguments, lasp.Unsupported, lasp.Disagreement where ranks differ, lasp.PeerLost where a rank
    does not come.
    """
    _check_tensors(q, k, v, decay, beta, initial_state)
    device = q.device.type
    if device != "cpu" and device != "cuda":
        raise invalid_argument(f"q: is on {q.device}, must be on the CPU or a CUDA device")
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if decay is not None and decay.dim() == 1 and decay.dtype != torch.float32:
        decay = decay.float()  # [H] numbers, always float32 in the library
    group = sequence_group(group)
    differentiable = torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or (decay is not None and decay.requires_grad)
        or (initial_state is not None and initial_state.requires_grad))
    state_cache = state_cache or ("incoming" if checkpointing.is_checkpointed() else "chunks")
    key = Key(seen(q), seen(k), seen(v), seen(decay), seen(beta), seen(initial_state), _offsets(cu_seqlens), scale,
              causal, total_tokens, state_cache, differentiable, broadcast_final_state and output_final_state)
    plan = group.plan(key)
    if differentiable:
        call = _Call(group, plan, output_final_state, checkpointing.recomputed(key))
        o, final_state = _LinearAttention.apply(call, q, k, v, decay, initial_state)
    else:
        o, final_state, _ = _forward(group, plan, output_final_state, None, q, k, v, decay, initial_state)
    return (o, final_state) if output_final_state else o


@torch.compiler.disable
@torch.no_grad()
def linear_attention_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor,
                          decay: Optional[torch.Tensor] = None, *, scale: Optional[float] = None) -> torch.Tensor:
    """Decoding by the recurrence itself, for one token or a short run of whole sequences, on this rank alone.
    Shapes as in linear_attention; `state` float32 [B, H, K, V] is advanced in place. Without gradients."""
    _check_tensors(q, k, v, state, decay)
    if decay is not None and decay.dim() == 1:
        decay = decay.float()
    group = sequence_group(None)
    plan = group.plan(Key(seen(q), seen(k), seen(v), seen(decay), None, seen(state), None, scale, True, None,
                          "incoming", False, False))
    o = q.new_empty(plan.output_shape)
    plan.step(group.stream(q.device), q=q, k=k, v=v, decay=decay, state=state, o=o)
    return o


def _check_tensors(q, k, v, *others) -> None:
    for tensor in (q, k, v):
        if not isinstance(tensor, torch.Tensor):
            raise invalid_argument(f"q, k and v must be torch tensors, not {type(tensor).__name__}")
    for tensor in others:
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise invalid_argument(f"decay, beta and states must be torch tensors or None, not a "
                                   f"{type(tensor).__name__}")


def _offsets(cu_seqlens) -> Optional[Tuple[int, ...]]:
    if cu_seqlens is None:
        return None
    return tuple(cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else map(int, cu_seqlens))


class _Call(NamedTuple):
    group: SequenceGroup
    plan: Plan
    output_final_state: bool
    kept: Optional[checkpointing.Kept]  # of the forward pass that this one recomputes


class _LinearAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, q, k, v, decay, initial_state):
        o, final_state, cache = _forward(*call, q, k, v, decay, initial_state)
        ctx.group, ctx.plan = call.group, call.plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, decay, initial_state, cache)
        key = call.plan.key
        checkpointing.keep(call.kept or
                           checkpointing.Kept(key, cache, final_state if key.broadcast_final_state else None))
        return o, final_state

    @staticmethod
    @once_differentiable  # the library has no second derivative, and autograd says so
    def backward(ctx, d_o, d_final_state):
        group, plan = ctx.group, ctx.plan
        q, k, v, decay, initial_state, cache = ctx.saved_tensors
        if d_o is None:
            d_o = q.new_zeros(plan.output_shape)
        d_o = d_o.contiguous()  # as planned; it nearly always is, and is copied where it is not
        if d_final_state is not None and plan.key.broadcast_final_state:
            d_final_state = group.sum(d_final_state)  # of all ranks' copies, for the one that the library reads
        elif d_final_state is not None:
            d_final_state = d_final_state.contiguous()
        dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        d_decay = d_initial_state = None
        if decay is not None and ctx.needs_input_grad[4]:
            d_decay = decay.new_empty(decay.shape)
        if initial_state is not None and ctx.needs_input_grad[5]:
            d_initial_state = initial_state.new_zeros(initial_state.shape)
        workspace = group.workspace(plan.workspace_backward_bytes, q.device)
        plan.backward(group.stream(q.device), workspace, q=q, k=k, v=v, decay=decay, initial_state=initial_state,
                      d_o=d_o, d_final_state=d_final_state, state_cache=cache, dq=dq, dk=dk, dv=dv, d_decay=d_decay,
                      d_initial_state=d_initial_state)
        return None, dq, dk, dv, d_decay, d_initial_state


def _forward(group, plan, output_final_state, kept, q, k, v, decay, initial_state):
    """o, final_state and the state cache, which is the given one in a recomputation."""
    o = q.new_empty(plan.output_shape)
    final_state = None
    if output_final_state:
        final_state = q.new_zeros(plan.state_shape, dtype=torch.float32)
    if kept is not None:
        cache = kept.state_cache
    elif plan.state_cache_bytes:
        cache = q.new_empty(plan.state_cache_bytes, dtype=torch.uint8)
    else:
        cache = None
    workspace = group.workspace(plan.workspace_forward_bytes, q.device)
    plan.forward(group.stream(q.device), workspace, kept is not None, q=q, k=k, v=v, decay=decay,
                 initial_state=initial_state, o=o, final_state=final_state, state_cache=cache)
    if kept is not None and kept.final_state is not None:
        final_state.copy_(kept.final_state)
    return o, final_state, cache
