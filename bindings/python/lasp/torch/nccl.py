"""The NCCL communicator of a torch process group: the group's own where this torch hands it out, else a new one of
the same ranks, whose id travels through the group's store."""
from __future__ import annotations

import ctypes
from typing import Callable, Optional, Tuple

import torch
import torch.distributed as dist

import lasp

_made = {}  # how many communicators this process has made of each process group, for names in the store


class _UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def communicator(group: dist.ProcessGroup, device: torch.device) -> Tuple[int, Optional[Callable[[], None]]]:
    """The ncclComm_t as a number, and what destroys it where it is ours. Collective over the group."""
    backend = group._get_backend(device)
    if hasattr(backend, "_comm_ptr"):
        with torch.cuda.device(device):
            pointer = _pointer_of(backend)
            if not pointer:  # torch makes it at first use
                backend.eager_connect_single_device(device)
                pointer = _pointer_of(backend)
        if pointer:
            return pointer, None
    return _new_communicator(group, device)


def _pointer_of(backend) -> int:
    try:
        return backend._comm_ptr()
    except RuntimeError:  # there is none yet
        return 0


def _new_communicator(group, device):
    library = ctypes.CDLL("libnccl.so.2")  # torch's own: it is in the process by that name
    library.ncclGetErrorString.restype = ctypes.c_char_p

    def check(status):
        if status != 0:
            raise lasp.CommFailed(f"NCCL: {library.ncclGetErrorString(status).decode()}")

    name = group.group_name
    _made[name] = _made.get(name, 0) + 1
    store = dist.PrefixStore(f"lasp/nccl/{name}/{_made[name]}/", dist.distributed_c10d._get_default_store())
    unique = _UniqueId()
    if dist.get_rank(group) == 0:
        check(library.ncclGetUniqueId(ctypes.byref(unique)))
        store.set("id", ctypes.string_at(ctypes.byref(unique), 128))
    ctypes.memmove(ctypes.byref(unique), store.get("id"), 128)
    comm = ctypes.c_void_p()
    library.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, _UniqueId, ctypes.c_int]
    with torch.cuda.device(device):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        check(library.ncclCommInitRank(ctypes.byref(comm), size, unique, rank))
    return comm.value, lambda: library.ncclCommDestroy(comm)
