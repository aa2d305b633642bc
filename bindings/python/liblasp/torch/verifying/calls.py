"""What every module of a model took and gave in one step, and how two steps differ at this rank's tokens."""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ..ownership import Run, cut_runs

Place = Sequence[Run]  # a rank's tokens among a sequence's
Tensors = Dict[str, torch.Tensor]  # by where they stand in a call's arguments, or in what it gave


class Called(NamedTuple):
    name: str
    kind: str
    caller: str    # the module that called it
    inputs: Tuple[Tuple[Any, ...], Dict[str, Any]]
    offered: Tensors  # what the caller gave it: those of tokens
    given: Tensors    # what it gave itself


def flat(value: Any, where: str = "") -> Tensors:
    """The tensors in it."""
    if isinstance(value, torch.Tensor):
        return {where: value}
    if isinstance(value, Mapping):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, (tuple, list)) else []
    return {name: each for key, one in items for name, each in flat(one, f"{where}/{key}").items()}


def of_tokens(value: Any, tokens: int) -> Tensors:
    """Each tensor [B, tokens, ...]."""
    return {name: each.detach() for name, each in flat(value).items()
            if each.dim() >= 2 and each.shape[1] == tokens}


@contextlib.contextmanager
def recorded(model: nn.Module, tokens: int, instead: Optional[List[Called]] = None,
             only: Optional[Set[str]] = None) -> Iterator[List[Called]]:
    """Inside, every call of a module is noted as it ends. `instead`: another step's calls, whose inputs each call gets
    in place of its own, so that a difference stays where it arises; `only` to these modules."""
    calls: List[Called] = []
    running: List[Tuple[str, Tensors]] = []
    inputs = _by_name(instead or [])
    hooks = []

    def before(name: str) -> Callable[..., Any]:
        def hook(module, arguments, named):
            running.append((name, of_tokens((arguments, named), tokens)))
            wanted = inputs[name].pop(0).offered if name and inputs.get(name) else None
            return None if wanted is None or only is not None and name not in only else _replaced((arguments, named), wanted)
        return hook

    def after(name: str) -> Callable[..., Any]:
        def hook(module, arguments, named, given):
            while running and running[-1][0] != name:  # one that ended by an exception
                running.pop()
            _, offered = running.pop() if running else (name, {})
            calls.append(Called(name, type(module).__name__, running[-1][0] if running else "", (arguments, named),
                                offered, of_tokens(given, tokens)))
        return hook

    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
        hooks.append(module.register_forward_hook(after(name), with_kwargs=True))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _by_name(calls: List[Called]) -> Dict[str, List[Called]]:
    found: Dict[str, List[Called]] = {}
    for each in calls:
        found.setdefault(each.name, []).append(each)
    return found


def _replaced(value: Any, wanted: Tensors, where: str = "") -> Any:
    """A structure like `value`, its tensors of real numbers of tokens from `wanted`."""
    if isinstance(value, torch.Tensor):
        one = wanted.get(where)
        if one is None or one.shape != value.shape or not (one.is_floating_point() and value.is_floating_point()):
            return value
        return value + (one.to(value.dtype) - value.detach())  # its graph stays
    if isinstance(value, Mapping):
        return {name: _replaced(each, wanted, f"{where}/{name}") for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(each, wanted, f"{where}/{at}") for at, each in enumerate(value))
    return value


def joined(parts: List[List[Called]]) -> List[Called]:
    """The calls of sequences one after the other, as of one that has them all."""
    return [each[0]._replace(offered=_cat([one.offered for one in each]), given=_cat([one.given for one in each]))
            for each in zip(*parts)]


def _cat(parts: List[Tensors]) -> Tensors:
    return {name: torch.cat([each[name] for each in parts], 1) for name in parts[0]
            if all(name in each for each in parts)}


def at(calls: List[Called], place: Place) -> List[Called]:
    """Of calls on whole sequences, what is at a place."""
    def cut(tensors: Tensors) -> Tensors:
        return {name: cut_runs(each, place, 1) for name, each in tensors.items()}
    return [each._replace(offered=cut(each.offered), given=cut(each.given)) for each in calls]


def distances(some: Tensors, others: Tensors) -> Dict[str, float]:
    """Of each pair, over the second's size; whole numbers are equal or 1 apart."""
    found = {}
    for name in some.keys() & others.keys():
        one, other = some[name], others[name]
        if one.shape != other.shape and 1 in (len(one), len(other)) and one.shape[1:] == other.shape[1:]:
            one, other = torch.broadcast_tensors(one, other)  # positions of one row for all
        if one.shape != other.shape:
            continue
        if not one.is_floating_point():
            found[name] = float(not torch.equal(one, other))
        else:
            found[name] = float((one.double() - other.double()).norm() / other.double().norm().clamp_min(1e-30))
    return found


def distance(some: Tensors, others: Tensors) -> float:
    """The largest of them."""
    return max(distances(some, others).values(), default=0.0)
