"""Plan: a lasp.Plan for one key, called with torch tensors. Sizes are worked out once, so that a call only reads
addresses."""
from __future__ import annotations

from typing import Dict, Optional, Tuple

import torch

import lasp

from .problem import Key, problem_of


class Plan:
    """Tensors handed to the calls look as the key says; the caller has seen to that by finding the plan."""

    def __init__(self, context: lasp.Context, key: Key, settings: Dict):
        self.key = key
        self._plan = context.plan(problem_of(key, settings))
        info, problem = self._plan.info, self._plan.problem
        if key.total_tokens is not None and key.total_tokens != info.total_tokens:
            self._plan.close()
            raise lasp.InvalidArgument(f"total_tokens = {key.total_tokens}: the ranks hold {info.total_tokens}")
        self.output_shape = (problem.batch, problem.tokens, info.heads, problem.head_dim_v)
        self.state_shape = (info.num_sequences, info.heads, problem.head_dim_k, problem.head_dim_v)
        self.state_cache_bytes = info.state_cache_bytes
        self.workspace_forward_bytes = info.workspace_forward_bytes
        self.workspace_backward_bytes = info.workspace_backward_bytes
        inputs = ("q", "k", "v", "decay", "beta", "initial_state")
        self._bytes = {name: _bytes_of(getattr(key, name)) for name in inputs}

    def forward(self, stream: int, workspace: torch.Tensor, reuse_state_cache: bool, **tensors) -> None:
        tensors["workspace"] = workspace
        self._plan.run_pointers("forward", stream, self._addresses(tensors), reuse_state_cache)

    def backward(self, stream: int, workspace: torch.Tensor, **tensors) -> None:
        tensors["workspace"] = workspace
        self._plan.run_pointers("backward", stream, self._addresses(tensors))

    def step(self, stream: int, **tensors) -> None:
        self._plan.run_pointers("step", stream, self._addresses(tensors))

    def close(self) -> None:
        self._plan.close()

    def _addresses(self, tensors: Dict[str, Optional[torch.Tensor]]) -> Dict[str, Tuple[int, int]]:
        """Inputs may have strides, and their reach is known; everything else is contiguous."""
        known = self._bytes
        return {name: (tensor.data_ptr(), known.get(name) or tensor.nbytes) for name, tensor in tensors.items()
                if tensor is not None}


def _bytes_of(seen: Optional[Tuple]) -> int:
    """From a tensor's first element to the end of its last; 0 for none."""
    if seen is None:
        return 0
    shape, strides, dtype, _ = seen
    if 0 in shape:
        return 0
    return (1 + sum((size - 1) * step for size, step in zip(shape, strides))) * dtype.itemsize
