"""The operations by which tokens see each other, as transformers names them, over a split sequence. Each is made for
one parallelized model and hands on to the model's own where that runs whole; LOCAL keeps every token to itself."""
from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch.nn import functional as F

import liblasp

from ..sharding import gather, last_tokens
from ..softmax import softmax_attention
from . import functions
from .state import LOCAL, WHOLE, Parallel, Share

Operation = Callable[..., Any]


def causal_conv1d_fn(parallel: Parallel, own: Operation) -> Operation:
    def convolve(x, weight, bias=None, activation=None, **other):
        if parallel.prefilled is not None:
            x = _kept(parallel, x, weight.shape[1])
        share = parallel.share(x.shape[-1])
        if share == WHOLE:
            return own(x, weight, bias, activation=activation, **other)
        if share == LOCAL:
            y = x * weight[:, -1:] + (0.0 if bias is None else bias[:, None])
            return F.silu(y) if functions.take_activation(activation) else y
        return functions.causal_conv1d_fn(x, weight, bias, activation, group=parallel.group,
                                          cu_seqlens=share.cu_seqlens, total_tokens=share.total)
    return convolve


def _kept(parallel: Parallel, x: torch.Tensor, width: int) -> torch.Tensor:
    """x without the zeros that a cache puts before few tokens. Its last columns on all ranks are kept for the cache."""
    x = x[..., -parallel.now.tokens:]
    parallel.prefilled.append(last_tokens(x, width, parallel.group, parallel.now.total, dim=2))
    return x


def mamba2_chunk_scan(parallel: Parallel, own: Operation) -> Operation:
    def scan(x, dt, A, B, C, chunk_size=0, D=None, dt_bias=None, initial_states=None, dt_softplus=False,
             dt_limit=(0.0, float("inf")), return_final_states=False, z=None, **other):
        share = parallel.share(x.shape[1])
        if share == WHOLE:
            return own(x, dt, A, B, C, chunk_size=chunk_size, D=D, dt_bias=dt_bias, initial_states=initial_states,
                       dt_softplus=dt_softplus, dt_limit=dt_limit, return_final_states=return_final_states, z=z, **other)
        _refuse_state(initial_states, return_final_states and parallel.prefilled is None)
        if share == LOCAL:
            return x.float()
        return functions.mamba2_chunk_scan(
            x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus, dt_limit=dt_limit,
            return_final_states=return_final_states, cu_seqlens=share.cu_seqlens, group=parallel.group,
            total_tokens=share.total)
    return scan


def mamba2_split_conv1d_scan_combined(parallel: Parallel, own: Operation) -> Operation:
    """A kernel of everything at once, which gives None where there is none: the model then takes the parts."""
    def fused(projected, *arguments, **options):
        return own(projected, *arguments, **options) if parallel.share(projected.shape[1]) == WHOLE else None
    return fused


def _delta_rule(function: Operation) -> Callable[[Parallel, Operation], Operation]:
    def made(parallel: Parallel, own: Operation) -> Operation:
        def delta(q, k, v, g, beta, chunk_size=64, initial_state=None, output_final_state=False,
                  use_qk_l2norm_in_kernel=False, **other):
            share = parallel.share(q.shape[1])
            if share == WHOLE:
                return own(q, k, v, g=g, beta=beta, initial_state=initial_state,
                           output_final_state=output_final_state, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
                           **other)
            keep = parallel.prefilled is not None
            _refuse_state(initial_state, output_final_state and not keep)
            if share == LOCAL:
                return v, None
            return function(q, k, v, g, beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, output_final_state=keep,
                            cu_seqlens=share.cu_seqlens, group=parallel.group, total_tokens=share.total)
        return delta
    return made


class _Attention:
    """What a model finds as ALL_ATTENTION_FUNCTIONS."""

    def __init__(self, parallel: Parallel, own: Any):
        self._parallel, self._own = parallel, own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def get_interface(self, implementation, eager) -> Operation:
        own = self._own.get_interface(implementation, eager)

        def attend(module, q, k, v, attention_mask, dropout=0.0, scaling=None, **other):
            share = self._parallel.share(q.shape[2])
            if share == WHOLE:
                return own(module, q, k, v, attention_mask, dropout=dropout, scaling=scaling, **other)
            return self._attend(module, q, k, v, dropout, scaling, share, other)
        return attend

    def _attend(self, module, q, k, v, dropout, scaling, share, other):
        where = f"{type(module).__module__}.{type(module).__name__}"
        if other.get("is_causal", getattr(module, "is_causal", True)) is False:
            raise liblasp.Unsupported(f"{where}: attends to later tokens")
        for name in ("softcap", "position_bias", "s_aux"):
            if other.get(name) is not None:
                raise liblasp.Unsupported(f"{where}: attends with {name}, which a split sequence does not serve")
        if share == LOCAL:
            return v.repeat_interleave(q.shape[1] // v.shape[1], 1).transpose(1, 2), None
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        o = softmax_attention(q, k, v, self._parallel.group, scale=scaling, cu_seqlens=share.cu_seqlens,
                              key_mask=share.mask, window=other.get("sliding_window"), dropout=dropout,
                              total_tokens=share.total)
        return o, None


def no_mask(parallel: Parallel, own: Operation) -> Operation:
    """Softmax attention finds its own masks, which would be as large as the square of the tokens."""
    def mask(*arguments, **options):
        return own(*arguments, **options) if parallel.share(_tokens(options)) == WHOLE else None
    return mask


def padding_mask(parallel: Parallel, own: Operation) -> Operation:
    def mask(*arguments, **options):
        share = parallel.share(_tokens(options))
        if share == WHOLE:
            return own(*arguments, **options)
        return None if share == LOCAL or share.mask is None else share.mask.to(options["attention_mask"].dtype)
    return mask


def _tokens(options: Dict[str, Any]) -> int:
    return options["inputs_embeds"].shape[1]


def load_balancing_loss_func(parallel: Parallel, own: Operation) -> Operation:
    """The auxiliary loss of routers is no sum over tokens: it is found of all ranks' tokens, on each rank."""
    def balance(gate_logits, num_experts=None, top_k=2, attention_mask=None):
        if not isinstance(parallel.now, Share) or not isinstance(gate_logits, tuple):
            return own(gate_logits, num_experts, top_k, attention_mask)
        share, group = parallel.now, parallel.group
        whole = tuple(gather(each.reshape(-1, share.tokens, each.shape[-1]), group, share.total).flatten(0, 1)
                      for each in gate_logits)
        mask = None
        if attention_mask is not None:
            mask = gather(attention_mask, group, share.total)
        loss = own(whole, num_experts, top_k, mask)
        part = loss / group.size  # each rank's backward pass is a part of one
        return part + (loss - part).detach()
    return balance


def _refuse_state(initial: Any, final: bool) -> None:
    if initial is not None or final:
        raise liblasp.Unsupported("a cache in a split model: call it with use_cache=False, as shard has it")


# By the names that forward passes of transformers look up.
OPERATIONS: Dict[str, Callable[[Parallel, Any], Any]] = {
    "causal_conv1d_fn": causal_conv1d_fn,
    "mamba2_chunk_scan": mamba2_chunk_scan,
    "mamba2_split_conv1d_scan_combined": mamba2_split_conv1d_scan_combined,
    "torch_chunk_gated_delta_rule": _delta_rule(functions.torch_chunk_gated_delta_rule),
    "chunk_kimi_delta_attention": _delta_rule(functions.chunk_kimi_delta_attention),
    "ALL_ATTENTION_FUNCTIONS": _Attention,
    "create_causal_mask": no_mask,
    "create_sliding_window_causal_mask": no_mask,
    "create_recurrent_attention_mask": padding_mask,
    "load_balancing_loss_func": load_balancing_loss_func,
}
