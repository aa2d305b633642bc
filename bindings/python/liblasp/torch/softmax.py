"""Softmax attention over a sequence that is split: every rank gathers the keys and values of all (LASP-2H, arXiv
2502.07563), and its queries see those before them. PyTorch's scaled_dot_product_attention computes."""
from __future__ import annotations

from typing import Optional, Sequence, Union

import torch
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from liblasp.arguments import check_offsets, take_integer, take_number, take_offsets

from .halo import gather_equal, process_group_of
from .ownership import pieces_of, runs_of
from .problem import invalid_argument
from .sequence_group import Group, SequenceGroup, sequence_group
from .sharding import gather

_TILE = 1024  # queries that share a mask, where there must be one
_SHARED_KEYS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)  # enable_gqa


def softmax_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group = None, *,
                      scale: Optional[float] = None, cu_seqlens: Union[None, torch.Tensor, Sequence[int]] = None,
                      key_mask: Optional[torch.Tensor] = None, window: Optional[int] = None, dropout: float = 0.0,
                      total_tokens: Optional[int] = None) -> torch.Tensor:
    """Causal softmax attention of this rank's queries: o [B, T, Hq, V] of q [B, T, Hq, K], k [B, T, Hk, K] and
    v [B, T, Hk, V], this rank's tokens of a sequence that is split over the `group`. Hk divides Hq. Collective: every
    rank calls it, and runs its backward pass. Keys and values of the whole sequence are in memory meanwhile.

    scale: of q k; None: 1 / sqrt(K). cu_seqlens: packed sequences, as in linear_attention; B = 1.
    key_mask: bool [B, T], False for tokens that nobody sees (padding). A query that sees no token gives zero.
    window: a token sees itself and the window - 1 tokens before it. dropout: of the weights, drawn by each rank.
    total_tokens: tokens of all ranks, which hold runs as shard_bounds or the group's ownership has them; None: the ranks
      tell each other.
    Under autocast q, k and v are cast to its dtype. Raises liblasp.InvalidArgument (a ValueError).
    """
    q, k, v = _in_autocast(q, k, v)
    _check(q, k, v, key_mask)
    scale = None if scale is None else take_number(scale, "scale")
    dropout = take_number(dropout, "dropout")
    if not 0 <= dropout < 1:
        raise invalid_argument(f"dropout = {dropout}: must be from 0 to below 1")
    if window is not None:
        window = take_integer(window, "window", least=1)
    ranks = sequence_group(group)
    total = _total(q, ranks) if total_tokens is None else take_integer(total_tokens, "total_tokens", least=1)
    runs = runs_of(ranks.ownership, total, ranks.rank, ranks.size)
    own = sum(run.end - run.begin for run in runs)
    if q.shape[1] != own:
        raise invalid_argument(f"total_tokens = {total}: this rank's run of them has {own}, q has {q.shape[1]}")
    offsets = None if cu_seqlens is None else take_offsets(cu_seqlens)
    if offsets is not None:
        check_offsets(offsets, total, padded=True)
        if len(q) != 1 or window is not None or key_mask is not None:
            raise invalid_argument("cu_seqlens: goes with B = 1, without window and key_mask")
    keys, values = gather(torch.cat([k, v], -1), ranks, total).split([k.shape[3], v.shape[3]], -1)
    end = max((run.end for run in runs), default=0)
    seen = None if key_mask is None else gather(key_mask.to(torch.uint8), ranks, total)[:, :end].bool()
    options = {"scale": scale, "dropout_p": dropout}
    masked = offsets is None and (seen is not None or window is not None)
    groups = q.shape[2] // k.shape[2]
    if groups > 1 and not masked and _flash_serves(q, v):
        groups, options["enable_gqa"] = 1, True
    keys, values = (each[:, :end].repeat_interleave(groups, 2).transpose(1, 2) for each in (keys, values))
    outputs = []
    for run, part in zip(runs, pieces_of(q.transpose(1, 2), runs, 2)):
        past = (keys[:, :, :run.end], values[:, :, :run.end])
        outputs.append(_masked(part, *past, None if seen is None else seen[:, :run.end], window, run.begin, options)
                       if masked else _by_sequence(part, *past, offsets or (0, total), run.begin, run.end, options))
    if not outputs:  # no token here, but a part in the gathering
        outputs = [(values * 0).sum(2, keepdim=True)[:, :, :0] + 0 * q.sum()]
    return torch.cat(outputs, 2).transpose(1, 2)


def _in_autocast(*tensors):
    device = tensors[0].device.type if isinstance(tensors[0], torch.Tensor) else "meta"
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(each.to(dtype) if isinstance(each, torch.Tensor) else each for each in tensors)


def _check(q, k, v, key_mask) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 4:
            raise invalid_argument(f"{name}: must be a tensor [B, T, H, D]")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[:2] != q.shape[:2] or tensor.shape[2] != k.shape[2] or tensor.dtype != q.dtype:
            raise invalid_argument(f"{name}: {tensor.dtype} {list(tensor.shape)} does not go with q's {q.dtype} "
                                   f"{list(q.shape)}")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2] or q.shape[3] != k.shape[3]:
        raise invalid_argument(f"k: shape {list(k.shape)} does not go with q's {list(q.shape)}")
    if key_mask is not None and not (isinstance(key_mask, torch.Tensor) and key_mask.dtype == torch.bool
                                     and key_mask.shape == q.shape[:2]):
        raise invalid_argument(f"key_mask: must be a bool tensor {list(q.shape[:2])}")


def _flash_serves(q: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether PyTorch's flash kernels take these, whose heads may share keys. Its other kernels would make a mask of all
    scores where heads do."""
    return (q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and q.shape[3] == v.shape[3] <= 256
            and _SHARED_KEYS and torch.backends.cuda.flash_sdp_enabled()
            and torch.cuda.get_device_capability(q.device) >= (8, 0))


def _by_sequence(q, k, v, offsets, begin, end, options) -> torch.Tensor:
    """Sequence by sequence, without a mask in memory."""
    parts, done = [], begin
    for first, last in zip(offsets, offsets[1:]):
        low, high = max(first, begin), min(last, end)
        if low < high:
            part = q[:, :, low - begin:high - begin]
            past = (each[:, :, first:high] for each in (k, v))
            parts.append(F.scaled_dot_product_attention(part, *past, causal_lower_right(high - low, high - first),
                                                        **options))
            done = high
    parts.append(q.new_zeros(*q.shape[:2], end - done, v.shape[-1]))  # behind the last sequence
    return torch.cat(parts, 2)


def _masked(q, k, v, seen, window, begin, options) -> torch.Tensor:
    parts = []
    at = torch.arange(k.shape[2], device=q.device)
    for first in range(0, q.shape[2], _TILE):
        part = q[:, :, first:first + _TILE]
        own = at[begin + first:begin + first + part.shape[2], None]
        mask = own >= at
        if window is not None:
            mask = mask & (own - at < window)
        if seen is not None:
            mask = mask & seen[:, None, None, :]
        sees = mask.any(-1, keepdim=True)
        o = F.scaled_dot_product_attention(part, k, v, mask | (own == at), **options)
        parts.append(o * sees.to(o.dtype))
    return torch.cat(parts, 2)


def _total(x: torch.Tensor, ranks: SequenceGroup) -> int:
    """The tokens of all ranks, as they tell each other."""
    if ranks.size == 1:
        return x.shape[1]
    return int(sum(gather_equal(torch.tensor([x.shape[1]], device=x.device), process_group_of(ranks))))
