"""Decays so slow that what a rank should know of those before cannot fade away unnoticed."""
from __future__ import annotations

import contextlib
from typing import Iterator

import torch
from torch import nn

# A parameter or buffer that holds decays, and what makes them slow: decays of 0.99 and above a token.
_LOGS = ("A_log", "log_rate")                  # logarithms of rates: set
_RATES = ("slopes", "slope_rate")              # rates, of either sign: multiplied, and none beyond _SLOWER
_SLOW_LOG, _SLOWER = -6.0, 2.0**-6


@contextlib.contextmanager
def slow_decays(model: nn.Module) -> Iterator[int]:
    """Inside, the model's decays are slow where they are found by their names; gives how many tensors that are."""
    kept = []
    with torch.no_grad():
        for module in model.modules():
            own = {**module._parameters, **module._buffers}
            for name in (*_LOGS, *_RATES):
                if own.get(name) is None:
                    continue
                kept.append((own[name], own[name].clone()))
                own[name].fill_(_SLOW_LOG) if name in _LOGS else own[name].mul_(_SLOWER).clamp_(-_SLOWER, _SLOWER)
            if own.get("slope_rate") is not None and hasattr(module, "decay_factors"):  # MiniMax keeps powers of it too
                for name, factors in zip(("query_decay", "key_decay", "diagonal_decay"),
                                         module.decay_factors(module.slope_rate)):
                    kept.append((own[name], own[name].clone()))
                    own[name].copy_(factors)
    try:
        yield len(kept)
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
