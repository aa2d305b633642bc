"""parallelize: one model of transformers, whose tokens see each other over the ranks of a group."""
from __future__ import annotations

import types
from typing import Any, Dict, Tuple

import torch
from torch import nn
from torch.distributed import fsdp
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import PreTrainedModel

import liblasp
from liblasp.arguments import describe, take_flag

from ..halo import process_group_of
from ..ownership import refuse_other_cuts
from ..problem import invalid_argument
from ..sequence_group import Group, sequence_group
from .agreement import digest, refuse_differences
from .lightning import lightning_attention
from .loss import loss_function
from .operations import OPERATIONS
from .rebinding import innermost, names_used, rebound
from .state import ATTRIBUTE, Parallel, Replaced, is_parallel, parallel_of
from .trial import refuse_other_mixing

_FSDP = (fsdp.FullyShardedDataParallel, getattr(fsdp, "FSDPModule", fsdp.FullyShardedDataParallel))  # the second: 2.6
_WHOLE_FORWARD = {"MiniMaxLightningAttention": ("linear_attention", lightning_attention)}


def parallelize(model: nn.Module, group: Group, *, check: bool = True) -> nn.Module:
    """Gives the model back, with operations of its own in this instance: its sequences then lie over the ranks of the
    `group`, in `with shard(model, batch)`. Its parameters, its state dict and its class stay. Do it before DDP or FSDP.

    model: a causal language model of transformers 5, with its weights, the same on every rank. group: as in
    linear_attention, with a process group; SequenceGroup(process_group, ownership="zigzag") gives every rank the same
    work in softmax layers. check: whether the model is tried out on some tokens: what mixes tokens in another way than by
    the known operations is refused with its name and class.
    `replaced` tells what was replaced, `restore` undoes it. Collective. Raises liblasp.InvalidArgument (a ValueError)
    and liblasp.Unsupported, and the model is then as it was.
    """
    _refuse_wrapped(model)
    if not isinstance(model, PreTrainedModel):
        raise invalid_argument(f"model = {describe(model)}: must be a model of transformers")
    if is_parallel(model):
        raise invalid_argument("model: is parallelized already: restore(model) undoes it")
    if "loss_function" not in names_used(type(model).forward):
        raise liblasp.Unsupported(f"model ({type(model).__module__}.{type(model).__name__}): does not find its loss by "
                                  "loss_function, as causal language models do")
    ranks = sequence_group(group)
    process_group_of(ranks)
    refuse_other_cuts(ranks.ownership, "parallelize")
    parallel = Parallel(model, ranks)
    try:
        failed = None
        try:
            _replace(parallel)
            if take_flag(check, "check"):
                refuse_other_mixing(parallel)
        except Exception as error:
            failed = error
        refuse_differences({"model": _shape_of(model), "weights": _weights_of(model), "group": ranks.ownership}, ranks,
                           {"model": "give every rank the same model", "group": "give every rank the same ownership",
                            "weights": "load the same on every rank, or begin from the same seed"}, failed)
    except BaseException:
        _undo(parallel)
        raise
    return model


def replaced(model: nn.Module) -> Tuple[Replaced, ...]:
    """What parallelize replaced in a model: each module's name, class and operations."""
    return tuple(parallel_of(model).replaced)


def restore(model: nn.Module) -> nn.Module:
    """Undoes parallelize: the model is as it was, trained or not."""
    parallel = parallel_of(model)
    if parallel.now is not None:
        raise invalid_argument("restore: inside of `with shard(model, batch)`")
    _undo(parallel)
    return model


def _replace(parallel: Parallel) -> None:
    model = parallel.model
    model.__dict__[ATTRIBUTE] = parallel
    for name, module in model.named_modules():
        own = type(module).forward
        if any("dynamic" in each or each == "longrope" for each in _rope_types(module)):
            raise liblasp.Unsupported(f"model.{name} ({type(module).__name__}): its rotary factors depend on the longest "
                                      "position that it is given, which differs by rank")
        if "forward" in module.__dict__:
            raise liblasp.Unsupported(f"model{name and '.' + name} ({type(module).__name__}): has a forward of its own in "
                                      "this instance already")
        if type(module).__name__ in _WHOLE_FORWARD and _of_transformers(own):
            operation, make = _WHOLE_FORWARD[type(module).__name__]
            _give(parallel, name, module, (operation,), make(parallel, f"model.{name}", module, own))
            continue
        names = _operations_of(parallel, own)
        if names:
            _give(parallel, name, module, tuple(names), rebound(own, names))
    model.__dict__["_loss_function_before"] = model.__dict__.get("_loss_function")
    model.loss_function = loss_function(parallel, model.loss_function)


def _rope_types(module: nn.Module) -> Tuple[str, ...]:
    found = module.__dict__.get("rope_type")
    return tuple(found.values()) if isinstance(found, dict) else (found,) if isinstance(found, str) else ()


def _operations_of(parallel: Parallel, own: Any) -> Dict[str, Any]:
    """Those that a forward pass looks up, made for this model."""
    if not _of_transformers(own):
        return {}
    found = innermost(own).__globals__
    return {name: OPERATIONS[name](parallel, found[name]) for name in sorted(names_used(own))
            if name in OPERATIONS and name in found}


def _of_transformers(function: Any) -> bool:
    return getattr(innermost(function), "__module__", "").startswith("transformers.")


def _give(parallel, name, module, operations, forward) -> None:
    module.forward = types.MethodType(forward, module)
    parallel.replaced.append(Replaced(name, type(module).__name__, operations))


def _undo(parallel: Parallel) -> None:
    model = parallel.model
    for each in parallel.replaced:
        model.get_submodule(each.name).__dict__.pop("forward", None)
    if "_loss_function_before" in model.__dict__:
        before = model.__dict__.pop("_loss_function_before")
        if before is None:
            model.__dict__.pop("_loss_function", None)
        else:
            model.loss_function = before
    model.__dict__.pop(ATTRIBUTE, None)
    parallel.replaced.clear()


def _refuse_wrapped(model: Any) -> None:
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        if (compiled or isinstance(module, (DistributedDataParallel, DataParallel, *_FSDP))
                or type(module).__module__.startswith("deepspeed.")):
            raise invalid_argument(f"model{name and '.' + name}: is {'compiled' if compiled else 'wrapped'} already "
                                   f"({type(module).__name__}): parallelize first, then "
                                   f"{'compile' if compiled else 'wrap'}")


def _shape_of(model: nn.Module) -> Any:
    return [(name, tuple(each.shape), str(each.dtype)) for name, each in model.named_parameters()]


@torch.no_grad()
def _weights_of(model: nn.Module) -> Any:
    return [digest(each.sum(dtype=torch.float64)) for each in model.parameters() if not each.is_meta]
