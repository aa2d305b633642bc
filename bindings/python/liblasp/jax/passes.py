"""The differentiable function below linear_attention: one custom call forward and one backward, or the stages of
shards.py. The state cache is a result of the first, and workspace too, so that XLA plans all memory."""
from __future__ import annotations

from functools import partial
from typing import Any, Dict, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp

from . import native, shards
from .problem import ALONE, Device, Problem

Inputs = Tuple[Any, Any, Any, Any, Any, Any, Any]  # q, k, v, decay, beta, initial_state, cu_seqlens
NAMES = ("q", "k", "v", "decay", "beta", "initial_state", "cu_seqlens")


class Call(NamedTuple):
    """What a call is but for its arrays. Hashable."""

    problem: Problem
    device: Device
    axes: Tuple[Any, ...]  # of the mesh, whose shards hold a sequence together; none: whole sequences
    ranks: int
    output_final_state: bool


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(call: Call, *inputs: Any) -> Tuple[Any, Optional[Any]]:
    """o, and the final state or None."""
    return _forward(call, inputs, False)[:2]


def _forward(call: Call, inputs: Inputs, backward: bool) -> Tuple[Any, Optional[Any], Any]:
    return (shards.forward if call.axes else forward)(call, dict(zip(NAMES, inputs)), backward)


def _attend_forward(call: Call, *inputs: Any) -> Tuple[Any, Any]:
    o, final_state, state_cache = _forward(call, inputs, True)
    return (o, final_state), (inputs, state_cache)


def _attend_backward(call: Call, kept: Any, gradients: Any) -> Tuple[Any, ...]:
    (inputs, state_cache), (d_o, d_final_state) = kept, gradients
    given = dict(zip(NAMES, inputs))
    found = (shards.backward if call.axes else backward)(call, given, state_cache, d_o, d_final_state)
    names = ("dq", "dk", "dv", "d_decay", "d_beta", "d_initial_state")
    return (*(None if given[name] is None else found[gradient] for name, gradient in zip(NAMES, names)), None)


attend.defvjp(_attend_forward, _attend_backward)


def forward(call: Call, given: Dict[str, Any], backward: bool) -> Tuple[Any, Optional[Any], Any]:
    """Of whole sequences: o, final state, state cache."""
    problem = call.problem
    sizes = problem.sizes(ALONE, call.device, backward)
    made = native.call("forward", problem.attributes(backward), given, {
        "o": (problem.o_shape, given["q"].dtype),
        "final_state": (problem.state_shape, jnp.float32) if call.output_final_state else None,
        "state_cache": native.memory(sizes.state_cache), "workspace": native.memory(sizes.workspace_forward)})
    return made["o"], made.get("final_state"), made.get("state_cache")


def backward(call: Call, given: Dict[str, Any], state_cache: Any, d_o: Any, d_final_state: Any) -> Dict[str, Any]:
    """Of whole sequences: all gradients by name."""
    problem = call.problem
    sizes = problem.sizes(ALONE, call.device, True)
    operands = {**given, "d_o": d_o, "d_final_state": d_final_state, "state_cache": state_cache}
    return native.call("backward", problem.attributes(True), operands,
                       {**gradients_of(given), "workspace": native.memory(sizes.workspace_backward)})


def gradients_of(given: Dict[str, Any]) -> Dict[str, Any]:
    """The results of a backward pass."""
    names = {"dq": "q", "dk": "k", "dv": "v", "d_decay": "decay", "d_beta": "beta", "d_initial_state": "initial_state"}
    return {gradient: None if given[name] is None else (given[name].shape, given[name].dtype)
            for gradient, name in names.items()}
