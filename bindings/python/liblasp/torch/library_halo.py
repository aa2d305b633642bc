"""The rows before a rank's tokens by the library's own halo, on groups that have no process group: threads, MPI, a
caller's transport."""
from __future__ import annotations

from typing import Optional, Sequence, Tuple

import torch
from torch.autograd.function import once_differentiable

import liblasp
from liblasp import raw
from liblasp.arrays import torch_stream

from .packing import Packing
from .problem import DTYPES, invalid_argument
from .sequence_group import SequenceGroup


def rows_by_the_library(x: torch.Tensor, count: int, group: SequenceGroup,
                        offsets: Optional[Sequence[int]]) -> Tuple[torch.Tensor, int]:
    """The `count` rows [B, count, C] before this rank's x [B, T, C] and within their sequence, and the tokens before
    this rank's. Differentiable and collective. Packed by `offsets`, or each batch row a sequence."""
    if x.dtype not in DTYPES:
        raise invalid_argument(f"x: dtype {x.dtype} is not one of float32, bfloat16 and float16")
    x = x.contiguous()
    packing = None if offsets is None else Packing(tuple(offsets))
    most = packing.most if packing else 0
    halo = group._halo((tuple(x.shape), x.dtype, x.device, count, most),
                      lambda context: Halo(context, x, count, most))
    return _Rows.apply(x, halo, packing), halo.begin


class Halo:
    """A halo on a plan of its own, for contiguous x of one shape."""

    def __init__(self, context: liblasp.Context, x: torch.Tensor, count: int, max_sequences: int):
        batch, tokens, channels = x.shape
        self._plan = context.plan(batch=batch, tokens=tokens, head_dim_k=8, head_dim_v=8, dtype=DTYPES[x.dtype],
                                  backward=False, max_sequences=max_sequences)
        options = raw.lasp_halo_options()
        options.rows, options.channels = count, channels
        try:
            self._handle = raw.lasp_halo_create(self._plan.handle, options)
        except liblasp.Error:
            self._plan.close()
            raise
        info = raw.lasp_halo_info()
        raw.lasp_halo_get_info(self._handle, info)
        self.begin, self._workspace_bytes = self._plan.info.token_begin, info.workspace_bytes
        self._shape, self._before_shape = x.shape, (batch, count, channels)

    def forward(self, x: torch.Tensor, packing: Optional[Packing]) -> torch.Tensor:
        before = x.new_empty(self._before_shape)
        self._call(raw.lasp_halo_forward, packing, x, x=x, before=before)
        return before

    def backward(self, d_before: torch.Tensor, packing: Optional[Packing]) -> torch.Tensor:
        d_x = d_before.new_zeros(self._shape)
        self._call(raw.lasp_halo_backward, packing, d_x, d_before=d_before.contiguous(), d_x=d_x)
        return d_x

    def close(self) -> None:
        raw.lasp_halo_destroy(self._handle)
        self._plan.close()

    def _call(self, function, packing: Optional[Packing], like: torch.Tensor, **tensors: torch.Tensor) -> None:
        aligned = torch.empty(self._workspace_bytes + 64, dtype=torch.uint8, device=like.device)
        tensors["workspace"] = aligned[-aligned.data_ptr() % 64:]
        args = raw.lasp_halo_args()
        if packing is not None:
            args.packing = offsets = raw.lasp_packing()
            offsets.cu_seqlens.data, offsets.cu_seqlens.bytes, offsets.num_sequences, offsets.dtype, _ = packing.memory
        for name, tensor in tensors.items():
            field = getattr(args, name)
            field.data, field.bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        function(self._handle, args, None if like.device.type == "cpu" else torch_stream(like.device.index))


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, halo, packing):
        ctx.halo, ctx.packing = halo, packing
        return halo.forward(x, packing)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_before):
        return ctx.halo.backward(d_before, ctx.packing), None, None
