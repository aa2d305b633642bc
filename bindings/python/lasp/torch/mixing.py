"""Whether a model's tokens see each other in any way but lasp.torch's linear attention. It is tried out: a few tokens
in one piece, and the same in two pieces with the states carried over, must give the same."""
from __future__ import annotations

import contextlib
from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

import lasp

from .walking import Walk

_PIECE = 16  # tokens of each of the two pieces
# Far above what rounding does in 16 bits, far below what another set of keys, or another position, does.
_DIFFERENT = 0.1


class _Call(NamedTuple):
    """One call of a module: what it took and gave, as far as it is tensors of all tokens."""

    name: str
    kind: str
    taken: List[torch.Tensor]
    given: List[torch.Tensor]


@torch.no_grad()
def refuse_what_mixes_tokens(model: nn.Module, inputs: Sequence[torch.Tensor]) -> bool:
    """Raises lasp.Unsupported with the module's name. Runs the model, in its evaluation mode, on the first tokens.
    Whether there were enough of them to tell."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise lasp.Unsupported(f"model.{name} ({type(module).__name__}) mixes tokens: its statistics are of a "
                                   "whole batch")
    if inputs[0].shape[1] < 2 * _PIECE:
        return False
    training = [module for module in model.modules() if module.training]
    model.eval()
    torch.clear_autocast_cache()
    try:
        whole, _ = _calls(model, [tensor[:, :2 * _PIECE] for tensor in inputs], None, 2 * _PIECE)
        _, states = _calls(model, [tensor[:, :_PIECE] for tensor in inputs], None, _PIECE)
        second, _ = _calls(model, [tensor[:, _PIECE:2 * _PIECE] for tensor in inputs], states, _PIECE)
    finally:
        for module in training:
            module.training = True
    for one, two in zip(whole, second):
        if not _differ(one.taken, two.taken) and _differ(one.given, two.given):
            raise lasp.Unsupported(f"model{one.name and '.' + one.name} ({one.kind}) mixes tokens, or knows their "
                                   "positions, in another way than by lasp.torch's linear attention: a sequence "
                                   "through it cannot be cut in time")
    return True


def _calls(model, inputs, states, tokens) -> Tuple[List[_Call], Optional[List[torch.Tensor]]]:
    """The calls of all modules as they end, and the states that the last token leaves."""
    calls: List[_Call] = []

    def note(name):
        def hook(module, taken, given):
            calls.append(_Call(name, type(module).__name__, _of_tokens(taken, tokens), _of_tokens(given, tokens)))
        return hook

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules()]
    try:
        with _uncompiled(), Walk(states, tokens, alone=True) as walk:
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, walk.leaving


def _uncompiled():
    """Compiling a model for a few tokens, and with hooks, would take longer than all else here."""
    if not hasattr(torch.compiler, "set_stance"):  # before PyTorch 2.6
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _of_tokens(value, tokens) -> List[torch.Tensor]:
    """The last tokens of each tensor [B, T, ...] of one piece."""
    if isinstance(value, torch.Tensor):
        if value.dim() < 2 or value.shape[1] != tokens:
            return []
        return [value[:, -_PIECE:].detach().float()]
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in _of_tokens(each, tokens)]
    return []


def _differ(some: List[torch.Tensor], others: List[torch.Tensor]) -> bool:
    if len(some) != len(others):
        return True
    return any(a.shape != b.shape or bool((a - b).norm() > _DIFFERENT * a.norm().clamp_min(1e-30))
               for a, b in zip(some, others))
