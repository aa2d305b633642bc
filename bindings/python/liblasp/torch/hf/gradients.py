"""backward: gradients of the whole sequence's loss on every rank, whoever reduces them."""
from __future__ import annotations

import contextlib
from typing import Iterator, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import liblasp

from ..problem import invalid_argument
from ..sequence_group import SequenceGroup
from .state import Parallel

_BUCKET = 32 << 20  # bytes of gradients that travel together


def backward_of(parallel: Parallel, given: nn.Module, loss: torch.Tensor) -> None:
    """`given`: the model as the caller has it, wrapped or not."""
    members = _averaging(parallel, given, loss)
    if is_deepspeed(given):
        given.backward(_for_a_mean(parallel, loss))
    elif members is None:
        with summed_over(parallel.group, parallel.model):
            loss.backward()
    else:
        _for_a_mean(parallel, loss).backward()


def averaged_loss(parallel: Parallel, given: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """What a trainer differentiates that calls backward itself, and whose wrapper averages gradients."""
    if _averaging(parallel, given, loss) is None and parallel.group.size > 1:
        raise invalid_argument("model: nothing averages its gradients over the ranks, neither DDP nor FSDP: give shard the "
                               "model that the trainer wrapped")
    return _for_a_mean(parallel, loss)


def _for_a_mean(parallel: Parallel, loss: torch.Tensor) -> torch.Tensor:
    return loss * parallel.group.size  # the mean over all ranks is then that over sequences


def _averaging(parallel: Parallel, given: nn.Module, loss: torch.Tensor) -> Optional[List[int]]:
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0 or not loss.requires_grad:
        raise invalid_argument("loss: must be a scalar tensor with a gradient, as model(**local).loss")
    return who_averages(parallel, given)


def who_averages(parallel: Parallel, given: nn.Module) -> Optional[List[int]]:
    """The ranks over which DDP, FSDP or DeepSpeed averages gradients; None: nobody does."""
    members = _members(parallel, given)
    own = dist.get_process_group_ranks(parallel.group.process_group)
    if members is not None and not set(own) <= set(members):
        raise liblasp.Unsupported(f"model: its wrapper averages gradients over ranks {sorted(members)}, and ranks {own} hold "
                                  "parts of one sequence: wrap it over all ranks, not over the data group")
    return members


def is_deepspeed(given: nn.Module) -> bool:
    return type(given).__module__.startswith("deepspeed.")


def _members(parallel: Parallel, given: nn.Module) -> Optional[List[int]]:
    if is_deepspeed(given):
        return dist.get_process_group_ranks(given.data_parallel_group)
    for wrapper in (given, parallel.wrapper):
        if isinstance(wrapper, DistributedDataParallel):
            return dist.get_process_group_ranks(wrapper.process_group)
    for module in given.modules():
        if isinstance(module, FullyShardedDataParallel):
            members = set(dist.get_process_group_ranks(module.process_group))
            across = getattr(module, "_inter_node_pg", None)  # of HYBRID_SHARD
            if across is not None:
                return list(range(dist.get_world_size()))
            return sorted(members)
    for parameter in parallel.model.parameters():
        mesh = getattr(parameter, "device_mesh", None)  # a DTensor of FSDP2
        if mesh is not None:
            return mesh.mesh.flatten().tolist()
    return None


@contextlib.contextmanager
def summed_over(ranks: SequenceGroup, model: nn.Module) -> Iterator[None]:
    """What backward passes inside add to the gradients of a model that nobody wraps is then that of all ranks."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    before = [each.grad for each in parameters]  # of earlier steps, which are sums already
    for each in parameters:
        each.grad = None
    try:
        yield
    except BaseException:
        for each, old in zip(parameters, before):
            each.grad = old
        raise
    if ranks.size > 1 and parameters:
        used = torch.tensor([each.grad is not None for each in parameters], dtype=torch.int32, device=parameters[0].device)
        dist.all_reduce(used, op=dist.ReduceOp.MAX, group=ranks.process_group)
        _sum([each for each, one in zip(parameters, used.tolist()) if one], ranks.process_group)
    for each, old in zip(parameters, before):
        if old is not None:
            each.grad = old if each.grad is None else old.add_(each.grad)


@torch.no_grad()
def _sum(parameters: Sequence[torch.Tensor], process_group: dist.ProcessGroup) -> None:
    """In float32, bucket by bucket."""
    bucket: List[torch.Tensor] = []
    size = 0
    for at, each in enumerate(parameters):
        if each.grad is None:
            each.grad = torch.zeros_like(each)
        bucket.append(each.grad)
        size += 4 * each.numel()
        if size >= _BUCKET or at == len(parameters) - 1:
            flat = torch.cat([one.flatten().float() for one in bucket])
            dist.all_reduce(flat, group=process_group)
            for one, total in zip(bucket, flat.split([one.numel() for one in bucket])):
                one.copy_(total.view_as(one))
            bucket, size = [], 0
