"""Whether the ranks of a sequence train alike: each module's mode, and every probability of dropout, in modules, in
numbers that forward passes read (attention_dropout), and in configurations."""
from __future__ import annotations

from typing import Any, Dict, List

import torch.distributed as dist
from torch import nn

from ..sequence_group import SequenceGroup


def dropouts_of(model: nn.Module) -> Dict[str, Any]:
    """By what a sentence calls it. What modules hold comes before what configurations say."""
    found: Dict[str, Any] = {}
    configs: Dict[int, Any] = {}
    for name, module in model.named_modules():
        where = f"model{name and '.' + name} ({type(module).__name__})"
        if module.training:
            found[f"{where}.training"] = True
        if isinstance(module, nn.modules.dropout._DropoutNd):
            found[f"{where}.p"] = module.p
        found.update(_probabilities(where, module))
        config = module.__dict__.get("config")
        if config is not None and hasattr(config, "__dict__"):
            configs.setdefault(id(config), (f"{where}.config", config))
    for where, config in configs.values():
        found.update(_probabilities(where, config))
    return found


def _probabilities(where: str, holder: Any) -> Dict[str, Any]:
    return {f"{where}.{name}": value for name, value in vars(holder).items()
            if "drop" in name and isinstance(value, (int, float)) and not isinstance(value, bool)}


def first_difference(model: nn.Module, group: SequenceGroup) -> str:
    """The sentence about it. Collective."""
    every: List[Any] = [None] * group.size
    dist.all_gather_object(every, dropouts_of(model), group=group.process_group)
    names: List[str] = list(dict.fromkeys(name for each in every for name in each))
    for name in names:
        for rank, each in enumerate(every):
            one, other = every[0].get(name), each.get(name)
            if one == other:
                continue
            if name.endswith(".training"):
                return (f"{name}: is {bool(other)} on rank {rank} and {bool(one)} on rank 0: call model.train() or "
                        "model.eval()")
            return f"{name} = {_said(other)} on rank {rank} and {_said(one)} on rank 0: give every rank the same dropout"
    return "dropout: differs between the ranks"


def _said(value: Any) -> str:
    return "missing" if value is None else f"{value:g}"
