"""The Trainer of transformers over split sequences.

    class SequenceTrainer(SequenceParallelMixin, Trainer):
        pass

    arguments = TrainingArguments(...)                    # starts torch.distributed
    trainer = SequenceTrainer(model, arguments, groups=init_groups(sequence_ranks=4), ...)
    trainer.train()
"""
from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer

import liblasp

from ..hf.batch import shard
from ..hf.parallel import parallelize
from ..hf.state import is_parallel, parallel_of
from ..problem import invalid_argument
from ..sequence_group import SequenceGroup, sequence_group
from ..sharding import gather
from .accelerate import over_sequences, take_groups


class SequenceParallelMixin:
    """In front of transformers.Trainer, or of a class made of it: `class T(SequenceParallelMixin, Trainer)`. T takes the
    Trainer's arguments, and groups=, of init_groups(sequence_ranks=...) over all ranks.

    A model that is not parallelized yet is, once the Trainer has put it on its device; for a zigzag of tokens, parallelize
    it before. Each rank of a sequence group reads the same batches and works on its tokens of them; data groups read
    other batches. Losses, gradients, norms, evaluation losses, metrics, and the counts of samples and tokens are those of
    a Trainer on as many ranks as there are data groups. For metrics each rank gathers its sequences' logits, all words of
    all tokens.
    Raises liblasp.InvalidArgument (a ValueError) and liblasp.Unsupported, when T is made and at the first batch.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        order = cls.__mro__
        if Trainer in order and order.index(Trainer) < order.index(SequenceParallelMixin):
            raise invalid_argument(f"class {cls.__name__}: SequenceParallelMixin comes before the Trainer: "
                                   f"class {cls.__name__}(SequenceParallelMixin, Trainer)")

    def __init__(self, *arguments: Any, groups: Any = None, **options: Any):
        self._groups = take_groups(groups)
        if not isinstance(self, Trainer):
            raise invalid_argument(f"class {type(self).__name__}: must be made of a Trainer too: "
                                   f"class {type(self).__name__}(SequenceParallelMixin, Trainer)")
        super().__init__(*arguments, **options)
        self._parallelize(self.model)
        if self.label_smoother is not None or self.compute_loss_func is not None:
            raise liblasp.Unsupported("label_smoothing_factor and compute_loss_func: the loss over split sequences is "
                                      "the model's own, whose targets reach over the ranks' borders")

    def _parallelize(self, model: nn.Module) -> None:
        ranks = sequence_group(self._groups.sequence)
        if not is_parallel(model):
            parallelize(model, ranks)
        elif _members(parallel_of(model).group) != _members(ranks):
            raise invalid_argument("groups: the model was parallelized for another group than groups.sequence")

    def create_accelerator_and_postprocess(self) -> None:
        _refuse(self.args)
        super().create_accelerator_and_postprocess()
        accelerator = over_sequences(self.accelerator, self._groups)
        self.gather_function = functools.partial(accelerator.gather_for_metrics,
                                                 use_gather_object=self.args.eval_use_gather_object)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        model = super().call_model_init(trial)
        self._parallelize(model.to(self.args.device))
        return model

    def get_tp_size(self) -> int:
        """The ranks that give the loss of the same batch: what the Trainer asks this for, when it counts targets and
        samples and scales losses."""
        return super().get_tp_size() * self._groups.sequence_ranks

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Any:
        items = super()._get_num_items_in_batch(batch_samples, device)
        if items is None or self.args.average_tokens_across_devices:
            return items
        return items * self._groups.sequence_ranks  # it was divided without having been summed

    def training_step(self, model: nn.Module, inputs: Dict[str, Any],
                      num_items_in_batch: Any = None) -> torch.Tensor:
        model.train()
        with shard(model, self._counted(inputs, num_items_in_batch)) as local:
            return super().training_step(model, local, num_items_in_batch)

    def prediction_step(self, model: nn.Module, inputs: Dict[str, Any], prediction_loss_only: bool,
                        ignore_keys: Optional[list] = None) -> Tuple[Any, Any, Any]:
        batch = self._counted(inputs, self._get_num_items_in_batch([inputs], self.args.device))
        with shard(model, batch) as local:
            loss, logits, labels = super().prediction_step(model, local, prediction_loss_only, ignore_keys)
            if logits is not None:
                if not isinstance(logits, torch.Tensor) or logits.dim() != 3:
                    raise liblasp.Unsupported("prediction: the model gives more than logits: name the rest in "
                                              "ignore_keys, or set prediction_loss_only")
                parallel = parallel_of(model)
                logits = gather(logits, parallel.group, parallel.now.total)
        return loss, logits, None if labels is None else batch["labels"]

    def _counted(self, inputs: Dict[str, Any], items: Any) -> Dict[str, Any]:
        batch = dict(self._prepare_inputs(inputs))
        if items is not None and self.model_accepts_loss_kwargs:
            batch["num_items_in_batch"] = items
        return batch

    def floating_point_ops(self, inputs: Dict[str, Any]) -> int:
        return super().floating_point_ops(inputs) // self._groups.sequence_ranks  # the Trainer adds up all ranks

    def _track_num_input_tokens(self, inputs: Dict[str, Any]) -> None:
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)
        seen = self.state.num_input_tokens_seen - before
        self.state.num_input_tokens_seen = before + seen // self._groups.sequence_ranks


def _members(group: SequenceGroup) -> List[int]:
    return dist.get_process_group_ranks(group.process_group)


def _refuse(args: Any) -> None:
    if args.n_gpu > 1:
        raise invalid_argument(f"args: one process trains on {args.n_gpu} GPUs (DataParallel): start a process for each, "
                               "by torchrun")
    if getattr(args, "train_sampling_strategy", None) == "batch_rebalance":
        raise liblasp.Unsupported("train_sampling_strategy='batch_rebalance': gives other batches to each rank, not to "
                                  "each sequence group")
    if args.neftune_noise_alpha is not None:
        raise liblasp.Unsupported("neftune_noise_alpha: its noise depends on the tokens of a sequence, of which a rank "
                                  "has a part")
    if args.use_liger_kernel:
        raise liblasp.Unsupported("use_liger_kernel: its fused loss is of one rank's tokens")
    if args.deepspeed is not None:
        raise liblasp.Unsupported("deepspeed: over split sequences the Trainer serves DDP and FSDP")
