"""What lies between the stages of a pass: the shards' maps, folded by JAX's own operations.

A map is [n] float32 as lasp.h lays it out: a state [rows, H, K, V], and how the state that enters is multiplied. Which
shards' maps count is said by the shard's number, which is an array: one program serves all shards.
"""
from __future__ import annotations

from typing import Callable, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp
from jax import lax

from liblasp import raw


class Layout(NamedTuple):
    """Of a map."""

    state_shape: Tuple[int, int, int, int]  # [rows, H, K, V]
    transition: int                         # LASP_TRANSITION_*
    transition_at: int                      # in float32 elements


def state_of(layout: Layout, one: jax.Array) -> jax.Array:
    rows, heads, k, v = layout.state_shape
    return one[:rows * heads * k * v].reshape(layout.state_shape)


def through(layout: Layout, one: jax.Array, state: jax.Array) -> jax.Array:
    """M `state`, with the map's M. What is forgotten is not multiplied: NaN and infinity do not pass."""
    rows, heads, k, _ = layout.state_shape
    shape = {raw.LASP_TRANSITION_SCALAR: (rows, heads, 1, 1), raw.LASP_TRANSITION_DIAGONAL: (rows, heads, k, 1),
             raw.LASP_TRANSITION_DENSE: (rows, heads, k, k)}.get(layout.transition)
    if shape is None:  # identity
        return state
    count = shape[0] * shape[1] * shape[2] * shape[3]
    x = one[layout.transition_at:layout.transition_at + count].reshape(shape)
    if layout.transition == raw.LASP_TRANSITION_DENSE:
        product = jnp.matmul(x, state, precision=lax.Precision.HIGHEST)
        return jnp.where(jnp.any(x != 0, axis=(2, 3), keepdims=True), product, 0)
    return jnp.where(jnp.signbit(x), state + x * state, jnp.where(x != 0, x * state, 0))


def applied(layout: Layout, one: jax.Array, state: jax.Array) -> jax.Array:
    """The state that leaves, of one that enters."""
    return through(layout, one, state) + state_of(layout, one)


def beginning(rows: jax.Array, size: int) -> jax.Array:
    """Rows, and behind them zeros up to `size`. (XLA of JAX 0.11 ends the process over the constants that `.at` makes.)"""
    return lax.pad(rows, jnp.zeros((), rows.dtype), [(0, size - rows.shape[0], 0)] + [(0, 0, 0)] * (rows.ndim - 1))


def entered(layout: Layout, own: jax.Array, at: jax.Array, first: Optional[jax.Array]
            ) -> Tuple[jax.Array, Optional[jax.Array]]:
    """This shard's map with `first`, the state that enters the sequence, in it where `at` is true, so that it travels
    with the maps; and `first` there, zero on other shards."""
    if first is None:
        return own, None
    first = jnp.where(at, first, 0)
    carried = through(layout, own, first).reshape(-1)
    return own + beginning(carried, own.shape[0]), first


def incoming(layout: Layout, own: jax.Array, axis_name: object, counts: Callable[[int], jax.Array],
             first: Optional[jax.Array], ranks: range) -> jax.Array:
    """The state that enters this shard: the maps of the shards that count, in the order of `ranks`, one after the other;
    or `first`, where no other comes before."""
    everyone = lax.all_gather(own, axis_name)
    state = jnp.zeros(layout.state_shape, jnp.float32)
    for rank in ranks:
        state = jnp.where(counts(rank), applied(layout, everyone[rank], state), state)
    return state if first is None else state + first
