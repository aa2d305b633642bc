"""PyTorch Lightning over split sequences of a model of transformers: a strategy.

    trainer = Trainer(strategy=SequenceParallelStrategy(sequence_ranks=4))
    trainer.fit(module, loader)               # whose training_step has self.model(**batch).loss, as ever
"""
from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Tuple

import torch
from torch import nn
from transformers import PreTrainedModel

import liblasp

try:
    from lightning.pytorch.strategies import DDPStrategy
except ImportError as reason:
    raise ImportError(f"liblasp.torch.trainers.lightning needs lightning: pip install lightning ({reason})") from None

from ..groups import Groups, init_groups
from ..hf.batch import loss_to_average, shard
from ..hf.parallel import parallelize
from ..hf.state import is_parallel
from ..ownership import OwnershipLike, take_ownership
from ..problem import invalid_argument
from ..sequence_group import sequence_group


class SequenceParallelStrategy(DDPStrategy):
    """DDP over all ranks, of which sequence_ranks share a sequence (0: all). The module's model of transformers is
    parallelized when the Trainer sets it up. A step is given this rank's part of its batch, a dict as
    liblasp.torch.hf.shard takes it, the same on all ranks of a sequence; losses and gradients are those of whole
    sequences. Samplers that Lightning makes read by sequence group.

    ownership: of the sequence groups, "contiguous" or "zigzag". options: of DDPStrategy. Raises liblasp.InvalidArgument
    (a ValueError) and liblasp.Unsupported.
    """

    def __init__(self, sequence_ranks: int = 0, *, ownership: OwnershipLike = "contiguous", **options: Any):
        super().__init__(**options)
        self._sequence_ranks, self._ownership, self._groups = sequence_ranks, take_ownership(ownership), None
        self._open = contextlib.ExitStack()  # the batch between a training step and its backward pass

    @property
    def groups(self) -> Groups:
        """What init_groups gave, once the Trainer has begun."""
        if self._groups is None:
            raise invalid_argument("groups: are made when the Trainer begins")
        return self._groups

    def setup_environment(self) -> None:
        super().setup_environment()
        if self._groups is None:
            self._groups = init_groups(sequence_ranks=self._sequence_ranks)

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        return {"num_replicas": self.groups.data_ranks, "rank": self.groups.data_rank}

    def model_to_device(self) -> None:
        super().model_to_device()
        module = self.lightning_module
        if not module.automatic_optimization:
            raise liblasp.Unsupported("automatic_optimization = False: over split sequences one backward pass follows "
                                      "each training step")
        model = _model_in(module)
        if not is_parallel(model):
            parallelize(model, sequence_group(self.groups.sequence).owned(self._ownership))

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        self._open.close()  # that of a step without a backward pass
        own = self._open.enter_context(self._share(arguments))
        return super().training_step(*own, **options)

    def backward(self, closure_loss: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        try:
            super().backward(loss_to_average(closure_loss), *arguments, **options)
        finally:
            self._open.close()
        return closure_loss

    def validation_step(self, *arguments: Any, **options: Any) -> Any:
        with self._share(arguments) as own:
            return super().validation_step(*own, **options)

    def test_step(self, *arguments: Any, **options: Any) -> Any:
        with self._share(arguments) as own:
            return super().test_step(*own, **options)

    def predict_step(self, *arguments: Any, **options: Any) -> Any:
        raise liblasp.Unsupported("predict: a rank has a part of each sequence: predict without this strategy")

    @contextlib.contextmanager
    def _share(self, arguments: Tuple[Any, ...]) -> Iterator[Tuple[Any, ...]]:
        """A step's arguments, the batch first."""
        with shard(self.model, arguments[0] if arguments else None) as local:
            yield (local, *arguments[1:])

    def on_exception(self, exception: BaseException) -> None:
        self._open.close()
        super().on_exception(exception)


def _model_in(module: nn.Module) -> nn.Module:
    found = [each for each in module.modules() if isinstance(each, PreTrainedModel)]
    inside = {id(inner) for each in found for inner in each.modules() if inner is not each}
    outer = [each for each in found if id(each) not in inside]
    if len(outer) != 1:
        raise invalid_argument(f"module ({type(module).__name__}): holds {len(outer)} models of transformers, must hold one")
    return outer[0]
