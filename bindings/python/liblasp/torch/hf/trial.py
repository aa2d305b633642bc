"""Whether a model's tokens see each other by the known operations alone. With these kept local, other tokens in front
must change nothing, and no tokens in front must change nothing either."""
from __future__ import annotations

from typing import Any, List

import torch
from torch import nn

import liblasp

from ..mixing import DIFFERENT, DIFFERENT_IN_16_BITS, Call, differ, note_calls
from .state import LOCAL, Parallel

# Tokens in front, and those that are looked at: no numbers that a model has for something else.
_FRONT, _LOOKED_AT = 12, 11
# Other tokens in front: the same shapes, so that only rows that travel together (those of an expert) round otherwise.
_TOUCHED, _TOUCHED_IN_16_BITS = 1e-5, 2.0**-7


@torch.no_grad()
def refuse_other_mixing(parallel: Parallel) -> None:
    """Raises liblasp.Unsupported with the module's name and class. Runs the model three times, in its evaluation mode."""
    model = parallel.model
    first = next(model.parameters())
    if first.is_meta:
        raise liblasp.Unsupported("model: has no weights yet, and is tried out before it is split: load them first")
    words = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(words, (1, 2 * _FRONT + _LOOKED_AT), generator=torch.Generator().manual_seed(0)).to(first.device)
    front, looked_at, others = ids.split((_FRONT, _LOOKED_AT, _FRONT), 1)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with parallel.working_on(LOCAL):
            calls = _calls(model, torch.cat([front, looked_at], 1), 0)
            touched = _calls(model, torch.cat([others, looked_at], 1), 0)
            cut = _calls(model, looked_at, _FRONT)
    finally:
        for module in training:
            module.training = True
        torch.clear_autocast_cache()  # older PyTorch takes weights that were cast here for the step too: no gradients
    tensors = [tensor for call in calls for tensor in (*call.taken, *call.given) if tensor is not None]
    coarse = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors)
    _refuse_difference(model, calls, touched, _TOUCHED_IN_16_BITS if coarse else _TOUCHED)
    _refuse_difference(model, calls, cut, DIFFERENT_IN_16_BITS if coarse else DIFFERENT)


def _refuse_difference(model: nn.Module, some: List[Call], others: List[Call], different: float) -> None:
    names = [each.name for each in some]
    if names != [each.name for each in others]:
        raise liblasp.Unsupported(f"model ({type(model).__name__}): calls other modules for other tokens")
    for one, two in zip(some, others):
        if differ(one.taken, two.taken, different):  # what the module around it has done
            around = one.name.rpartition(".")[0]
            raise _mixes(around, model.get_submodule(around))
        if differ(one.given, two.given, different):
            raise _mixes(one.name, model.get_submodule(one.name))


def _calls(model: nn.Module, ids: torch.Tensor, begin: int) -> List[Call]:
    positions = torch.arange(begin, begin + ids.shape[1], device=ids.device)[None]
    return note_calls(model, lambda: model(input_ids=ids, position_ids=positions, use_cache=False), ids.shape[1], _LOOKED_AT)


def _mixes(name: str, module: Any) -> liblasp.Unsupported:
    kind = f"{type(module).__module__}.{type(module).__name__}"
    return liblasp.Unsupported(f"model{name and '.' + name} ({kind}): mixes tokens, or knows their places, by an "
                               "operation that a split sequence does not serve")
