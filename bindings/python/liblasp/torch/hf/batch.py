"""shard: this rank's part of a batch, with all that a rank cannot find out from its part alone."""
from __future__ import annotations

import contextlib
import threading
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import nn

from liblasp.arguments import check_offsets, describe, take_offsets

from ..problem import invalid_argument
from ..sharding import shard as cut
from .agreement import digest, refuse_differences
from .dropout import dropouts_of, first_difference
from .gradients import averaged_loss, backward_of
from .state import Parallel, Share, parallel_of

_IGNORED = -100
_TENSORS = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", "labels")
_OFFSETS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # as DataCollatorWithFlattening has them
_KNOWN = (*_TENSORS, *_OFFSETS, "num_items_in_batch")


class _Thread(threading.local):
    def __init__(self):
        self.inside: List[Tuple[Parallel, nn.Module]] = []


_thread = _Thread()


class Whole(NamedTuple):
    """A batch as it was looked at."""

    tokens: int
    tensors: Dict[str, torch.Tensor]
    cu_seqlens: Optional[Tuple[int, ...]]
    items: Optional[torch.Tensor]


@contextlib.contextmanager
def shard(model: nn.Module, batch: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """Inside, model(**local) works on this rank's part of the batch, and its loss is that of the whole batch, the same
    on every rank. Call backward(loss) inside too.

    model: parallelized, perhaps wrapped by DDP or FSDP. batch: whole sequences, the same on every rank of the sequence
    group: input_ids or inputs_embeds [B, T], and where there are, labels, attention_mask (padding on the left or the
    right) and position_ids. Packed sequences are one row, without an attention_mask, whose position_ids begin anew
    with each sequence, or with cu_seq_lens_q. labels are not shifted, as ever with transformers;
    num_items_in_batch: by what the sum of losses is divided, if not by the targets that count. Where the group's ownership
    is "zigzag", twice the ranks divide T.
    Collective. Raises liblasp.InvalidArgument (a ValueError), on every rank, before the model is called.
    """
    parallel = parallel_of(model)
    share, local = _cut(agreed(batch, parallel), parallel)
    with parallel.working_on(share):
        _thread.inside.append((parallel, model))
        try:
            yield local
        finally:
            _thread.inside.pop()


def backward(loss: torch.Tensor) -> None:
    """Gradients of the loss that the model gave inside of `with shard(model, batch)`, where it is called too: each
    rank's parameters then have those of the whole batch. Under DDP, FSDP and FSDP2 they are what one rank to a
    sequence would have, averaged over the data groups. Without them they are summed over the ranks here. A loss may be
    scaled before (accumulation, a gradient scaler). Collective. Raises liblasp.InvalidArgument (a ValueError)."""
    backward_of(*_inside(), loss)


def loss_to_average(loss: torch.Tensor) -> torch.Tensor:
    """For a trainer that calls backward itself: what it is to differentiate in place of the loss."""
    return averaged_loss(*_inside(), loss)


def agreed(batch: Mapping[str, Any], parallel: Parallel) -> Whole:
    failed = whole = None
    try:
        whole = _look_at(batch, parallel)
    except Exception as error:
        failed = error
    said = {"batch": None if whole is None else sorted((name, digest(each)) for name, each in batch.items()),
            "dropout": dropouts_of(parallel.model)}
    refuse_differences(said, parallel.group,
                       {"batch": "give every rank of a sequence group the same whole sequences",
                        "dropout": lambda: first_difference(parallel.model, parallel.group)}, failed)
    return whole


def _inside() -> Tuple[Parallel, nn.Module]:
    if not _thread.inside:
        raise invalid_argument("backward: outside of `with shard(model, batch)`: who averages gradients is known there "
                               "alone")
    return _thread.inside[-1]


def _look_at(batch: Mapping[str, Any], parallel: Parallel) -> Whole:
    if not isinstance(batch, Mapping):
        raise invalid_argument(f"batch = {describe(batch)}: must be a dict of tensors, as a tokenizer or a collator gives")
    for name, value in batch.items():
        if value is not None and name not in _KNOWN:
            raise invalid_argument(f"batch[{name!r}]: is nothing that shard knows how to cut: it knows "
                                   f"{', '.join(_KNOWN)}")
    tensors = {name: batch[name] for name in _TENSORS if batch.get(name) is not None}
    given = [name for name in ("input_ids", "inputs_embeds") if name in tensors]
    if len(given) != 1:
        raise invalid_argument("batch: must have one of input_ids and inputs_embeds")
    for name, value in tensors.items():
        dims = 3 if name == "inputs_embeds" else 2
        if not isinstance(value, torch.Tensor) or value.dim() != dims:
            raise invalid_argument(f"batch[{name!r}]: must be a tensor of {dims} dimensions, [B, T"
                                   f"{', D' * (dims - 2)}]")
    shape = tensors[given[0]].shape[:2]
    for name, value in tensors.items():
        if value.shape[:2] != shape and not (name == "position_ids" and value.shape == (1, shape[1])):
            raise invalid_argument(f"batch[{name!r}]: shape {list(value.shape)} does not go with {given[0]}'s "
                                   f"{list(shape)}")
    tokens = shape[1]
    if tokens < parallel.group.size:
        raise invalid_argument(f"batch: has {tokens} tokens, the sequence group {parallel.group.size} ranks: each needs "
                               "one")
    _refuse_unequal_parts(tokens, parallel)
    mask = tensors.get("attention_mask")
    if mask is not None and bool((mask != 0).all()):
        mask = None
        del tensors["attention_mask"]
    offsets = _offsets(batch, tensors.get("position_ids"), mask, tokens)
    if offsets is not None and (shape[0] != 1 or batch.get("attention_mask") is not None):
        raise invalid_argument("batch: packed sequences are one row [1, T] without an attention_mask")
    items = _items(batch, tensors)
    return Whole(tokens, tensors, offsets, items)


def _refuse_unequal_parts(tokens: int, parallel: Parallel) -> None:
    group = parallel.group
    parts = 2 * group.size
    if group.ownership == "zigzag" and tokens % parts:
        raise invalid_argument(f"batch: has {tokens} tokens, and the sequence group's zigzag cuts them into {parts} equal "
                               f"parts: pad the batch to {tokens + -tokens % parts}, with labels {_IGNORED} and "
                               "attention_mask 0 there, or by one more packed sequence")


def _offsets(batch, positions, mask, tokens) -> Optional[Tuple[int, ...]]:
    """Where packed sequences begin; None where there is one to a row."""
    given = batch.get("cu_seq_lens_q")
    if given is not None:
        offsets = take_offsets(given)
        check_offsets(offsets, tokens)
    if positions is None or mask is not None:  # padded rows may count from their first token
        return offsets if given is not None else None
    jumps = positions[:, 1:] != positions[:, :-1] + 1
    if given is None and bool(jumps.any()):
        if len(positions) > 1:
            return (0, tokens)  # refused with its sentence
        offsets = (0, *(int(at) + 1 for at in jumps[0].nonzero()), tokens)
    elif given is not None and [0, *(jumps[0].nonzero()[:, 0] + 1).tolist()] != sorted(set(offsets[:-1])):
        raise invalid_argument("batch['cu_seq_lens_q']: position_ids begin anew at other tokens")
    return offsets if given is not None or bool(jumps.any()) else None


def _items(batch, tensors) -> Optional[torch.Tensor]:
    if "labels" not in tensors:
        return None
    given = batch.get("num_items_in_batch")
    if given is not None:
        return torch.as_tensor(given, dtype=torch.float32)
    return (tensors["labels"][:, 1:] != _IGNORED).sum().float()


def with_places(whole: Whole) -> Dict[str, torch.Tensor]:
    """The tensors, with what depends on tokens in other shares: positions, and targets in `shift_labels`."""
    tensors = dict(whole.tensors)
    like = tensors.get("input_ids", tensors.get("inputs_embeds"))
    tensors.setdefault("position_ids", _positions(whole, like))
    if "labels" in tensors:
        end = torch.full_like(tensors["labels"][:, :1], _IGNORED)
        tensors["shift_labels"] = torch.cat([tensors["labels"][:, 1:], end], 1)
    return tensors


def _cut(whole: Whole, parallel: Parallel) -> Tuple[Share, Dict[str, Any]]:
    group = parallel.group
    local: Dict[str, Any] = {name: cut(each, group.rank, group.size, ownership=group.ownership).contiguous()
                             for name, each in with_places(whole).items()}
    return share_of(whole, local["position_ids"].shape[1], local), named(whole, local)


def named(whole: Whole, local: Dict[str, Any]) -> Dict[str, Any]:
    """What the model is called with for a part of the tokens."""
    if whole.items is not None:  # labels are not to be shifted again, whatever reads them
        local = {**local, "labels": local["shift_labels"], "num_items_in_batch": whole.items}
    return {**local, "use_cache": False}


def share_of(whole: Whole, tokens: int, local: Dict[str, Any]) -> Share:
    mask = local.get("attention_mask")
    return Share(tokens, whole.tokens, whole.cu_seqlens, None if mask is None else mask != 0, whole.items)


def _positions(whole: Whole, like: torch.Tensor) -> torch.Tensor:
    at = torch.arange(whole.tokens, device=like.device)
    if whole.cu_seqlens is not None:
        begins = torch.tensor(whole.cu_seqlens[:-1], device=like.device)
        at = at - begins[torch.searchsorted(begins, at, right=True) - 1]
    return at[None]
