"""liblasp.jax: linear attention over a split sequence, for JAX.

    from liblasp.jax import linear_attention
    o = linear_attention(q, k, v, decay)                        # whole sequences, on one device
    o = linear_attention(q, k, v, decay, axis_name="sequence")  # inside jax.shard_map: this shard's tokens

delta_rule, gated_delta_rule and kda are the same with the delta rule. The library's passes are XLA custom calls, on the
CPU and on CUDA; between shards JAX's own all-gather moves the states. Since 0.2.
"""
try:
    import jax as _jax
except ImportError as _reason:
    raise ImportError(f"liblasp.jax needs JAX 0.6 or later: pip install jax, or jax[cuda13] for GPUs ({_reason})"
                      ) from _reason

if not (hasattr(_jax, "ffi") and hasattr(_jax, "typeof")):
    raise ImportError(f"liblasp.jax needs JAX 0.6 or later; this is {_jax.__version__}")

from .attention import linear_attention
from .delta import delta_rule, gated_delta_rule, kda

__all__ = ["delta_rule", "gated_delta_rule", "kda", "linear_attention"]
