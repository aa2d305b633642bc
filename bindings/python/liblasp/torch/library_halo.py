"""The rows before a rank's tokens by the library's halo, over whatever a group's messages travel by."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.autograd.function import once_differentiable

import liblasp
from liblasp import raw
from liblasp.arrays import torch_stream
from liblasp.memory import Memory

from .problem import DTYPES


def check_rows(x: torch.Tensor) -> None:
    """Raises liblasp.InvalidArgument for an x whose rows the library does not carry."""
    if x.dtype not in DTYPES:
        raise liblasp.InvalidArgument(f"x: dtype {x.dtype} is not one of float32, bfloat16 and float16")


def rows_by_the_library(x: torch.Tensor, halo: Halo, offsets: Optional[Sequence[int]] = None) -> torch.Tensor:
    """The rows [runs * B, count, C] before each of the runs of this rank's x [B, T, C], zero before the first row of all.
    They may be another sequence's, where sequences are packed. Of a halo with max_sequences [runs * max_sequences, count,
    C], before each sequence's part of a run, and zero before a sequence; `offsets` are those of its sequences, and may be
    refused. Differentiable and collective."""
    return _Rows.apply(x, halo, offsets)


class Halo:
    """A halo on a plan of its own, for x of one shape and layout. What is no longer used goes to `unused`, for the
    thread that uses the context to free it (see `free`): garbage is collected on any."""

    def __init__(self, context: liblasp.Context, x: torch.Tensor, count: int, unused: List[Tuple],
                 ownership: Dict[str, Any], max_sequences: int):
        batch, tokens, channels = x.shape
        self.max_sequences = max_sequences  # 0: rows come for each of the batch
        self._unused = unused
        self._plan = context.plan(batch=batch, tokens=tokens, head_dim_k=8, head_dim_v=8, dtype=DTYPES[x.dtype],
                                  backward=False, max_sequences=max_sequences, **ownership)
        options = raw.lasp_halo_options()
        options.rows, options.channels = count, channels
        if not x.is_contiguous():
            options.x.flags, options.x.batch, options.x.token = raw.LASP_LAYOUT_STRIDED, *x.stride()[:2]
        self._handle = None
        try:
            self._handle = raw.lasp_halo_create(self._plan.handle, options)
        except liblasp.Error:
            self._plan.close()
            raise
        info = raw.lasp_halo_info()
        raw.lasp_halo_get_info(self._handle, info)
        self.begin, self.total_tokens = self._plan.info.token_begin, self._plan.info.total_tokens
        self._workspace_bytes = info.workspace_bytes
        # Of each run of tokens, the most that any rank has.
        self._shape, self._before_shape = x.shape, (self._plan.info.num_runs * (max_sequences or batch), count,
                                                    channels)
        self._x_bytes = 0
        if x.numel():
            self._x_bytes = x.element_size() * (1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride())))

    def forward(self, x: torch.Tensor, offsets: Optional[Sequence[int]]) -> torch.Tensor:
        before = x.new_empty(self._before_shape)
        self._call(raw.lasp_halo_forward, x, offsets, x=(x, self._x_bytes), before=_whole(before))
        return before

    def backward(self, d_before: torch.Tensor, offsets: Optional[Sequence[int]]) -> torch.Tensor:
        d_x = d_before.new_zeros(self._shape)
        self._call(raw.lasp_halo_backward, d_x, offsets, d_before=_whole(d_before.contiguous()), d_x=_whole(d_x))
        return d_x

    def give_up_forward(self) -> None:
        """Tells the other ranks, which wait for this one's forward, that it does not come."""
        try:
            raw.lasp_halo_forward(self._handle, None, None)
        except liblasp.Error:
            pass

    def close(self) -> None:
        if self._handle is not None:
            free([(self._handle, self._plan)])
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._unused.append((self._handle, self._plan))

    def _call(self, function, like: torch.Tensor, offsets: Optional[Sequence[int]],
              **tensors: Tuple[torch.Tensor, int]) -> None:
        aligned = torch.empty(self._workspace_bytes + 64, dtype=torch.uint8, device=like.device)
        tensors["workspace"] = _whole(aligned[-aligned.data_ptr() % 64:])
        args = raw.lasp_halo_args()
        for name, (tensor, nbytes) in tensors.items():
            field = getattr(args, name)
            field.data, field.bytes = tensor.data_ptr(), nbytes
        kept = Memory.pack(args, offsets, self.max_sequences)
        function(self._handle, args, None if like.device.type == "cpu" else torch_stream(like.device.index))
        del kept


def free(unused: List[Tuple]) -> None:
    """Frees what Halo left there."""
    while unused:
        handle, plan = unused.pop()
        raw.lasp_halo_destroy(handle)
        plan.close()


def _whole(tensor: torch.Tensor) -> Tuple[torch.Tensor, int]:
    return tensor, tensor.numel() * tensor.element_size()


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, halo, offsets):
        ctx.halo, ctx.offsets = halo, offsets
        return halo.forward(x, offsets)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_before):
        return ctx.halo.backward(d_before, ctx.offsets), None, None
