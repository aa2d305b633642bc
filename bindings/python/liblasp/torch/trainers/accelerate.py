"""A loop with an Accelerator (package accelerate) over split sequences.

    groups = init_groups(sequence_ranks=4)
    accelerator = over_sequences(Accelerator(), groups)
    model = sp.parallelize(model, groups.sequence)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with sp.shard(model, batch) as local:
            accelerator.backward(model(**local).loss)
"""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, TypeVar

import torch
import torch.distributed as dist

import liblasp
from liblasp.arguments import describe

try:
    from accelerate import Accelerator
    from accelerate.data_loader import get_sampler
    from accelerate.utils import DistributedType, recursively_apply
except ImportError as reason:
    raise ImportError(f"liblasp.torch.trainers needs accelerate: pip install accelerate ({reason})") from None

from ..groups import Groups
from ..hf.batch import loss_to_average
from ..problem import invalid_argument

_Accelerator = TypeVar("_Accelerator", bound=Accelerator)
_SERVED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.FSDP)


def over_sequences(accelerator: _Accelerator, groups: Groups) -> _Accelerator:
    """Tells an Accelerator of the groups, and gives it back. From then on

    - loaders that it prepares give every rank of a sequence group the same batches, and each data group others;
    - backward(loss), in `with shard(model, batch)`, gives the gradients of whole sequences;
    - gather_for_metrics gives what one rank of each sequence group has: each sequence once. Tensors alone.

    accelerator: of accelerate, over all ranks, by DDP or FSDP, before it prepares anything. groups: of init_groups, over
    the same ranks. Collective. Raises liblasp.InvalidArgument (a ValueError) and liblasp.Unsupported.
    """
    if not isinstance(accelerator, Accelerator):
        raise invalid_argument(f"accelerator = {describe(accelerator)}: must be an accelerate.Accelerator")
    take_groups(groups)
    if isinstance(accelerator, _OverSequences):
        raise invalid_argument("accelerator: knows its sequence groups already")
    if accelerator._models or accelerator._dataloaders:
        raise invalid_argument("accelerator: has prepared models or loaders already: over_sequences comes first")
    _refuse(accelerator, groups)
    accelerator.__class__ = type(type(accelerator).__name__, (_OverSequences, type(accelerator)), {})
    accelerator._begin(groups)
    return accelerator


def take_groups(groups: Any) -> Groups:
    if not isinstance(groups, Groups):
        raise invalid_argument(f"groups = {describe(groups)}: must be what init_groups(sequence_ranks=...) gives")
    return groups


def _refuse(accelerator: Accelerator, groups: Groups) -> None:
    ranks = groups.sequence_ranks * groups.data_ranks
    if accelerator.num_processes != ranks:
        raise invalid_argument(f"groups: are of {ranks} ranks, the accelerator has {accelerator.num_processes} processes: "
                               "make them of all, init_groups(sequence_ranks=...)")
    if accelerator.distributed_type not in _SERVED:
        raise liblasp.Unsupported(f"accelerator: trains by {accelerator.distributed_type.value}; over split sequences it "
                                  "serves DDP and FSDP")
    if accelerator.dispatch_batches:
        raise liblasp.Unsupported("dispatch_batches: one rank would read for all, and give each other tokens: leave it "
                                  "out")
    config = getattr(accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        if config is not None and getattr(config, name, 1) > 1:
            raise liblasp.Unsupported(f"parallelism_config.{name}: sequences are split by liblasp's groups alone: leave it "
                                      "at 1")


class _OverSequences:
    """What over_sequences puts in front of an accelerator's class."""

    _among_data_groups = _each_sequence_once = False

    def _begin(self, groups: Groups) -> None:
        self._groups = groups
        self.dataloader_config.dispatch_batches = False  # None would mean True for a dataset without a length
        said = torch.tensor([groups.sequence_rank, groups.data_rank, torch.initial_seed() % 2**62], device=self.device)
        found = [torch.empty_like(said) for _ in range(self.num_processes)]
        dist.all_gather(found, said)
        places = [each.tolist() for each in found]
        self._first_ranks: List[int] = [rank for _, rank in sorted(
            (data_rank, rank) for rank, (sequence_rank, data_rank, _) in enumerate(places) if sequence_rank == 0)]
        self._seed = places[0][2]
        if self.dataloader_config.data_seed is None:
            self.dataloader_config.data_seed = self._seed

    @property
    def num_processes(self) -> int:
        return self._groups.data_ranks if self._among_data_groups else super().num_processes

    @property
    def process_index(self) -> int:
        return self._groups.data_rank if self._among_data_groups else super().process_index

    def _prepare_device_mesh(self) -> Any:
        return None if self._among_data_groups else super()._prepare_device_mesh()

    def prepare_data_loader(self, data_loader: Any, *arguments: Any, **options: Any) -> Any:
        sampler = get_sampler(data_loader)
        if getattr(sampler, "generator", self) is None:  # ranks of one sequence draw the same
            sampler.generator = torch.Generator().manual_seed(self._seed)
        with self._with("_among_data_groups"):
            return super().prepare_data_loader(data_loader, *arguments, **options)

    def gather(self, tensor: Any) -> Any:
        found = super().gather(tensor)
        if not self._each_sequence_once:
            return found
        ranks = super().num_processes
        return recursively_apply(lambda each: each.unflatten(0, (ranks, -1))[self._first_ranks].flatten(0, 1), found)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        if use_gather_object:
            raise liblasp.Unsupported("use_gather_object: over split sequences tensors are gathered alone")
        try:
            recursively_apply(lambda each: each, input_data, error_on_other_type=True)
        except TypeError:
            raise liblasp.Unsupported("gather_for_metrics: over split sequences it gathers tensors alone") from None
        with self._with("_each_sequence_once"):
            return super().gather_for_metrics(input_data)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        super().backward(loss_to_average(loss), **options)

    @contextlib.contextmanager
    def _with(self, name: str) -> Iterator[None]:
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, False)
