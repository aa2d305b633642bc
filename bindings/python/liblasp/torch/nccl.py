"""The NCCL communicator of a torch process group: the group's own where this torch hands it out, else a new one of
the same ranks, whose id travels through the group's store. Either is of torch's own NCCL, which is used by its
functions' addresses, since the process may have loaded another beside it."""
from __future__ import annotations

import ctypes
import os
from typing import Callable, Dict, Optional, Tuple

import torch
import torch.distributed as dist

import liblasp

_made = {}  # how many communicators this process has made of each process group, for names in the store

# NCCL's functions by their names in lasp_nccl_functions.
_FUNCTIONS = {"get_version": "ncclGetVersion", "comm_count": "ncclCommCount", "comm_user_rank": "ncclCommUserRank",
              "comm_cu_device": "ncclCommCuDevice", "comm_get_async_error": "ncclCommGetAsyncError",
              "get_error_string": "ncclGetErrorString", "send": "ncclSend", "recv": "ncclRecv",
              "all_gather": "ncclAllGather", "group_start": "ncclGroupStart", "group_end": "ncclGroupEnd"}


class _UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def functions() -> Dict[str, int]:
    """The addresses of the functions of torch's own NCCL, for liblasp.Comm.nccl. Raises liblasp.Unsupported where they
    cannot be told from another NCCL's."""
    library = _library()
    return {name: _address(library, symbol) for name, symbol in _FUNCTIONS.items()}


def _library() -> ctypes.CDLL:
    """The part of torch that calls NCCL. It shows the functions of the NCCL that it was linked to; but what the whole
    process shows comes before, to torch as well if it was there when torch was loaded, so that the two must agree."""
    try:
        library = ctypes.CDLL("libtorch_cuda.so", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        own = _address(library, "ncclGetVersion")
    except (OSError, AttributeError):
        raise liblasp.Unsupported("nccl: this torch does not show the functions of its NCCL; give a liblasp.Comm.nccl "
                                  "with `functions` as the group") from None
    try:
        shown = _address(ctypes.CDLL(None), "ncclGetVersion")
    except AttributeError:
        return library
    if shown != own:
        raise liblasp.Unsupported("nccl: a second NCCL is loaded with RTLD_GLOBAL, so that it cannot be told which one "
                                  "torch calls; give a liblasp.Comm.nccl with `functions` as the group")
    return library


def _address(library: ctypes.CDLL, symbol: str) -> int:
    return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value


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
    library = _library()
    library.ncclGetErrorString.restype = ctypes.c_char_p

    def check(status):
        if status != 0:
            raise liblasp.CommFailed(f"NCCL: {library.ncclGetErrorString(status).decode()}")

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
