"""Plan: a liblasp.Plan for one key, called with torch tensors. What a call needs beside them is worked out once."""
from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import torch

import liblasp
from liblasp.arrays import torch_output_maker, torch_stream

from .problem import Key

# What is said to a pass (native.h): gradients and negations are seen to here; the state cache is full already.
_VOUCHED, _REUSE_CACHE = 2, 1


class Plan:
    """Tensors handed to the calls look as the key says, or are refused by name. On a GPU a call is ordered on the
    caller's current stream."""

    offsets: Optional[torch.Tensor] = None  # of packed sequences: those of a PackedPlan

    def __init__(self, context: liblasp.Context, key: Key, problem: liblasp.Problem):
        self.key = key
        self._plan = context.plan(problem)
        info = self._plan.info
        # How other ranks learn that this one fails before the library's call, in which they wait for it.
        self.give_up_forward = self._plan._pass_forward.tell_others
        self.give_up_backward = self._plan._pass_backward.tell_others
        if key.total_tokens is not None and key.total_tokens != info.total_tokens:
            self.give_up_forward()
            self._plan.close()
            raise liblasp.InvalidArgument(f"total_tokens = {key.total_tokens}: the ranks hold {info.total_tokens}")
        dtype, self.device = key.q[2:]
        self.on_cpu = self.device.type == "cpu"
        self.output_shape = (problem.batch, problem.tokens, info.heads, problem.head_dim_v)
        one = torch.empty(1, dtype=dtype, device=self.device)
        self.new_output: Callable[[Any], torch.Tensor] = torch_output_maker(one, self.output_shape)
        # Of q, k, v, decay and beta, where there is one.
        self.new_gradients: Tuple[Optional[Callable[[Any], torch.Tensor]], ...] = tuple(
            given and torch_output_maker(
                one if given[2] == dtype else torch.empty(1, dtype=given[2], device=self.device), given[0])
            for given in key[:5]) if key.backward else ()
        self.state_shape = (info.num_sequences, info.heads, problem.head_dim_k, problem.head_dim_v)
        self.state_cache_bytes = info.state_cache_bytes
        self.workspace_forward_bytes = info.workspace_forward_bytes
        self.workspace_backward_bytes = info.workspace_backward_bytes
        self._forward, self._backward = self._plan._pass_forward.run, self._plan._pass_backward.run
        self._step = self._plan._pass_step.run
        self.pack_forward, self.pack_backward = self._plan._pass_forward.pack, self._plan._pass_backward.pack

    def forward(self, workspace: Optional[torch.Tensor], reuse_state_cache: bool, q, k, v, decay, beta,
                initial_state, o, final_state, state_cache) -> None:
        said = _VOUCHED | _REUSE_CACHE if reuse_state_cache else _VOUCHED
        self._forward(None if self.on_cpu else self._stream(), said, q, k, v, decay, beta, initial_state, o,
                      final_state, state_cache, workspace)

    def backward(self, workspace: Optional[torch.Tensor], inputs: Tuple[Optional[torch.Tensor], ...], d_o,
                 d_final_state, state_cache, dq, dk, dv, d_decay, d_beta, d_initial_state) -> None:
        q, k, v, decay, beta, initial_state = inputs
        self._backward(None if self.on_cpu else self._stream(), _VOUCHED, q, k, v, decay, beta, initial_state, d_o,
                       d_final_state, state_cache, dq, dk, dv, d_decay, d_beta, d_initial_state, workspace)

    def step(self, q, k, v, decay, beta, state, o) -> None:
        self._step(None if self.on_cpu else self._stream(), _VOUCHED, q, k, v, decay, beta, state, o)

    def close(self) -> None:
        self._plan.close()

    def _stream(self) -> int:
        return torch_stream(self.device.index)
