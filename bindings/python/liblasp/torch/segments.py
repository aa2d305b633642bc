"""Training steps over sequences of any length: checkpoints in time.

A linear attention's past is one state. So a sequence can be cut in time. A first pass without gradients keeps only the
states at the cuts. The second pass takes the last segment first: it runs the segment again with gradients, then
backward, and the gradient of the state that the segment began with goes to the segment before. This costs as much as
full recomputation, and memory does not grow with the length, except for the states: [B, H, K, V] float32 for each
attention and cut.
"""
from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import nn

import liblasp
from liblasp.arguments import check_offsets, describe, take_flag, take_integer, take_offsets

from .mixing import refuse_what_mixes_tokens
from .packing import Cut, cut
from .problem import invalid_argument, refuse_distributed
from .sequence_group import Group, SequenceGroup, sequence_group
from .sharding import shard
from .telling import passes_told
from .walking import BackwardPass, Walk

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]
_tried_out: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def time_segments(model: nn.Module, inputs: Tensors, targets: Tensors, loss: Callable[..., torch.Tensor], *,
                  segment: int, cu_seqlens: Union[None, torch.Tensor, Sequence[int]] = None, group: Group = None,
                  check: bool = True,
                  progress: Union[bool, Callable[[int, int], Any], None] = None) -> torch.Tensor:
    """Forward and backward of one step over a sequence of any length, `segment` tokens at a time. Adds the gradients
    to the parameters' `grad`, as `backward()` does. Returns the loss, detached: with a group this rank's part of it, to
    be summed over the ranks. Under torch.no_grad() it only finds the loss, by one pass.

    model: its linear attentions and short convolutions are liblasp.torch's; everything else in it acts on a token
      alone. It takes a piece of each of `inputs`. DDP and FSDP reduce gradients once, with the last backward pass.
    inputs, targets: a tensor, or several, [B, T, ...]: whole sequences, on every rank. They are cut into pieces of
      `segment` tokens, the last one shorter, and the model sees this rank's share of each.
    loss: a function of (model's output, *pieces of the targets) that gives a scalar. It is summed over segments and
      ranks, so divide by the tokens of the whole sequence, not by those of the piece. DDP and FSDP give the mean of
      the ranks' gradients: multiply by the ranks there.
    segment: tokens in one piece, on all ranks together.
    cu_seqlens: packed sequences: N + 1 offsets into the T tokens, B = 1. Segments cut them anywhere. The model's
      attentions and convolutions are given their part; the model itself must give them none.
    group: the sequence group of the model's linear attentions and short convolutions.
    check: whether the model is tried out first, once for each model: 32 tokens in one piece and in two must give the
      same. What mixes tokens in another way is refused by name, where the difference is above a thousandth (a tenth in
      a model of 16 bits). It finds most mistakes, not all. The ranks' inputs must be the same, too.
    progress: progress(done, total) is called after each pass is launched. True: a bar, by the package tqdm.

    Dropout has the same masks in both passes. The first pass of a segment stops after the last attention; it runs to
    the end if the model uses dropout, forward hooks or FSDP. Raises liblasp.InvalidArgument (a ValueError) and what
    linear_attention raises.
    """
    inputs, targets = _as_tensors("inputs", inputs), _as_tensors("targets", targets)
    if not isinstance(model, nn.Module):
        raise invalid_argument(f"model = {describe(model)}: must be a torch.nn.Module")
    if type(model).__module__.startswith("deepspeed."):
        raise liblasp.Unsupported("model: an engine of DeepSpeed runs backward passes of its own, and reduces gradients "
                                  "in each: give time_segments a model under DDP, FSDP or FSDP2")
    for tensor in (*inputs, *targets):
        refuse_distributed(tensor=tensor)
    refuse_distributed(cu_seqlens=cu_seqlens)
    if not callable(loss):
        raise invalid_argument(f"loss = {describe(loss)}: must be a function")
    segment, ranks = take_integer(segment, "segment", least=1), sequence_group(group)
    ranks.require_contiguous("time_segments")
    tokens = inputs[0].shape[1]
    for name, tensors in (("inputs", inputs), ("targets", targets)):
        for tensor in tensors:
            if tensor.shape[1] != tokens:
                raise invalid_argument(f"{name}: a tensor has {tensor.shape[1]} tokens, inputs[0] has {tokens}")
    offsets = None if cu_seqlens is None else take_offsets(cu_seqlens)
    if offsets is not None:
        check_offsets(offsets, tokens)
    pieces = _pieces(tokens, segment, offsets)
    step = _step if torch.is_grad_enabled() else _loss_alone
    with passes_told(progress, 2 * len(pieces) - 1 if step is _step else len(pieces)) as passed:
        if take_flag(check, "check") and model not in _tried_out:
            _refuse_shares(inputs, ranks)
            if refuse_what_mixes_tokens(model, inputs):
                _tried_out.add(model)
        return step(model, inputs, targets, loss, pieces, ranks, passed)


class _Piece(NamedTuple):
    begin: int
    end: int
    packing: Optional[Cut]

    def of(self, tensors: Sequence[torch.Tensor], ranks: SequenceGroup) -> List[torch.Tensor]:
        """This rank's share of this piece of each."""
        return [shard(tensor[:, self.begin:self.end], ranks.rank, ranks.size) for tensor in tensors]

    def walk(self, entering, ranks, enough=None) -> Walk:
        return Walk(entering, self.end - self.begin, self.packing, ranks, enough=enough)


def _pieces(tokens, segment, offsets) -> List[_Piece]:
    begins = range(0, max(tokens, 1), segment)
    ends = [min(begin + segment, tokens) for begin in begins]
    packings = [cut(offsets, begin, end) if offsets and begin < end else None for begin, end in zip(begins, ends)]
    return [_Piece(*piece) for piece in zip(begins, ends, packings)]


def _step(model, inputs, targets, loss, pieces, ranks, passed) -> torch.Tensor:
    random = _Random(inputs[0].device)
    entering = _states_at_the_cuts(model, inputs, pieces, ranks, random, passed)
    total, gradients, after = None, None, None
    for i in reversed(range(len(pieces))):
        states = entering.pop()
        if states is not None:
            states = [state.detach().requires_grad_() for state in states]
        random.put_back(i)
        torch.clear_autocast_cache()  # as if each pass had an autocast of its own
        with _gradients_reduced(model, i == 0):
            with pieces[i].walk(states, ranks) as walk:
                part = loss(model(*pieces[i].of(inputs, ranks)), *pieces[i].of(targets, ranks))
            if after is None:
                after = random.now()  # where one pass over all would have come to
            total = _scalar(part) if total is None else total + _scalar(part)
            _backward(part, walk.leaving, gradients)
        gradients = None if states is None else [_gradient_of(state) for state in states]
        passed()
    random.set(after)
    return total


def _loss_alone(model, inputs, targets, loss, pieces, ranks, passed) -> torch.Tensor:
    total, states = None, None
    for piece in pieces:
        with piece.walk(states, ranks) as walk:
            part = _scalar(loss(model(*piece.of(inputs, ranks)), *piece.of(targets, ranks)))
        total, states = part if total is None else total + part, walk.leaving
        passed()
    return total


def _scalar(part) -> torch.Tensor:
    if not isinstance(part, torch.Tensor) or part.dim() != 0:
        found = f"a tensor {list(part.shape)}" if isinstance(part, torch.Tensor) else describe(part)
        raise invalid_argument(f"loss: must return a scalar tensor, not {found}")
    return part.detach()


def _refuse_shares(inputs, ranks) -> None:
    """Every rank has the whole sequence; one that has its share would learn something else, without a word."""
    if ranks.process_group is None or ranks.size == 1:
        return
    sums = torch.stack([tensor.detach().double().sum().to(inputs[0].device) for tensor in inputs])
    own = torch.cat([sums, sums.new_tensor([each for tensor in inputs for each in tensor.shape[:2]])])
    if dist.get_backend(ranks.process_group) == "nccl":  # which carries nothing else; a model may move its inputs itself
        own = own.cuda()
    found = [torch.empty_like(own) for _ in range(ranks.size)]
    dist.all_gather(found, own, group=ranks.process_group)
    if any(not torch.equal(other.nan_to_num(), own.nan_to_num()) for other in found):
        raise invalid_argument("inputs: differ between the ranks: each must give whole sequences, the same on every rank; "
                               "time_segments finds its share")


def _states_at_the_cuts(model, inputs, pieces, ranks, random, passed) -> list:
    """What each segment enters with; None for the first."""
    entering, enough = [None], None
    for i, piece in enumerate(pieces[:-1]):
        random.keep()
        torch.clear_autocast_cache()
        with torch.no_grad(), piece.walk(entering[i], ranks, enough) as walk:
            model(*piece.of(inputs, ranks))
        if not walk.leaving:
            raise invalid_argument("model: no linear attention of liblasp.torch was called in the first segment, so "
                                   "there is nothing by which a token could know of those before")
        if i == 0 and not random.was_used() and not _hooked(model):
            enough = len(walk.leaving)
        entering.append(walk.leaving)
        passed()
    random.keep()
    return entering


def _hooked(model: nn.Module) -> bool:
    """Whether somebody waits for the end of a module's forward pass."""
    return any(module._forward_hooks or type(module).__name__ == "FullyShardedDataParallel"
               for module in model.modules())


def _as_tensors(name: str, given: Tensors) -> Tuple[torch.Tensor, ...]:
    tensors = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not tensors or not all(isinstance(each, torch.Tensor) and each.dim() >= 2 for each in tensors):
        raise invalid_argument(f"{name}: must be a tensor [B, T, ...], or several")
    return tensors


def _backward(loss, leaving, gradients) -> None:
    roots, seeds = [loss], [None]
    if gradients is not None:
        for state, gradient in zip(leaving, gradients):
            if state.shape != gradient.shape:
                raise invalid_argument(f"model: a state has shape {list(state.shape)}, in the next segment "
                                       f"{list(gradient.shape)}")
            if state.requires_grad:
                roots.append(state)
                seeds.append(gradient)
    with torch.autocast(loss.device.type, enabled=False), BackwardPass():
        torch.autograd.backward(roots, seeds)


def _gradient_of(state: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(state) if state.grad is None else state.grad


@contextlib.contextmanager
def _gradients_reduced(model: nn.Module, now: bool):
    """DDP, FSDP and FSDP2 reduce gradients in this pass, or leave them for a later one."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(now)
        yield
    elif hasattr(model, "no_sync") and not now:
        with model.no_sync():
            yield
    else:
        yield


class _Random:
    """The state of the random numbers at the begin of each segment."""

    def __init__(self, device: torch.device):
        self._device = device if device.type == "cuda" else None
        self._kept: list = []

    def now(self):
        return torch.get_rng_state(), torch.cuda.get_rng_state(self._device) if self._device else None

    def set(self, state) -> None:
        torch.set_rng_state(state[0])
        if self._device:
            torch.cuda.set_rng_state(state[1], self._device)

    def keep(self) -> None:
        self._kept.append(self.now())

    def was_used(self) -> bool:
        """Since the last `keep`."""
        kept, now = self._kept[-1], self.now()
        return any(one is not None and not torch.equal(one, other) for one, other in zip(kept, now))

    def put_back(self, segment: int) -> None:
        self.set(self._kept[segment])
