"""Packed sequences of which a rank, or a segment in time, holds a part."""
from __future__ import annotations

import weakref
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from liblasp.arguments import offsets_in_memory, take_offsets

from .problem import invalid_argument, seen


_latest: List[Tuple[weakref.ref, int, Tuple[int, ...]]] = []  # what was read from a GPU: tensor, version, offsets
_MOST = 8


def offsets_of(cu_seqlens: Any) -> Tuple[int, ...]:
    """As whole numbers. A tensor on a GPU is read once, not by each layer: reading it waits for the GPU."""
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.is_cpu or cu_seqlens.is_inference():
        return take_offsets(cu_seqlens)
    return read_once(cu_seqlens)


def read_once(cu_seqlens: torch.Tensor) -> Tuple[int, ...]:
    """The offsets, which are remembered until torch writes to the tensor."""
    for tensor, version, offsets in _latest:
        if tensor() is cu_seqlens and version == cu_seqlens._version:
            return offsets
    offsets = take_offsets(cu_seqlens)
    _latest.insert(0, (weakref.ref(cu_seqlens), cu_seqlens._version, offsets))
    del _latest[_MOST:]
    return offsets


class Packing:
    """The sequences of one call. Its plan has room for the next power of two, so that few plans serve all packings."""

    def __init__(self, offsets: Tuple[int, ...], broadcast: bool = False):
        self.offsets = offsets
        self.broadcast = broadcast  # of final states, which the library leaves to the caller: a sum over the ranks
        self.count = len(offsets) - 1
        self.most = 1 << max(self.count - 1, 0).bit_length()
        self.memory = offsets_in_memory(offsets)  # as a pass takes it

    def seen_state(self, state: Optional[torch.Tensor]) -> Optional[Tuple]:
        """As the plan sees an initial state of this many sequences."""
        if state is None:
            return None
        if state.dim() != 4 or state.shape[0] != self.count:
            raise invalid_argument(f"initial_state: shape {tuple(state.shape)}, must be "
                                   f"{(self.count, *state.shape[1:])}: cu_seqlens has {self.count} sequences")
        if self.count == self.most:
            return seen(state)
        return seen(torch.empty((self.most, *state.shape[1:]), dtype=state.dtype, device="meta"))[:3] + (state.device,)

    def widened(self, state: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """A state with room for the plan's sequences; the rows behind those that there are hold zero."""
        if state is None or self.count == self.most:
            return state
        wide = state.new_zeros((self.most, *state.shape[1:]))
        wide[:self.count] = state
        return wide


class PackedPlan:
    """A Plan for one call with its packing: to be used as the Plan is."""

    def __init__(self, plan: Any, packing: Packing, group: Any):
        self._of, self._packing, self._group = plan, packing, group
        self.key = plan.key._replace(broadcast_final_state=packing.broadcast)
        self.state_shape = (packing.count, *plan.state_shape[1:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def forward(self, workspace, reuse_state_cache, q, k, v, decay, beta, initial_state, o, final_state,
                state_cache) -> None:
        pack = self._packing
        wide = pack.widened(final_state)
        self._of.pack_forward(*pack.memory)
        self._of.forward(workspace, reuse_state_cache, q, k, v, decay, beta, pack.widened(initial_state), o, wide,
                         state_cache)
        if wide is not final_state:
            final_state.copy_(wide[:pack.count])
        if pack.broadcast and not reuse_state_cache:
            final_state.copy_(self._group.sum(final_state))  # of the ranks that do not own a sequence zero

    def backward(self, workspace, inputs, d_o, d_final_state, state_cache, dq, dk, dv, d_decay,
                 d_beta, d_initial_state) -> None:
        pack = self._packing
        wide = pack.widened(d_initial_state)
        self._of.pack_backward(*pack.memory)
        self._of.backward(workspace, (*inputs[:5], pack.widened(inputs[5])), d_o, pack.widened(d_final_state),
                          state_cache, dq, dk, dv, d_decay, d_beta, wide)
        if wide is not d_initial_state:
            d_initial_state.copy_(wide[:pack.count])


class Cut(NamedTuple):
    """The sequences in a run of tokens, counted from the run's begin."""

    offsets: Tuple[int, ...]  # cu_seqlens of the run
    first_begin: int          # where its first sequence begins: below 0 if it comes in from before
    goes_on: bool             # its last sequence goes on after it

    @property
    def comes_in(self) -> bool:
        return self.first_begin < 0


def cut(offsets: Sequence[int], begin: int, end: int) -> Cut:
    """Tokens [begin, end), not empty, of packed sequences. Sequences without a token leave no trace."""
    inside = sorted({offset for offset in offsets if begin < offset < end})
    first = max(offset for offset in offsets if offset <= begin)
    return Cut((0, *(offset - begin for offset in inside), end - begin), first - begin, end not in offsets)


def check_offsets(offsets: Sequence[int], tokens: int) -> None:
    """Raises liblasp.InvalidArgument where they are not of `tokens` tokens."""
    if offsets[0] != 0 or offsets[-1] != tokens:
        raise invalid_argument(f"cu_seqlens: goes from {offsets[0]} to {offsets[-1]}, must go from 0 to the {tokens} "
                               "tokens of the inputs")
    for at, (one, following) in enumerate(zip(offsets, offsets[1:])):
        if following < one:
            raise invalid_argument(f"cu_seqlens[{at + 1}] = {following}: is below the {one} before it")
