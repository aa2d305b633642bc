"""Packed sequences of which a rank, or a segment in time, holds a part."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence, Tuple

import torch

from liblasp import raw
from liblasp.arguments import check_offsets, offsets_in_memory, take_offsets

from .problem import invalid_argument, seen


_TYPES = {torch.int32: raw.LASP_INT32, torch.int64: raw.LASP_INT64}


class Packing:
    """The sequences of one call. Its plan has room for the next power of two, so that few plans serve all packings.

    A tensor goes to the library as it is, and is never read here: reading one on a GPU would wait for the GPU.
    `offsets` is that tensor, which autograd watches between the passes; None where whole numbers were given."""

    def __init__(self, cu_seqlens: Any, device: torch.device, broadcast: bool = False):
        self.broadcast = broadcast  # of final states, which the library leaves to the caller: a sum over the ranks
        self.offsets: Optional[torch.Tensor] = None
        if isinstance(cu_seqlens, torch.Tensor):
            self.offsets = check_tensor(cu_seqlens, device)
            self.count = self.offsets.shape[0] - 1
            self.memory = _memory_of(self.offsets)
        else:
            self.memory = offsets_in_memory(take_offsets(cu_seqlens))  # as a pass takes it
            self.count = self.memory[2]
        self.most = 1 << max(self.count - 1, 0).bit_length()

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


def check_tensor(cu_seqlens: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The offsets in one piece, for inputs on `device`. Raises liblasp.InvalidArgument by what can be seen without
    reading them."""
    if cu_seqlens.dtype not in _TYPES or cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
        raise invalid_argument(f"cu_seqlens: is a tensor {list(cu_seqlens.shape)} of {cu_seqlens.dtype}, must be "
                               "[N + 1] of torch.int32 or torch.int64")
    if not cu_seqlens.is_cpu and cu_seqlens.device != device:
        raise invalid_argument(f"cu_seqlens: is on {cu_seqlens.device}, must be on q's {device} or on the CPU")
    if cu_seqlens.is_inference() and not torch.is_inference_mode_enabled():
        return cu_seqlens.clone()  # autograd keeps no other
    return cu_seqlens.contiguous()


def _memory_of(offsets: torch.Tensor) -> Tuple[int, int, int, int, int, Any]:
    """As liblasp.arguments.offsets_in_memory."""
    where = raw.LASP_DEVICE_CPU if _on_host(offsets) else raw.LASP_DEVICE_CUDA
    return (offsets.data_ptr(), offsets.numel() * offsets.element_size(), offsets.shape[0] - 1, _TYPES[offsets.dtype],
            where, offsets)


class PackedPlan:
    """A Plan for one call with its packing: to be used as the Plan is."""

    def __init__(self, plan: Any, packing: Packing, group: Any):
        self._of, self._packing, self._group = plan, packing, group
        self.offsets = packing.offsets
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


def offsets_on(device: torch.device, cu_seqlens: Any, total: Optional[int]) -> torch.Tensor:
    """As a tensor there, without a wait for it. What lies on the host is checked, for `total` tokens of all ranks unless
    None; what lies on a GPU is not read."""
    if isinstance(cu_seqlens, torch.Tensor):
        cu_seqlens = check_tensor(cu_seqlens, device)
        if not _on_host(cu_seqlens):
            return cu_seqlens
        cu_seqlens = cu_seqlens.tolist()
    offsets = take_offsets(cu_seqlens) if total is not None else cu_seqlens
    if total is not None:
        check_offsets(offsets, total, padded=True)
    tensor = torch.tensor(offsets)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _on_host(offsets: torch.Tensor) -> bool:
    return offsets.is_cpu
