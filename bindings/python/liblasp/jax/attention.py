"""linear_attention: the library's forward and backward as one differentiable function of JAX arrays."""
from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np

from liblasp.arguments import check_offsets, take_flag, take_offsets

from . import varying
from .passes import Call, attend
from .problem import ALONE, SHARD, as_array, device_of, problem_of


def linear_attention(q: jax.Array, k: jax.Array, v: jax.Array, decay: Optional[jax.Array] = None, *,
                     beta: Optional[jax.Array] = None, initial_state: Optional[jax.Array] = None,
                     cu_seqlens: Union[None, jax.Array, Sequence[int]] = None, scale: Optional[float] = None,
                     causal: bool = True, axis_name: Any = None, output_final_state: bool = False,
                     state_cache: str = "chunks") -> Union[jax.Array, Tuple[jax.Array, jax.Array]]:
    """Linear attention, of whole sequences or, inside jax.shard_map, of this shard's tokens of sequences that are split
    over the mesh axis `axis_name` (LASP, arXiv 2404.02882):

        S_t = exp(g_t) S_{t-1} + k_t v_t^T        o_t = scale S_t^T q_t

    q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, Hv, V], of one dtype (float32, bfloat16, float16);
    H = max(Hq, Hk, Hv), each divides it. Gives o [B, T, H, V], and with output_final_state=True (o, final_state). Works
    under jit, grad, scan, checkpoint and vmap (one after the other); second and forward-mode derivatives raise.

    decay: log-decays, at most 0: None, [H] (float32), [B, T, H] or [B, T, H, K]; the last two float32 or the dtype of q.
    beta: [B, T, H], float32 or the dtype of q: the delta rule, whose names are delta_rule, gated_delta_rule and kda;
      with causal=True.
    initial_state: float32 [N, H, K, V], read by the shard where a sequence begins. Give the same on every shard.
    cu_seqlens: packed sequences: N + 1 offsets into the tokens of all shards, the same on every shard, B = 1. Behind
      the last one is padding, where o is zero. Whole numbers, which are checked here, or an array of int32 or int64:
      offsets in an array are checked on the CPU when the program runs, and not on a GPU.
    scale: multiplies o; None: 1 / sqrt(K).
    causal: False reads the whole sequence at every token, without decay and without axis_name.
    axis_name: a mesh axis, or a tuple of them, whose shards hold a sequence one after the other; None: whole sequences.
    final_state: float32 [N, H, K, V], the same on every shard.
    state_cache: what is kept for the backward pass: "chunks" (fast) or "incoming" (small, recomputes).

    Raises liblasp.InvalidArgument (a ValueError) and liblasp.Unsupported when it is traced. What is only found when the
    program runs is JAX's own error, with the library's sentence.
    """
    output_final_state = take_flag(output_final_state, "output_final_state")
    q, k, v, decay, beta, initial_state = map(as_array, (q, k, v, decay, beta, initial_state))
    axes, ranks = varying.ranks_of(axis_name)
    if cu_seqlens is not None and not isinstance(cu_seqlens, jax.Array):
        offsets = take_offsets(cu_seqlens)
        if hasattr(q, "shape") and len(q.shape) == 4:
            check_offsets(offsets, ranks * q.shape[1], padded=True)
        cu_seqlens = jnp.asarray(np.asarray(offsets), jnp.int32)
    problem = problem_of(q, k, v, decay, beta, initial_state, cu_seqlens, scale, causal, state_cache)
    device = device_of(q, k, v)
    problem.sizes(SHARD if axes else ALONE, device, True)  # refuses here, not somewhere below
    call = Call(problem, device, axes, ranks, output_final_state)
    o, final_state = attend(call, *_alike((q, k, v, decay, beta, initial_state, cu_seqlens)))
    if not output_final_state:
        return o
    if axes:
        final_state = jax.lax.psum(final_state, axes)
        if cu_seqlens is not None:  # a sequence without tokens hands its state through
            empty = jnp.equal(cu_seqlens[1:], cu_seqlens[:-1])
            final_state = jnp.where(empty[:, None, None, None], 0 if initial_state is None else initial_state, final_state)
    return o, final_state


def _alike(inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Inputs that vary over the same axes of the mesh, so that gradients of those that are the same on several shards are
    summed over them."""
    alike = iter(varying.alike(array for array in inputs if array is not None)[0])
    return tuple(None if array is None else next(alike) for array in inputs)
