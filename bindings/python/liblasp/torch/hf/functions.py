"""Functions of transformers' models by their names and signatures, over a split sequence: what a modeling file of your
own copied from one is replaced by an import and a `group`. Differentiable, and collective where there is a group.

cu_seqlens: offsets of packed sequences into the whole of all ranks' tokens; total_tokens: as in linear_attention. Other
keywords are not looked at, as in transformers' own functions, but seq_idx is refused. chunk_size says nothing here.
MiniMax's Lightning attention has no function there: liblasp.torch.linear_attention is it, with scale=1.0."""
from __future__ import annotations

from typing import Any, Callable, Optional, Tuple, Union

import torch

import liblasp

from .. import dropins
from ..convolution import causal_conv1d
from ..sequence_group import Group

__all__ = ["causal_conv1d_fn", "chunk_kimi_delta_attention", "mamba2_chunk_scan", "torch_chunk_gated_delta_rule"]


def causal_conv1d_fn(hidden_states: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None,
                     activation: Optional[str] = None, *, group: Group = None, cu_seqlens: Any = None,
                     total_tokens: Optional[int] = None, **kwargs: Any) -> torch.Tensor:
    """y [B, C, T] of hidden_states [B, C, T] and weight [C, width]. activation: None, "silu" or "swish"."""
    _refuse(kwargs)
    y = causal_conv1d(hidden_states.transpose(1, 2), weight, bias, activation=take_activation(activation), group=group,
                      cu_seqlens=cu_seqlens, total_tokens=total_tokens)
    return y.transpose(1, 2)


def mamba2_chunk_scan(hidden_states: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor,
                      chunk_size: int = 0, D: Optional[torch.Tensor] = None, dt_bias: Optional[torch.Tensor] = None,
                      initial_states: Optional[torch.Tensor] = None, dt_softplus: bool = False,
                      dt_limit: Tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False, *,
                      z: Optional[torch.Tensor] = None, group: Group = None, cu_seqlens: Any = None,
                      total_tokens: Optional[int] = None,
                      **kwargs: Any) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Float32 [B, T, H, P], and the states [B, H, P, N] with return_final_states=True, the same on every rank."""
    _refuse(kwargs)
    # In float32 what is not a product of matrices, as the reference code has it.
    return dropins.mamba_chunk_scan_combined(
        hidden_states.float(), dt, A, B, C, D=D, z=z, dt_bias=dt_bias, initial_states=initial_states,
        dt_softplus=dt_softplus, dt_limit=dt_limit, return_final_states=return_final_states, cu_seqlens=cu_seqlens,
        group=group, total_tokens=total_tokens)


_Output = Tuple[torch.Tensor, Optional[torch.Tensor]]


def torch_chunk_gated_delta_rule(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor,
                                 beta: torch.Tensor, chunk_size: int = 64,
                                 initial_state: Optional[torch.Tensor] = None, output_final_state: bool = False,
                                 use_qk_l2norm_in_kernel: bool = False, *, group: Group = None, cu_seqlens: Any = None,
                                 total_tokens: Optional[int] = None, **kwargs: Any) -> _Output:
    """(o [B, T, H, V], the state [B, H, K, V], the same on every rank, or None). g and beta [B, T, H]."""
    return _delta(dropins.chunk_gated_delta_rule, query, key, value, g, beta, initial_state, output_final_state,
                  use_qk_l2norm_in_kernel, group, cu_seqlens, total_tokens, kwargs)


def chunk_kimi_delta_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor,
                               beta: torch.Tensor, chunk_size: int = 64, initial_state: Optional[torch.Tensor] = None,
                               output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, *,
                               group: Group = None, cu_seqlens: Any = None, total_tokens: Optional[int] = None,
                               **kwargs: Any) -> _Output:
    """As torch_chunk_gated_delta_rule, with g [B, T, H, K]."""
    return _delta(dropins.chunk_kda, query, key, value, g, beta, initial_state, output_final_state,
                  use_qk_l2norm_in_kernel, group, cu_seqlens, total_tokens, kwargs)


def take_activation(activation: Optional[str]) -> Optional[str]:
    if activation not in (None, "silu", "swish"):
        raise liblasp.Unsupported(f"a convolution followed by {activation}: must be None or 'silu'")
    return "silu" if activation else None


def _delta(function: Callable[..., _Output], q, k, v, g, beta, initial_state, output_final_state, unit, group,
           cu_seqlens, total_tokens, other) -> _Output:
    _refuse(other)
    dtype = v.dtype
    if v.is_cpu:  # as the reference code has it: rows of length 1 in 16 bits are the larger error
        q, k, v = q.float(), k.float(), v.float()
    o, state = function(q, k, v, g.float(), beta.float(), initial_state=initial_state,
                        output_final_state=output_final_state, use_qk_l2norm_in_kernel=unit, cu_seqlens=cu_seqlens,
                        group=group, total_tokens=total_tokens)
    return o.to(dtype), state


def _refuse(other: Any) -> None:
    if other.get("seq_idx") is not None:
        raise liblasp.Unsupported("seq_idx: give cu_seqlens, offsets into the whole of all ranks' tokens")
