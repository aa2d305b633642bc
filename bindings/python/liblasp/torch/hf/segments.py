"""time_segments: a training step of a model of transformers whose layers all carry a state, over any length."""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, Mapping, Union

import torch
from torch import nn

import liblasp
from liblasp.arguments import take_integer

from .. import segments
from ..problem import invalid_argument
from .batch import Whole, agreed, named, share_of, with_places
from .gradients import is_deepspeed, summed_over, who_averages
from .state import Parallel, parallel_of

_SOFTMAX = "ALL_ATTENTION_FUNCTIONS"


def time_segments(model: nn.Module, batch: Mapping[str, Any], *, segment: int,
                  progress: Union[bool, Callable[[int, int], Any], None] = None) -> torch.Tensor:
    """Forward and backward of one step, `segment` tokens at a time, as liblasp.torch.time_segments: memory does not grow
    with the length. Adds to the parameters' gradients what `backward(loss)` in `with shard(model, batch)` would, and
    returns the loss of the whole batch, detached, the same on every rank. Under torch.no_grad() it only finds the loss.

    model: parallelized, perhaps wrapped by DDP, FSDP or FSDP2. All its layers carry a state: Mamba-2, and MiniMax,
    Qwen3-Next, Qwen3.5 and others that were configured without softmax layers; the first softmax layer is refused by
    name, and so are activation checkpointing and a zigzag of tokens. batch: as shard takes it, with labels, packed or not.
    segment: tokens in one piece, on all ranks together, at least one for each. progress: progress(done, total) is called
    after each pass; True: a bar.
    Collective. Raises liblasp.InvalidArgument (a ValueError) and liblasp.Unsupported, on every rank.
    """
    parallel = parallel_of(model)
    if is_deepspeed(model):
        raise liblasp.Unsupported("model: an engine of DeepSpeed reduces gradients in each backward pass: give time_segments "
                                  "a model under DDP, FSDP or FSDP2")
    parallel.group.require_contiguous("time_segments")
    segment = take_integer(segment, "segment", least=1)
    _refuse(parallel)
    whole = agreed(batch, parallel)
    if whole.items is None:
        raise invalid_argument("batch: has no labels, of which the loss is")
    _refuse_short_pieces(whole.tokens, segment, parallel.group.size)
    tensors = with_places(whole)
    pieces, ranks = _Pieces(model, parallel, whole, list(tensors)), parallel.group
    parallel.wrapper = None
    averaged = who_averages(parallel, model) is not None
    with summed_over(ranks, parallel.model) if torch.is_grad_enabled() and not averaged else contextlib.nullcontext():
        loss = segments.time_segments(
            pieces, list(tensors.values()), tensors["shift_labels"],
            lambda part, _: part * ranks.size if averaged else part, segment=segment, cu_seqlens=whole.cu_seqlens,
            group=ranks, check=False, progress=progress)
    return loss / ranks.size if averaged else loss


class _Pieces(nn.Module):
    """The model as a function of pieces of a batch, which gives the part of the loss that is theirs."""

    def __init__(self, model: nn.Module, parallel: Parallel, whole: Whole, names: List[str]):
        super().__init__()
        self.model, self.names, self.at = model, names, (parallel, whole)
        for name in ("no_sync", "set_requires_gradient_sync"):  # by which the wrapper is told when to reduce gradients
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))

    def forward(self, *pieces: torch.Tensor) -> torch.Tensor:
        parallel, whole = self.at
        local: Dict[str, Any] = {name: piece.contiguous() for name, piece in zip(self.names, pieces)}
        share = share_of(whole._replace(cu_seqlens=None), pieces[0].shape[1], local)
        with parallel.working_on(share):
            return self.model(**named(whole, local)).loss


def _refuse(parallel: Parallel) -> None:
    model = parallel.model
    for each in parallel.replaced:
        if _SOFTMAX in each.operations:
            raise liblasp.Unsupported(f"model.{each.name} ({each.kind}): is a softmax layer, whose tokens see all those "
                                      "before and not a state of them: a sequence through it cannot be cut in time")
    if getattr(model, "is_gradient_checkpointing", False):
        raise liblasp.Unsupported("model: recomputes activations (gradient_checkpointing_enable), which segments do "
                                  "already: switch it off, and take a shorter segment")
    if getattr(model.config, "output_router_logits", False):
        raise liblasp.Unsupported("model.config.output_router_logits: the auxiliary loss of routers is no sum over "
                                  "segments")


def _refuse_short_pieces(tokens: int, segment: int, ranks: int) -> None:
    last = tokens % segment or min(segment, tokens)
    if min(segment, last) < ranks:
        raise invalid_argument(f"segment = {segment}: cuts {tokens} tokens into pieces of which the last has {last}, and "
                               f"the sequence group has {ranks} ranks: each needs a token of each piece")
