"""The delta rule under the names of its papers: linear_attention with beta."""
from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import jax

import liblasp
from liblasp.arguments import describe

from .attention import linear_attention
from .problem import as_array

_Result = Union[jax.Array, Tuple[jax.Array, jax.Array]]


def delta_rule(q: jax.Array, k: jax.Array, v: jax.Array, beta: jax.Array, **options: Any) -> _Result:
    """DeltaNet's attention (arXiv 2406.06484): a token replaces by v what the state holds for its key k,

        S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T        o_t = scale S_t^T q_t

    beta [B, T, H], float32 or the dtype of q, any number; the papers have sigmoids. Keys are taken as they are: give
    them the length 1. q, k, v and the options are linear_attention's, and so are the errors. Since 0.2.
    """
    return _call(q, k, v, None, beta, options)


def gated_delta_rule(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array,
                     **options: Any) -> _Result:
    """Gated DeltaNet's attention (arXiv 2412.06464): delta_rule on a state that first decays by exp(g_t).

    g [B, T, H]: log-decays, at most 0, float32 or the dtype of q. q, k, v and beta as in delta_rule. Since 0.2.
    """
    return _call(q, k, v, g, beta, options, dims="[B, T, H]")


def kda(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, **options: Any) -> _Result:
    """Kimi Delta Attention (arXiv 2510.26692): delta_rule on a state whose key channels first decay by exp(g_t).

    g [B, T, H, K]: log-decays, at most 0, float32 or the dtype of q. q, k, v and beta as in delta_rule. Since 0.2.
    """
    return _call(q, k, v, g, beta, options, dims="[B, T, H, K]")


def _call(q: Any, k: Any, v: Any, g: Optional[Any], beta: Any, options: Any, dims: str = "") -> _Result:
    if beta is None:
        raise liblasp.InvalidArgument("beta: must be an array [B, T, H], not None")
    g = as_array(g)
    if dims and not (isinstance(g, jax.Array) and g.ndim == dims.count(",") + 1):
        found = f"g: has {g.ndim} dimensions" if isinstance(g, jax.Array) else f"g = {describe(g)}"
        raise liblasp.InvalidArgument(f"{found}: must be a JAX array {dims}")
    try:
        return linear_attention(q, k, v, g, beta=beta, **options)
    except liblasp.InvalidArgument as error:
        if not str(error).startswith("decay: "):
            raise
        raise liblasp.InvalidArgument("g" + str(error)[len("decay"):]) from None
