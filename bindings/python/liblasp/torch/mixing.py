"""Whether a model's tokens see each other in any way but liblasp.torch's linear attention. It is tried out: a few
tokens in one piece, and the same in two pieces with the states carried over, must give the same."""
from __future__ import annotations

import contextlib
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

import liblasp

from .walking import Walk

_PIECE = 16  # tokens of each of the two pieces
# Above what rounding does, below what another set of keys, or another position, does: in float32, and where some of the
# model is in 16 bits.
DIFFERENT, DIFFERENT_IN_16_BITS = 1e-3, 0.1


class Call(NamedTuple):
    """One call of a module: what it took and gave, as far as it is tensors of all tokens."""

    name: str
    kind: str
    taken: List[Optional[torch.Tensor]]
    given: List[Optional[torch.Tensor]]


@torch.no_grad()
def refuse_what_mixes_tokens(model: nn.Module, inputs: Sequence[torch.Tensor]) -> bool:
    """Raises liblasp.Unsupported with the module's name. Runs the model, in its evaluation mode, on the first tokens.
    Whether there were enough of them to tell."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise liblasp.Unsupported(f"model.{name} ({type(module).__name__}) mixes tokens: its statistics are of a "
                                      "whole batch")
    tokens = inputs[0].shape[1]
    piece = min(_PIECE, tokens // 2)
    if piece == 0:
        return False
    training = [module for module in model.modules() if module.training]
    model.eval()
    torch.clear_autocast_cache()
    try:
        whole, second = _without_autocast(inputs[0].device.type, lambda: _both_ways(model, inputs, piece))
    finally:
        for module in training:
            module.training = True
    tensors = [tensor for call in whole for tensor in (*call.taken, *call.given) if tensor is not None]
    coarse = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors)
    different = DIFFERENT_IN_16_BITS if coarse else DIFFERENT
    for one, two in zip(whole, second):
        if differ(one.taken, two.taken, different):  # what the module around it has done
            around = one.name.rpartition(".")[0]
            raise _mixes(around, type(model.get_submodule(around)).__name__)
        if differ(one.given, two.given, different):
            raise _mixes(one.name, one.kind)
    return tokens >= 2 * _PIECE


def _mixes(name: str, kind: str) -> liblasp.Unsupported:
    return liblasp.Unsupported(f"model{name and '.' + name} ({kind}) mixes tokens, or knows their positions, in another "
                               "way than by liblasp.torch's linear attention: a sequence through it cannot be cut in time")


def _both_ways(model, inputs, piece) -> Tuple[List[Call], List[Call]]:
    """The calls on two pieces at once, and on the second one after the first."""
    whole, _ = _calls(model, [tensor[:, :2 * piece] for tensor in inputs], None, 2 * piece, piece)
    _, states = _calls(model, [tensor[:, :piece] for tensor in inputs], None, piece, piece)
    second, _ = _calls(model, [tensor[:, piece:2 * piece] for tensor in inputs], states, piece, piece)
    return whole, second


def _without_autocast(device: str, run):
    """In float32, where the model can: it shows smaller differences."""
    if torch.is_autocast_enabled(device):
        try:
            with torch.autocast(device, enabled=False):
                return run()
        except RuntimeError:  # the model leans on autocast
            pass
    return run()


def _calls(model, inputs, states, tokens, last) -> Tuple[List[Call], Optional[List[torch.Tensor]]]:
    """The calls of all modules as they end, and the states that the last token leaves."""
    with Walk(states, tokens, alone=True) as walk:
        calls = note_calls(model, lambda: model(*inputs), tokens, last)
    return calls, walk.leaving


def note_calls(model: nn.Module, run: Callable[[], Any], tokens: int, last: int) -> List[Call]:
    """The calls of all the model's modules as they end, in a `run` on `tokens` tokens: what of them is of the `last`."""
    calls: List[Call] = []

    def note(name):
        def hook(module, taken, named, given):
            calls.append(Call(name, type(module).__name__, _of_tokens((*taken, *named.values()), tokens, last),
                              _of_tokens(given, tokens, last)))
        return hook

    hooks = [module.register_forward_hook(note(name), with_kwargs=True) for name, module in model.named_modules()]
    try:
        with _uncompiled():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _uncompiled():
    """Compiling a model for a few tokens, and with hooks, would take longer than all else here."""
    if not hasattr(torch.compiler, "set_stance"):  # before PyTorch 2.6
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _of_tokens(value, tokens, last) -> List[Optional[torch.Tensor]]:
    """The last tokens of each tensor [B, T, ...] of real numbers, T the tokens of one piece; None for other tensors."""
    if isinstance(value, torch.Tensor):
        if value.dim() < 2 or value.shape[1] != tokens or not value.is_floating_point():
            return [None]
        return [value[:, -last:].detach()]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in _of_tokens(each, tokens, last)]
    return []


def differ(some: List[Optional[torch.Tensor]], others: List[Optional[torch.Tensor]], different: float) -> bool:
    if len(some) != len(others):
        return True
    return any(a.shape != b.shape
               or bool((a.double() - b.double()).norm() > different * a.double().norm().clamp_min(1e-30))
               for a, b in zip(some, others) if a is not None and b is not None)
