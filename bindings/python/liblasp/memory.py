"""Arrays as the memory of a call's struct, for calls that are made from Python (halos, stages): each is compared with
what the call expects of it, and none is copied."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import raw
from .arguments import describe as shown, offsets_in_memory
from .arrays import ITEM_BYTES, Description, contiguous_strides, describe, is_array
from .enums import Device, DType
from .errors import InvalidArgument


class Expected(NamedTuple):
    """Of an array: its type, shape and strides in elements (None: contiguous)."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


class Memory:
    """Puts arrays on one device into structs."""

    def __init__(self, device: Device, device_index: int):
        self._device, self._device_index = device, device_index

    def put(self, args: Any, name: str, array: Any, expected: Expected, *, write: bool = False) -> None:
        """The field `name` of the struct, which stays absent where the array is None."""
        if array is None:
            return
        told = self._look(name, array, write)
        strides = contiguous_strides(expected.shape) if expected.strides is None else expected.strides
        if tuple(told.shape) != expected.shape:
            raise InvalidArgument(f"{name} has shape {tuple(told.shape)}: must be {expected.shape}")
        if told.dtype != expected.dtype:
            raise InvalidArgument(f"{name} is of another type than the plan's: must be {expected.dtype}")
        if 0 not in expected.shape and any(
                size > 1 and step != wanted for size, step, wanted in zip(told.shape, told.strides, strides)):
            raise InvalidArgument(f"{name} has strides {tuple(told.strides)} in elements: must be {strides}")
        last = sum((size - 1) * step for size, step in zip(expected.shape, strides)) + 1
        field = getattr(args, name)
        field.data = told.address
        field.bytes = 0 if 0 in expected.shape else last * ITEM_BYTES[expected.dtype]

    def put_bytes(self, args: Any, name: str, array: Any, *, write: bool = False, least: int = 0) -> None:
        """The same of a contiguous array of any type, as bytes; it has at least `least`."""
        if array is None:
            return
        told = self._look(name, array, write)
        count = told.itemsize
        for size in told.shape:
            count *= size
        if count and any(size > 1 and step != wanted for size, step, wanted in
                         zip(told.shape, told.strides, contiguous_strides(tuple(told.shape)))):
            raise InvalidArgument(f"{name} has strides {tuple(told.strides)} in elements: must be contiguous")
        if count < least:
            raise InvalidArgument(f"{name} has {count} bytes: must have at least {least}")
        field = getattr(args, name)
        field.data, field.bytes = told.address, count

    @staticmethod
    def pack(args: Any, cu_seqlens: Any, most: int) -> Any:
        """The packed sequences of a call, for a plan with `most` of them; gives what must live until it ends."""
        if most == 0 and cu_seqlens is None:
            return None
        if most == 0:
            raise InvalidArgument("cu_seqlens: must be None, because the plan was made without max_sequences")
        if cu_seqlens is None:
            raise InvalidArgument("cu_seqlens: is None, and the plan is for packed sequences (max_sequences)")
        packing = raw.lasp_packing()
        memory = offsets_in_memory(cu_seqlens)
        offsets = packing.cu_seqlens
        offsets.data, offsets.bytes, packing.num_sequences, packing.dtype, packing.memory, _ = memory
        args.packing = packing
        return packing, memory

    def _look(self, name: str, array: Any, write: bool) -> Any:
        if not is_array(array):
            raise InvalidArgument(f"{name} = {shown(array)}: must be an array")
        told = describe(array, name) if hasattr(array, "__array_interface__") else _of_buffer(array)
        if told is None:
            told = describe(array, name)
        if (told.device, told.device_index) != (self._device, self._device_index):
            raise InvalidArgument(f"{name} is on another device than the plan")
        if write and told.readonly:
            raise InvalidArgument(f"{name} cannot be written: it is read-only")
        return told


def _of_buffer(array: Any) -> Description | None:
    """What an object with the buffer protocol alone is; None for others."""
    found = raw.read_buffer(array)
    if found is None:
        return None
    dtype, shape, strides, address = found
    with memoryview(array) as view:
        return Description(address, dtype, view.itemsize, int(Device.CPU), 0, shape, strides, int(view.readonly), array)
