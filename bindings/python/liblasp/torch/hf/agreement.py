"""Whether all ranks say the same, before a step begins in which they would wait for each other."""
from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, Optional, Union

import torch
import torch.distributed as dist

from ..problem import invalid_argument
from ..sequence_group import SequenceGroup


def digest(value: Any) -> int:
    """63 bits of a value: a tensor's shape, type and contents, else what repr shows."""
    found = hashlib.blake2b(digest_size=8)
    if isinstance(value, torch.Tensor):
        found.update(repr((tuple(value.shape), value.dtype)).encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    else:
        found.update(repr(value).encode())
    return int.from_bytes(found.digest(), "little") >> 1


def refuse_differences(said: Dict[str, Any], group: SequenceGroup,
                       why: Dict[str, Union[str, Callable[[], str]]],
                       failed: Optional[Exception] = None) -> None:
    """Raises liblasp.InvalidArgument on every rank where one says something else; `why` ends the sentence, or
    makes it, which is collective. `failed`: what this rank refuses by itself, which it raises when all have come."""
    if group.size > 1:
        own = torch.tensor([0 if failed is None else 1, *(digest(said[name]) if failed is None else 0 for name in why)])
        if dist.get_backend(group.process_group) == "nccl":
            own = own.cuda()
        found = [torch.empty_like(own) for _ in range(group.size)]
        dist.all_gather(found, own, group=group.process_group)
        rows = torch.stack(found).tolist()
    if failed is not None:
        raise failed
    if group.size == 1:
        return
    for rank, row in enumerate(rows):
        if row[0]:
            raise invalid_argument(f"rank {rank} refused its arguments, and says why there")
    for at, (name, reason) in enumerate(why.items(), 1):
        for rank, row in enumerate(rows):
            if row[at] != rows[0][at]:
                raise invalid_argument(f"{name}: rank {rank} has something else than rank 0: {reason}"
                                       if isinstance(reason, str) else reason())
