"""verify: whether a model over a split sequence computes what one rank would, and if not, where and why."""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch import nn

import liblasp
from liblasp.arguments import describe, take_flag

from ..halo import process_group_of
from ..ownership import refuse_other_cuts, runs_of
from ..problem import invalid_argument
from ..sequence_group import Group, SequenceGroup, names_a_group, sequence_group
from . import diagnosis
from .calls import Called, Place, Tensors, at, flat, joined, of_tokens, recorded
from .report import Finding, Report
from .slow import slow_decays

__all__ = ["Finding", "Report", "verify"]
_BY_HF = "_liblasp_parallel"  # what liblasp.torch.hf leaves in a module
_ORDER = ("leaks", "restarts", "positions", "scaled", "double counts", "mean per rank", "local labels", "differs")
# Of outputs from equal inputs, the loss, and gradients: above what rounding does, below what a mistake does.
_BOUNDS, _BOUNDS_IN_16_BITS = (1e-4, 1e-5, 2e-3), (0.05, 5e-3, 0.3)


class _Step(NamedTuple):
    loss: float
    gradients: Dict[str, torch.Tensor]
    calls: List[Called]
    logits: Optional[torch.Tensor]


def verify(model: nn.Module, batch: Any, group: Group, *, split: Optional[Callable[[nn.Module, Any], torch.Tensor]] = None,
           whole: Optional[Callable[[nn.Module, Any], torch.Tensor]] = None, packed: bool = True) -> Report:
    """Runs a training step on one rank and one over the ranks of the `group`, and compares loss, every parameter's
    gradient and every module's output. Prints nothing: str(report) tells all, report.ok whether they are the same.

    model: on every rank the same; parallelized by liblasp.torch.hf, or one of your own. It runs in evaluation mode;
      decays that are found by name (A_log, slopes, slope_rate, log_rate) are made slow meanwhile, so that fast ones
      hide nothing. Give it in float32: 16 bits hide mistakes below a twentieth. DDP may be around it, FSDP not.
    batch: whole sequences, the same on every rank: a tensor [B, T, ...] or a dict of them. Some hundred tokens; the
      unsplit step runs on every rank.
    group: its ownership, "contiguous" or "zigzag", says how `split` cuts; a model of liblasp.torch.hf knows by itself.
    split(model, batch): your step over the ranks as you train: cut the batch, forward, backward, and whatever sums or
      averages gradients, so that each rank's parameters then have those of the whole batch. Gives the loss. None: shard
      and backward of liblasp.torch.hf.
    whole(model, batch): the same step on one rank. None: model(**batch) or model(batch), whose groups are taken away
      meanwhile, and backward of its loss.
    packed: whether packed sequences are tried too, where `split` is None.

    Each module is judged from the inputs that it has on one rank, so that one mistake is told once. Collective. Raises
    liblasp.InvalidArgument (a ValueError), and what a step raises.
    """
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    if not isinstance(inner, nn.Module):
        raise invalid_argument(f"model = {describe(model)}: must be a torch.nn.Module")
    for name, function in (("split", split), ("whole", whole)):
        if function is not None and not callable(function):
            raise invalid_argument(f"{name} = {describe(function)}: must be a function of the model and the batch")
    ranks, tokens = sequence_group(group), _tokens(batch)
    process_group_of(ranks)
    parallel = next((module.__dict__[_BY_HF] for module in inner.modules() if _BY_HF in module.__dict__), None)
    by_hf = parallel is not None
    if by_hf:
        ranks = ranks.owned(parallel.group.ownership)
    refuse_other_cuts(ranks.ownership, "verify")
    if tokens < ranks.size:
        raise invalid_argument(f"batch: has {tokens} tokens, the group {ranks.size} ranks")
    places = [runs_of(ranks.ownership, tokens, rank, ranks.size) for rank in range(ranks.size)]
    if split is None and not by_hf:
        raise invalid_argument("split: is needed for a model that liblasp.torch.hf has not parallelized")
    case = _Case(inner, model, ranks, places, by_hf, split or _hf_split, whole or (_hf_whole if by_hf else _own_whole))
    found: List[Finding] = []
    with _undisturbed(inner), slow_decays(inner) as slowed:
        modules, parameters = case.compare(batch, tokens, None, found)
        offsets = _offsets(tokens) if take_flag(packed, "packed") and split is None and tokens >= 8 else None
        if offsets is not None:
            case.compare(_packed(batch, offsets), tokens, offsets, found)
    return Report(tuple(_merged(found, ranks)), modules, parameters, slowed, offsets is not None)


class _Case(NamedTuple):
    inner: nn.Module
    outer: nn.Module
    ranks: SequenceGroup
    places: Sequence[Place]  # of each rank
    by_hf: bool
    split: Callable[[nn.Module, Any], torch.Tensor]
    whole: Callable[[nn.Module, Any], torch.Tensor]

    def compare(self, batch: Any, tokens: int, offsets: Optional[Sequence[int]],
                found: List[Finding]) -> Tuple[int, int]:
        place = self.places[self.ranks.rank]
        own = sum(run.end - run.begin for run in place)
        if offsets is None:
            one = self._step(lambda: self.whole(self.inner, batch), tokens)
        else:
            one = self._by_sequence(batch, offsets)
        many = self._step(lambda: self.split(self.outer, batch), own)
        wanted = at(one.calls, place)
        coarse = any(each.dtype in (torch.bfloat16, torch.float16) for each in self.inner.parameters())
        outputs, loss, gradients = _BOUNDS_IN_16_BITS if coarse else _BOUNDS
        forced = self._step(lambda: self.split(self.outer, batch), own, wanted)
        blamed, wrong = diagnosis.suspects(wanted, forced.calls, outputs)
        found += wrong
        blamed = {name for each in _everybody(blamed, self.ranks) for name in each}
        if blamed:
            again = self._step(lambda: self.split(self.outer, batch), own, wanted, blamed)
            found += diagnosis.modules(wanted, again.calls, blamed, outputs, place, offsets, self._alone)
        losses = _everybody((many.loss, bool(found)), self.ranks)
        labels = batch.get("labels") if isinstance(batch, dict) else None
        wrong_elsewhere = any(each[1] for each in losses)
        of_loss = diagnosis.loss(one.loss, [each[0] for each in losses], loss, one.logits, labels, self.places)
        if of_loss is not None and not (wrong_elsewhere and of_loss.kind == "differs"):
            found.append(of_loss)
        of_gradients = diagnosis.gradients(one.gradients, many.gradients, gradients, self.ranks.size)
        if of_gradients is not None and not (wrong_elsewhere and of_gradients.kind == "differs"):
            found.append(of_gradients)
        return len({each.name for each in wanted}), len(one.gradients)

    def _step(self, run: Callable[[], torch.Tensor], tokens: int, instead: Optional[List[Called]] = None,
              only: Optional[Set[str]] = None) -> _Step:
        self.inner.zero_grad(set_to_none=True)
        with recorded(self.inner, tokens, instead, only) as calls:
            loss = run()
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise invalid_argument("split and whole: must give the loss, a scalar tensor")
        root = next((each for each in calls if each.name == ""), None)
        logits = root.given.get("/logits") if root else None
        gradients = {name: each.grad.detach().double() for name, each in self.inner.named_parameters()
                     if each.grad is not None}
        return _Step(float(loss.detach()), gradients, calls, logits)

    def _by_sequence(self, batch: Dict[str, torch.Tensor], offsets: Sequence[int]) -> _Step:
        """One rank's step on packed sequences, each for itself."""
        count = (batch["labels"][:, 1:] != -100).sum()
        steps = []
        total: Dict[str, torch.Tensor] = {}
        for begin, end in zip(offsets, offsets[1:]):
            part = {name: each[:, begin:end] for name, each in batch.items() if name != "position_ids"}
            steps.append(self._step(lambda: _hf_whole(self.inner, {**part, "num_items_in_batch": count}), end - begin))
            for name, each in steps[-1].gradients.items():
                total[name] = total.get(name, 0) + each
        return _Step(sum(each.loss for each in steps), total, joined([each.calls for each in steps]), None)

    def _alone(self, call: Called) -> Optional[Tensors]:
        """What a module gives on this rank's tokens, without a group."""
        arguments, named = call.inputs
        if not call.offered or not call.name:
            return None
        tokens = next(iter(call.offered.values())).shape[1]
        if self.by_hf:
            from ..hf import whole
            context = whole(self.inner)
        else:
            context = _without_groups(self.inner)
        try:
            with torch.no_grad(), context:
                given = self.inner.get_submodule(call.name)(*arguments, **named)
        except (RuntimeError, liblasp.Error):  # it leans on what is around it
            return None
        return of_tokens(given, tokens)


def _merged(found: List[Finding], ranks: SequenceGroup) -> List[Finding]:
    """Of all ranks, one for each place; the ranks before may not see what the others do."""
    merged: Dict[str, Finding] = {}
    everybody = _everybody(found, ranks)
    for each in (one for own in everybody for one in own):
        known = merged.get(each.where)
        if known is None or _ORDER.index(each.kind) < _ORDER.index(known.kind):
            merged[each.where] = each
    # Of a zigzag the first rank has the end too.
    right_at_first = merged.keys() - {each.where for each in everybody[0]} if ranks.ownership == "contiguous" else ()
    for where in right_at_first:
        if merged[where].kind == "differs":
            merged[where] = Finding(where, "restarts", f"{merged[where].sentence}, on every rank but the first: some of "
                                    "what it should know of the ranks before does not reach it")
    return list(merged.values())


def _everybody(own: Any, ranks: SequenceGroup) -> List[Any]:
    """What each rank says."""
    found: List[Any] = [None] * ranks.size
    dist.all_gather_object(found, own, group=ranks.process_group)
    return found


def _tokens(batch: Any) -> int:
    for each in flat(batch).values():
        if each.dim() >= 2:
            return each.shape[1]
    raise invalid_argument("batch: has no tensor [B, T, ...]")


def _offsets(tokens: int) -> Tuple[int, ...]:
    """Sequences that end within a rank, on both sides of a border, and a short one."""
    return (0, tokens // 3, tokens // 3 + 2, tokens * 3 // 4, tokens)


def _packed(batch: Dict[str, torch.Tensor], offsets: Sequence[int]) -> Dict[str, torch.Tensor]:
    """The first row of a batch, as packed sequences."""
    packed = {name: batch[name][:1] for name in ("input_ids", "inputs_embeds") if name in batch}
    labels = batch["labels"][:1].clone()
    labels[:, list(offsets[1:-1])] = -100
    positions = [torch.arange(end - begin, device=labels.device) for begin, end in zip(offsets, offsets[1:])]
    return {**packed, "labels": labels, "position_ids": torch.cat(positions)[None]}


def _hf_split(model: nn.Module, batch: Any) -> torch.Tensor:
    from .. import hf
    with hf.shard(model, batch) as local:
        loss = model(**local).loss
        hf.backward(loss)
    return loss


def _hf_whole(model: nn.Module, batch: Any) -> torch.Tensor:
    from .. import hf
    with hf.whole(model):
        loss = model(**batch, use_cache=False).loss
        loss.backward()
    return loss


def _own_whole(model: nn.Module, batch: Any) -> torch.Tensor:
    with _without_groups(model):
        given = model(**batch) if isinstance(batch, dict) else model(batch)
        loss = getattr(given, "loss", given)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise invalid_argument("whole: is needed where the model itself gives no loss")
        loss.backward()
    return loss


@contextlib.contextmanager
def _without_groups(model: nn.Module):
    kept = [(module, module.group) for module in model.modules()
            if getattr(module, "group", None) is not None and names_a_group(module.group)]
    for module, _ in kept:
        module.group = None
    try:
        yield
    finally:
        for module, group in kept:
            module.group = group


@contextlib.contextmanager
def _undisturbed(model: nn.Module):
    """The model as it was: its gradients, and which modules train."""
    gradients = [(each, each.grad) for each in model.parameters()]
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for each, gradient in gradients:
            each.grad = gradient
        for module in training:
            module.training = True
