"""From the arguments of a call to the key of its plan: looked at as closely as a new plan needs it."""
from __future__ import annotations

import torch

from liblasp.arguments import take_integer, take_scale
from liblasp.enums import Cache, take

from .packing import Packing
from .problem import Key, invalid_argument, seen


def key_of(settings, autocast, q, k, v, decay, beta, initial_state, cu_seqlens):
    """The key of a call whose plan is not one of the latest, the tensors as the plan takes them, and a Packing or None.
    Calls that differ in their offsets alone have one key, and so one plan."""
    check_tensors(q, k, v, decay, beta, initial_state)
    settings = check_settings(*settings)
    device = q.device.type
    if device != "cpu" and device != "cuda":
        raise invalid_argument(f"q: is on {q.device}, must be on the CPU or a CUDA device")
    if autocast:
        dtype = torch.get_autocast_dtype(device)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if decay is not None and decay.dim() == 1 and decay.dtype != torch.float32:
        decay = decay.float()  # [H] numbers, always float32 in the library
    packing, state = None, seen(initial_state)
    if cu_seqlens is not None:
        packing = Packing(cu_seqlens, q.device, settings[-1])
        state, settings = packing.seen_state(initial_state), (*settings[:-1], False)
    key = Key(seen(q), seen(k), seen(v), seen(decay), seen(beta), state, packing.most if packing else 0, *settings)
    return q, k, v, decay, key, packing


def step_key_of(q, k, v, decay, beta, state, scale) -> Key:
    """The key of a decoding step, on one rank."""
    return Key(seen(q), seen(k), seen(v), seen(decay), seen(beta), seen(state), 0, take_scale(scale), True, None,
               "incoming", False, False)


def check_tensors(q, k, v, *others) -> None:
    for tensor in (q, k, v):
        if not isinstance(tensor, torch.Tensor):
            raise invalid_argument(f"q, k and v must be torch tensors, not {type(tensor).__name__}")
    for tensor in others:
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise invalid_argument(f"decay, beta and states must be torch tensors or None, not a "
                                   f"{type(tensor).__name__}")
    if any(tensor is not None and tensor.is_neg() for tensor in (q, k, v, *others)):
        raise invalid_argument("a tensor is a view of the negative of its memory: take its resolve_neg()")


def check_settings(scale, causal, total_tokens, state_cache, differentiable, broadcast_final_state) -> tuple:
    """What Key has after the tensors, looked at as closely as a new plan needs it."""
    if total_tokens is not None:
        total_tokens = take_integer(total_tokens, "total_tokens", least=0)
    return (take_scale(scale), causal, total_tokens, str(take(Cache, state_cache, "state_cache")), differentiable,
            broadcast_final_state)
