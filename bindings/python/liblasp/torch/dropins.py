"""Functions of other packages by their names and signatures, over a split sequence: what stands in a model's code is
replaced by an import and a `group`. Arguments that say how a kernel computes (chunk sizes, normalisation of rows in
the kernel) mean what they mean there; those that liblasp has no counterpart for are refused where they are given."""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch.nn import functional as F

import liblasp

from .attention import linear_attention
from .convolution import causal_conv1d
from .delta_layers import unit_length
from .problem import invalid_argument
from .sequence_group import Group, sequence_group

_Output = Tuple[torch.Tensor, Optional[torch.Tensor]]


def chunk_gated_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
                           scale: Optional[float] = None, initial_state: Optional[torch.Tensor] = None,
                           output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
                           cu_seqlens: Any = None, *, group: Group = None, total_tokens: Optional[int] = None,
                           **other: Any) -> _Output:
    """flash-linear-attention's fla.ops.gated_delta_rule.chunk_gated_delta_rule, over the `group`: (o, final state or
    None). q and k [B, T, Hk, K], v [B, T, H, V], g and beta [B, T, H]; cu_seqlens and the state as in
    linear_attention; with a group the final state is the same on every rank.

    What fla's layers say beside it is done before the kernel here: use_gate_in_kernel with A_log and dt_bias makes
    log-decays of g, use_beta_sigmoid_in_kernel (and allow_neg_eigval: twice that) makes beta. state_v_first means
    states [N, H, V, K]."""
    return _delta(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens,
                  group, total_tokens, other)


def chunk_kda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
              scale: Optional[float] = None, initial_state: Optional[torch.Tensor] = None,
              output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None, *,
              group: Group = None, total_tokens: Optional[int] = None, **other: Any) -> _Output:
    """fla.ops.kda.chunk_kda: as chunk_gated_delta_rule, with g [B, T, H, K]; lower_bound as there."""
    return _delta(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens,
                  group, total_tokens, other)


def chunk_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor,
                     scale: Optional[float] = None, initial_state: Optional[torch.Tensor] = None,
                     output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None, *,
                     group: Group = None, total_tokens: Optional[int] = None, **other: Any) -> _Output:
    """fla.ops.delta_rule.chunk_delta_rule: as chunk_gated_delta_rule, without decay."""
    return _delta(q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens,
                  group, total_tokens, other)


def chunk_simple_gla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: Optional[torch.Tensor] = None,
                     g_gamma: Optional[torch.Tensor] = None, scale: Optional[float] = None,
                     initial_state: Optional[torch.Tensor] = None, output_final_state: bool = False,
                     cu_seqlens: Any = None, *, group: Group = None, total_tokens: Optional[int] = None,
                     **other: Any) -> _Output:
    """fla.ops.simple_gla.chunk_simple_gla, over the `group`: g [B, T, H] or g_gamma [H] are log-decays."""
    v_first = _v_first(other)
    _refuse_others(other)
    if g is not None and g_gamma is not None:
        raise liblasp.Unsupported("g and g_gamma together: give their sum as g")
    return _attend(q, k, v, g_gamma if g is None else g, None, scale, initial_state, output_final_state, cu_seqlens,
                   group, total_tokens, v_first)


def chunk_retention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: Optional[float] = None,
                    initial_state: Optional[torch.Tensor] = None, output_final_state: bool = False,
                    cu_seqlens: Any = None, *, group: Group = None, total_tokens: Optional[int] = None,
                    **other: Any) -> _Output:
    """fla.ops.retention.chunk_retention, over the `group`: RetNet's log-decays, log(1 - 2^(-5 - h)) of head h."""
    gamma = torch.log1p(-(2.0 ** (-5.0 - torch.arange(q.shape[2], dtype=torch.float32, device=q.device))))
    return chunk_simple_gla(q, k, v, None, gamma, scale, initial_state, output_final_state, cu_seqlens, group=group,
                            total_tokens=total_tokens, **other)


def chunk_lightning_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer_idx: int, num_layers: int,
                         scale: Optional[float] = None, initial_state: Optional[torch.Tensor] = None,
                         output_final_state: bool = False, cu_seqlens: Any = None, *, group: Group = None,
                         total_tokens: Optional[int] = None, **other: Any) -> _Output:
    """fla.ops.lightning_attn.chunk_lightning_attn, over the `group`: log-decays -8 h / H (1 - layer_idx / num_layers)
    of head h."""
    heads = q.shape[2]
    gamma = torch.arange(heads, dtype=torch.float32, device=q.device) * -(8 / heads * (1 - layer_idx / num_layers))
    return chunk_simple_gla(q, k, v, None, gamma, scale, initial_state, output_final_state, cu_seqlens, group=group,
                            total_tokens=total_tokens, **other)


def chunk_gla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, scale: Optional[float] = None,
              initial_state: Optional[torch.Tensor] = None, output_final_state: bool = False, cu_seqlens: Any = None, *,
              group: Group = None, total_tokens: Optional[int] = None, **other: Any) -> _Output:
    """fla.ops.gla.chunk_gla, over the `group`: g [B, T, H, K] are log-decays."""
    v_first = _v_first(other)
    _refuse_others(other)
    return _attend(q, k, v, g, None, scale, initial_state, output_final_state, cu_seqlens, group, total_tokens, v_first)


def mamba_chunk_scan_combined(x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor,
                              chunk_size: int = 0, D: Optional[torch.Tensor] = None, z: Optional[torch.Tensor] = None,
                              dt_bias: Optional[torch.Tensor] = None, initial_states: Optional[torch.Tensor] = None,
                              seq_idx: Optional[torch.Tensor] = None, cu_seqlens: Any = None, dt_softplus: bool = False,
                              dt_limit: Tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False, *,
                              group: Group = None, total_tokens: Optional[int] = None,
                              **other: Any) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """mamba_ssm's mamba_chunk_scan_combined, Mamba-2's recurrence, over the `group`: o [B, T, H, P] of x [B, T, H, P],
    dt [B, T, H], A [H], B and C [B, T, G, N], D [H] or [H, P], dt_bias [H]; states [B, H, P, N]. Packed by cu_seqlens
    of all ranks' tokens; seq_idx is refused."""
    _refuse_others(other)
    if seq_idx is not None:
        raise liblasp.Unsupported("seq_idx: give cu_seqlens, offsets into the whole of all ranks' tokens")
    _refuse_growth("A", A, group)
    dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    dt = torch.clamp(F.softplus(dt) if dt_softplus else dt, *dt_limit)
    state = None if initial_states is None else initial_states.float().transpose(-1, -2).contiguous()
    o, final = _attend(C, B.to(C.dtype), (x.float() * dt[..., None]).to(C.dtype), dt * A.float(), None, 1.0, state,
                       return_final_states, cu_seqlens, group, total_tokens)
    if D is not None:
        o = o.float() + (D if D.dim() == 2 else D[:, None]).float() * x.float()
    if z is not None:
        o = o.float() * F.silu(z.float())
    o = o.to(x.dtype)
    return (o, final.transpose(-1, -2)) if return_final_states else o


def causal_conv1d_fn(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None,
                     seq_idx: Optional[torch.Tensor] = None, initial_states: Optional[torch.Tensor] = None,
                     return_final_states: bool = False, final_states_out: Optional[torch.Tensor] = None,
                     activation: Optional[str] = None, *, group: Group = None, cu_seqlens: Any = None,
                     total_tokens: Optional[int] = None) -> torch.Tensor:
    """causal_conv1d's causal_conv1d_fn, over the `group`: x [B, C, T], weight [C, width]. Packed by cu_seqlens of all
    ranks' tokens; seq_idx and states are refused."""
    given = {"seq_idx": seq_idx, "initial_states": initial_states, "final_states_out": final_states_out,
             "return_final_states": return_final_states or None}
    _refuse_others(given)
    y = causal_conv1d(x.transpose(1, 2), weight, bias, activation="silu" if activation == "swish" else activation,
                      group=group, cu_seqlens=cu_seqlens, total_tokens=total_tokens)
    return y.transpose(1, 2)


def _delta(q, k, v, g, beta, scale, initial_state, output_final_state, unit, cu_seqlens, group, total_tokens,
           other) -> _Output:
    v_first, g, beta = _v_first(other), _log_decay(g, other), _beta(beta, other)
    _refuse_others(other)
    if unit:
        q, k = unit_length(q), unit_length(k)
    return _attend(q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, group, total_tokens, v_first)


def _v_first(other: Dict[str, Any]) -> bool:
    return bool(other.pop("state_v_first", False))


def _log_decay(g, other: Dict[str, Any]):
    """What fla's kernels make of g, where they are told to."""
    if not other.get("use_gate_in_kernel"):
        return g
    A_log, bias, bound = other.pop("A_log", None), other.pop("dt_bias", None), other.pop("lower_bound", None)
    for name in ("use_gate_in_kernel", "safe_gate"):
        other.pop(name, None)
    if A_log is None and bound is None:
        raise invalid_argument("A_log: is missing, use_gate_in_kernel=True needs it, or lower_bound")
    of_head = (-1,) + (1,) * (g.dim() - 3)
    x = g.float() if bias is None else g.float() + bias.float().reshape(g.shape[2:])
    rate = None if A_log is None else A_log.float().reshape(of_head).exp()
    if bound is not None:
        return bound * torch.sigmoid(x if rate is None else rate * x)
    return -rate * F.softplus(x)


def _beta(beta, other: Dict[str, Any]):
    sigmoid, twice = other.pop("use_beta_sigmoid_in_kernel", False), other.pop("allow_neg_eigval", False)
    if twice and not sigmoid:
        raise invalid_argument("allow_neg_eigval=True: needs use_beta_sigmoid_in_kernel=True")
    return beta if not sigmoid else (2.0 if twice else 1.0) * torch.sigmoid(beta.float())


def _attend(q, k, v, decay, beta, scale, initial_state, output_final_state, cu_seqlens, group, total_tokens,
            v_first=False) -> _Output:
    if v_first and initial_state is not None:
        initial_state = initial_state.transpose(-1, -2).contiguous()
    _refuse_growth("g", decay, group)
    if decay is not None and decay.dtype not in (torch.float32, q.dtype):
        decay = decay.float()
    o = linear_attention(q, k, v, decay, beta=beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens,
                         output_final_state=output_final_state, broadcast_final_state=output_final_state,
                         group=group, total_tokens=total_tokens)
    if not output_final_state:
        return o, None
    return (o[0], o[1].transpose(-1, -2)) if v_first else o


def _refuse_others(given: Dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and value is not False and name not in _SAID_TO_A_KERNEL:
            raise liblasp.Unsupported(f"{name}: has no counterpart in liblasp.torch")


_SAID_TO_A_KERNEL = {"chunk_size", "disable_recompute"}


def _refuse_growth(name: str, decay: Optional[torch.Tensor], group: Group) -> None:
    """A log-decay above 0 is a mistake of sign more often than not. On a GPU nobody waits to look."""
    if decay is None or not decay.is_cpu:
        return
    above = (decay.detach() > 0).nonzero()
    if len(above):
        sequence_group(group).give_up(decay.device)
        at = above[0].tolist()
        raise invalid_argument(f"{name}{at} = {float(decay[tuple(at)]):.3g}: is a log-decay above 0, by which the state "
                               "would grow")
