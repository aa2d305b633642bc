"""What a time-segmented step hands from segment to segment: the state that every linear attention enters with, and the
one that it leaves."""
from __future__ import annotations

import threading
from typing import List, Optional

import torch

import lasp

from .checkpointing import is_checkpointed
from .problem import invalid_argument
from .sequence_group import sequence_group


class _Thread(threading.local):
    walk: Optional[Walk] = None  # the segment that this thread is in


_thread = _Thread()


class Walk:
    """One forward pass over one segment. `entering` are the states that the segment before left, in the order of the
    calls; None in the first segment. `leaving` grows call by call. `alone`: on this rank, whatever group is given."""

    def __init__(self, entering: Optional[List[torch.Tensor]], alone: bool = False):
        self.entering, self.leaving, self._alone = entering, [], alone

    def __enter__(self) -> Walk:
        if _thread.walk is not None:
            raise lasp.Unsupported("time_segments inside of time_segments")
        _thread.walk = self
        return self

    def __exit__(self, *exception) -> bool:
        _thread.walk = None
        if exception[0] is None and self.entering is not None and len(self.leaving) != len(self.entering):
            raise invalid_argument(f"model: called {len(self.leaving)} linear attentions in this segment and "
                                   f"{len(self.entering)} in the one before: it must make the same calls in all")
        return False

    def attend(self, function, q, k, v, decay, *, initial_state=None, cu_seqlens=None, causal=True, group=None,
               output_final_state=False, broadcast_final_state=False, **options):
        """`function` is linear_attention, whose arguments these are: with the state of the segment before."""
        if cu_seqlens is not None:
            raise lasp.Unsupported("cu_seqlens: packed sequences in time_segments")
        if is_checkpointed():
            raise lasp.Unsupported("lasp.torch.checkpoint inside of time_segments")
        if not causal:
            raise lasp.Unsupported("causal=False in time_segments: a token would see those of later segments")
        if initial_state is not None and self.entering is not None:
            raise lasp.Unsupported("initial_state in time_segments: the model gives a state of its own to each segment")
        if self.entering is not None:
            if len(self.leaving) >= len(self.entering):
                raise invalid_argument(f"model: calls more than the {len(self.entering)} linear attentions of the "
                                       "segment before: it must make the same calls in all")
            initial_state = self.entering[len(self.leaving)]
        if self._alone:
            group = None
        _thread.walk = None  # the call itself is an ordinary one
        try:
            o, state = function(q, k, v, decay, initial_state=initial_state, group=group, output_final_state=True,
                                broadcast_final_state=sequence_group(group).size > 1, **options)
        finally:
            _thread.walk = self
        self.leaving.append(state)
        return (o, state) if output_final_state else o


def current() -> Optional[Walk]:
    """The walk that this thread is in."""
    return _thread.walk
