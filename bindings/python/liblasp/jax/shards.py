"""The passes inside jax.shard_map: two stages, with an all-gather of JAX's between.

One compiled program runs on every shard, and which shard it is only the running program knows. So every shard asks the
library for rank 1 of 3, which has neither a beginning nor an end: the state that enters comes from the maps that were
gathered, and the shard's own number only chooses among arrays. Packed sequences are told to the library from the first
token of the shard before, so that none begins at this shard's first token that does not begin there.
"""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import jax.numpy as jnp
from jax import lax

from liblasp import raw

from . import maps, native
from .problem import SHARD, Sizes


def forward(call: Any, given: Dict[str, Any], backward: bool) -> Tuple[Any, Optional[Any], Any]:
    """o; the final states on the shards that hold the ends of sequences, zero on others; state cache."""
    problem, sizes = call.problem, call.problem.sizes(SHARD, call.device, backward)
    ranks, rank = call.ranks, lax.axis_index(call.axes)
    layout, operands = _layout(problem, sizes), _of_shard(problem, given, rank)
    first = given["initial_state"]
    cache, carry = native.memory(sizes.state_cache), native.memory(sizes.carry_forward)
    reads = {name: operands[name] for name in ("k", "v", "decay", "beta", "initial_state", "cu_seqlens")}
    if call.device.kind == raw.LASP_DEVICE_CPU:  # which can look at them
        reads["offsets"] = given["cu_seqlens"]
    stage = native.call("summarize", {**problem.attributes(backward), "total_tokens": ranks * problem.tokens}, reads,
                        {"maps": native.floats(sizes.map), "state_cache": cache, "carry": carry,
                         "workspace": native.memory(sizes.workspace_forward)})
    own = stage["maps"]
    sent, first = maps.entered(layout, own, rank == 0, None if first is None else first[:layout.state_shape[0]])
    incoming = maps.incoming(layout, sent, call.axes, lambda other: other < rank, first, range(ranks - 1))
    packed = problem.max_sequences > 0
    final = (problem.state_shape, jnp.float32) if call.output_final_state and packed else None
    made = native.call("apply", problem.attributes(backward), {
        **operands, "incoming": incoming, "state_cache": stage.get("state_cache"), "carry": stage.get("carry"),
        "final_state": None if final is None else jnp.zeros(*final)}, {
            "o": (problem.o_shape, given["q"].dtype), "final_state": final, "state_cache": cache, "carry": carry,
            "workspace": native.memory(sizes.workspace_forward)})
    final_state = made.get("final_state")
    if call.output_final_state and not packed:
        final_state = jnp.where(rank == ranks - 1, maps.applied(layout, own, incoming), 0)
    return made["o"], final_state, made.get("state_cache")


def backward(call: Any, given: Dict[str, Any], state_cache: Any, d_o: Any, d_final_state: Any) -> Dict[str, Any]:
    """All gradients by name; that of the initial state on the shards where sequences begin, zero on others."""
    from .passes import gradients_of

    problem, sizes = call.problem, call.problem.sizes(SHARD, call.device, True)
    ranks, rank = call.ranks, lax.axis_index(call.axes)
    layout, operands = _layout(problem, sizes), _of_shard(problem, given, rank)
    packed = problem.max_sequences > 0
    operands.update(d_o=d_o, d_final_state=d_final_state if packed else None, state_cache=state_cache)
    reads = ["q", "decay", "d_o", "d_final_state", "cu_seqlens"]
    if problem.write == raw.LASP_WRITE_DELTA:
        reads += ["k", "beta", "state_cache"]
    carry = native.memory(sizes.carry_backward)
    workspace = native.memory(sizes.workspace_backward)
    stage = native.call("summarize_backward", problem.attributes(True), {name: operands[name] for name in reads},
                        {"maps": native.floats(sizes.map), "carry": carry, "workspace": workspace})
    own = stage["maps"]
    # Packed, a sequence's gradient enters where it ends, which the library sees to.
    sent, last = maps.entered(layout, own, rank == ranks - 1, None if packed else d_final_state)
    incoming = maps.incoming(layout, sent, call.axes, lambda other: other > rank, last, range(ranks - 1, 0, -1))
    wanted = gradients_of(given)
    d_initial_state = wanted.pop("d_initial_state")
    if d_initial_state is not None and packed:
        wanted["d_initial_state"] = d_initial_state
        operands["d_initial_state"] = jnp.zeros(*d_initial_state)
    found = native.call("apply_backward", problem.attributes(True),
                        {**operands, "incoming": incoming, "carry": stage.get("carry")},
                        {**wanted, "carry": carry, "workspace": workspace})
    if d_initial_state is not None:
        began = maps.applied(layout, own, incoming)
        if packed:  # of the sequence that the first shard begins with, which came in there
            here = (rank == 0) & (given["cu_seqlens"][1] > 0)
            found["d_initial_state"] += maps.beginning(jnp.where(here, began, 0), problem.max_sequences)
        else:
            found["d_initial_state"] = jnp.where(rank == 0, began, 0)
    return found


def _layout(problem: Any, sizes: Sizes) -> maps.Layout:
    rows = 1 if problem.max_sequences else problem.batch
    return maps.Layout((rows, *problem.state_shape[1:]), sizes.transition, sizes.transition_at // 4)


def _of_shard(problem: Any, given: Dict[str, Any], rank: Any) -> Dict[str, Any]:
    """A call's operands. An initial state is the library's business only where sequences are packed."""
    if not problem.max_sequences:
        return {**given, "initial_state": None}
    offsets = given["cu_seqlens"]
    moved = jnp.clip(offsets + (1 - rank.astype(offsets.dtype)) * problem.tokens, 0, 3 * problem.tokens)
    return {**given, "cu_seqlens": jnp.where(lax.iota(jnp.int32, problem.max_sequences + 1) == 0, 0, moved)}
