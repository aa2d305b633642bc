"""Calls by way of the custom operators: of a compiler, torch.func, dispatch modes, and of tensors without memory."""
from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled
from torch._C import _are_functorch_transforms_active as has_transforms
from torch.compiler import is_compiling

from . import transforms
from .keys import check_tensors
from .operators import FORWARD, STEP, strides_of
from .problem import invalid_argument, refuse_distributed
from .sequence_group import name_of

_USUAL = Tensor.__torch_dispatch__


def needed(*tensors: Optional[Tensor]) -> bool:
    """Whether the tensors have no memory that the library could read: fake, meta, or of a type of its own."""
    return any(isinstance(tensor, Tensor) and (tensor.is_meta or type(tensor).__torch_dispatch__ is not _USUAL)
               for tensor in tensors)


def linear_attention(q, k, v, decay, *, beta, initial_state, cu_seqlens, scale, causal, group, output_final_state,
                     broadcast_final_state, total_tokens, state_cache):
    """As attention.linear_attention, which a compiler can look into. `state_cache` is not None."""
    refuse_distributed(q=q, k=k, v=v, decay=decay, beta=beta, initial_state=initial_state, cu_seqlens=cu_seqlens)
    if not is_compiling():
        check_tensors(q, k, v, decay, beta, initial_state)
    if broadcast_final_state and not output_final_state:
        raise invalid_argument("broadcast_final_state=True: needs output_final_state=True")
    differentiable = is_grad_enabled() and any(tensor is not None and tensor.requires_grad
                                               for tensor in (q, k, v, decay, beta, initial_state))
    device = q.device.type
    if device in ("cpu", "cuda") and is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    decay = _in_float32(decay)
    if cu_seqlens is not None and not isinstance(cu_seqlens, Tensor):
        cu_seqlens = torch.tensor(cu_seqlens, dtype=torch.int64)
    if cu_seqlens is not None and cu_seqlens.is_meta and not q.is_meta:
        raise invalid_argument(f"cu_seqlens: is on meta, must be on q's {q.device} or on the CPU")
    forward = transforms.forward if has_transforms() and not is_compiling() else FORWARD
    o, final_state, _ = forward(q, k, v, decay, beta, initial_state, cu_seqlens, strides_of(q, k, v, decay, beta),
                                name_of(group), scale, causal, total_tokens, str(state_cache), broadcast_final_state,
                                differentiable, output_final_state)
    return (o, final_state) if output_final_state else o


def linear_attention_step(q, k, v, state, decay, beta, scale) -> Tensor:
    """As attention.linear_attention_step."""
    refuse_distributed(q=q, k=k, v=v, state=state, decay=decay, beta=beta)
    return STEP(q, k, v, _in_float32(decay), state, scale, beta)


def _in_float32(decay: Optional[Tensor]) -> Optional[Tensor]:
    """[H] numbers are always float32 in the library."""
    return decay.float() if decay is not None and decay.dim() == 1 and decay.dtype != torch.float32 else decay
