"""The loss of a split sequence: the same on every rank, of the targets of all."""
from __future__ import annotations

from typing import Any, Callable

from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ..problem import invalid_argument
from ..vocabulary import sum_of_parts
from .state import Parallel, Share

_TILE = 4096  # tokens whose logits are in float32 at once


def loss_function(parallel: Parallel, own: Callable[..., Any]) -> Callable[..., Any]:
    """What a causal language model of transformers calls as self.loss_function."""
    def loss(logits, labels=None, vocab_size=None, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **other):
        share = parallel.now
        if not isinstance(share, Share):
            return own(logits=logits, labels=labels, vocab_size=vocab_size, num_items_in_batch=num_items_in_batch,
                       ignore_index=ignore_index, shift_labels=shift_labels, **other)
        if shift_labels is None:
            raise invalid_argument("shift_labels: are missing: give the model all that shard gives, model(**local)")
        parallel.wrapper = DistributedDataParallel._active_ddp_module
        rows, targets = logits.flatten(0, -2), shift_labels.flatten().to(logits.device)
        parts = [F.cross_entropy(rows[at:at + _TILE].float(), targets[at:at + _TILE], ignore_index=ignore_index,
                                 reduction="sum") for at in range(0, len(rows), _TILE)]
        return sum_of_parts(sum(parts[1:], parts[0]), parallel.group) / share.items.to(logits.device)
    return loss
