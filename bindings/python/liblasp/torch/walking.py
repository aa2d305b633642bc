"""What a time-segmented step hands from segment to segment: what every linear attention and every short convolution
needs to know of the tokens before."""
from __future__ import annotations

import threading
from typing import List, Optional

import torch

import liblasp

from .checkpointing import is_checkpointed
from .packing import Cut
from .problem import invalid_argument
from .sequence_group import SequenceGroup, sequence_group
from .sharding import shard_bounds


class _Thread(threading.local):
    walk: Optional[Walk] = None  # the segment that this thread is in


_thread = _Thread()
walks = 0  # in all threads; a compiled program guards on it
_counting = threading.Lock()
backward_passes: List[object] = []  # of time_segments, in all threads


class _Enough(BaseException):
    """Ends a forward pass of which only the states are wanted. No Exception, so that no model catches it."""


class Walk:
    """One forward pass over one segment of `tokens` tokens, of all ranks together.

    entering: what the segment before left, in the order of the calls; None in the first segment. `leaving` grows call
      by call.
    packing: the sequences that are packed in this segment.
    ranks: the group that the segment is split over; None: none.
    alone: on this rank, whatever group is given.
    enough: ends the pass with this many states, where only they are wanted."""

    def __init__(self, entering: Optional[List[torch.Tensor]], tokens: int, packing: Optional[Cut] = None,
                 ranks: Optional[SequenceGroup] = None, alone: bool = False, enough: Optional[int] = None):
        self.entering, self.leaving = entering, []
        self.tokens, self.packing = tokens, packing
        self._ranks, self._alone, self._enough = ranks, alone, enough

    def __enter__(self) -> Walk:
        if _thread.walk is not None:
            raise liblasp.Unsupported("time_segments inside of time_segments")
        _thread.walk = self
        _count(1)
        return self

    def __exit__(self, kind, *exception) -> bool:
        _thread.walk = None
        _count(-1)
        if kind is _Enough:
            return True
        if kind is None and self.entering is not None and len(self.leaving) != len(self.entering):
            raise invalid_argument(f"model: carries {len(self.leaving)} states in this segment and "
                                   f"{len(self.entering)} in the one before: it must make the same calls in all")
        return False

    def attend(self, function, q, k, v, decay, *, initial_state=None, cu_seqlens=None, causal=True, group=None,
               output_final_state=False, broadcast_final_state=False, total_tokens=None, **options):
        """`function` is linear_attention, whose arguments these are: with the state of the segment before."""
        self._refuse_what_a_model_cannot_do(cu_seqlens)
        if not causal:
            raise liblasp.Unsupported("causal=False in time_segments: a token would see those of later segments")
        entering, packing = self._next(), self.packing
        if initial_state is not None and entering is not None:
            raise liblasp.Unsupported("initial_state in time_segments: the model gives a state of its own to each "
                                      "segment")
        if packing is None:
            initial_state = initial_state if entering is None else entering
        elif initial_state is not None or output_final_state:
            raise liblasp.Unsupported("initial_state and output_final_state in time_segments with cu_seqlens: a "
                                      "segment does not hold all sequences")
        else:
            options["cu_seqlens"] = packing.offsets
            if entering is not None and packing.comes_in:
                others = entering.new_zeros(len(packing.offsets) - 2, *entering.shape[1:])
                initial_state = torch.cat([entering, others])
        ranks = self._ranks_of("linear_attention", group)
        _thread.walk = None  # the call itself is an ordinary one
        try:
            o, state = function(q, k, v, decay, initial_state=initial_state, group=ranks, output_final_state=True,
                                total_tokens=self.tokens if ranks.size > 1 else None,
                                broadcast_final_state=ranks.size > 1, **options)
        finally:
            _thread.walk = self
        if packing is not None and len(packing.offsets) > 2:
            state = state[-1:] if state.requires_grad else state[-1:].clone()  # the others' memory goes
        self._leave(state)
        return (o, state) if output_final_state else o

    def convolve(self, function, x, group, cu_seqlens):
        """`function` of ShortConvolution: with the rows that come before the segment, and its packing."""
        self._refuse_what_a_model_cannot_do(cu_seqlens)
        entering = self._next()
        ranks = self._ranks_of("ShortConvolution", group)
        offsets, begin = None, 0
        if self.packing is not None:
            offsets = (self.packing.first_begin, *self.packing.offsets[1:])
            begin, _ = shard_bounds(self.tokens, ranks.rank, ranks.size)
        y, last = function(x, entering, ranks, offsets, begin)
        self._leave(last)
        return y

    def _ranks_of(self, what, group) -> SequenceGroup:
        if self._alone:
            return sequence_group(None)
        given, wanted = sequence_group(group), self._ranks or sequence_group(None)
        given.require_contiguous("time_segments")
        if (given.rank, given.size) != (wanted.rank, wanted.size):
            raise invalid_argument(f"group: a {what} of the model is rank {given.rank} of {given.size}, time_segments is "
                                   f"rank {wanted.rank} of {wanted.size}: give both the same group")
        return given

    def _next(self) -> Optional[torch.Tensor]:
        if self.entering is None:
            return None
        if len(self.leaving) >= len(self.entering):
            raise invalid_argument(f"model: carries more than the {len(self.entering)} states of the segment before: "
                                   "it must make the same calls in all")
        return self.entering[len(self.leaving)]

    def _leave(self, state: torch.Tensor) -> None:
        self.leaving.append(state)
        if len(self.leaving) == self._enough:
            raise _Enough

    @staticmethod
    def _refuse_what_a_model_cannot_do(cu_seqlens) -> None:
        if cu_seqlens is not None:
            raise liblasp.Unsupported("cu_seqlens in a model under time_segments: give them to time_segments, which "
                                      "cuts them")
        if is_checkpointed():
            raise liblasp.Unsupported("liblasp.torch.checkpoint inside of time_segments: take shorter segments")


def _count(by: int) -> None:
    global walks
    with _counting:
        walks += by


def refuse_operator() -> None:
    """An operator has no way to hand on the state."""
    if _thread.walk is not None:
        raise liblasp.Unsupported("an exported program inside of time_segments: its states are not carried on; give "
                                  "time_segments the module itself")


class BackwardPass:
    """Around a backward pass of time_segments, which recomputes nothing: the states would be missing."""

    def __enter__(self) -> None:
        backward_passes.append(self)

    def __exit__(self, *exception) -> None:
        backward_passes.remove(self)


def current() -> Optional[Walk]:
    """The walk that this thread is in. Refuses a call out of a backward pass of time_segments."""
    if backward_passes and _thread.walk is None and torch._C._current_graph_task_id() != -1:
        raise liblasp.Unsupported("torch.utils.checkpoint inside of time_segments: take shorter segments")
    return _thread.walk
