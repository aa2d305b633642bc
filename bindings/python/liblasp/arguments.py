"""What is taken as an argument, and what is refused by name. Nothing is converted silently: True is no number, 2.0 is
no whole number, and "no" is neither True nor False."""

from __future__ import annotations

import math
import numbers
import operator
import struct
from array import array
from collections.abc import Sequence
from typing import Any

from . import raw
from .errors import InvalidArgument


def describe(value: Any) -> str:
    """A value in a sentence: short ones as they are, others by their type."""
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def _is_flag(value: Any) -> bool:
    """Whether it is True or False, of Python's or NumPy's."""
    kind = type(value)
    return kind is bool or kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")


def take_integer(value: Any, name: str, least: int | None = None) -> int:
    """A whole number: an int, or another type's that stands for one (NumPy's)."""
    if not _is_flag(value):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if least is not None and number < least:
                raise InvalidArgument(f"{name} = {number}: must be at least {least}")
            return number
    raise InvalidArgument(f"{name} = {describe(value)}: must be a whole number")


def take_int32(value: Any, name: str) -> int:
    """A whole number that fits the library's int32_t."""
    return _within(take_integer(value, name), name, 32)


def take_int64(value: Any, name: str) -> int:
    """A whole number that fits the library's int64_t."""
    return _within(take_integer(value, name), name, 64)


def _within(number: int, name: str, bits: int) -> int:
    if not -2 ** (bits - 1) <= number < 2 ** (bits - 1):
        raise InvalidArgument(f"{name} = {number}: does not fit {bits} bits")
    return number


def take_address(value: Any, name: str) -> int:
    """The address of something, as an int."""
    number = take_integer(value, name)
    if not 0 < number < 2 ** 64:
        raise InvalidArgument(f"{name} = {number}: must be an address")
    return number


def take_flag(value: Any, name: str) -> bool:
    """True or False, of Python's or NumPy's."""
    if _is_flag(value):
        return bool(value)
    raise InvalidArgument(f"{name} = {describe(value)}: must be True or False")


def take_number(value: Any, name: str) -> float:
    """A finite real number."""
    if _is_flag(value) or not isinstance(value, numbers.Real):
        raise InvalidArgument(f"{name} = {describe(value)}: must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgument(f"{name} = {describe(value)}: must be finite")
    return number


def take_time_limit(seconds: float | None) -> int:
    """A time limit in milliseconds, as the library takes it: 0 is ten minutes there, -1 no limit."""
    if seconds is None:
        return 0
    if seconds == float("inf"):
        return -1
    number = take_number(seconds, "time_limit")
    if not number > 0:
        raise InvalidArgument(f"time_limit = {seconds}: must be more than 0 seconds, None or inf")
    return min(max(1, round(number * 1000)), 2 ** 63 - 1)


def take_scale(value: Any) -> float | None:
    """A factor of o that float32 can hold; None: the default."""
    if value is None:
        return None
    number = take_number(value, "scale")
    try:
        (kept,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        raise InvalidArgument(f"scale = {number}: is more than float32 can hold") from None
    if kept == 0.0 and number != 0.0:
        raise InvalidArgument(f"scale = {number}: is zero in float32; give 0.0 where that is meant")
    return number


def take_offsets(values: Any) -> tuple[int, ...]:
    """cu_seqlens as whole numbers, out of a sequence or a one-dimensional array of integers."""
    given = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Sequence):
        raise InvalidArgument(f"cu_seqlens = {describe(values)}: must be a sequence of whole numbers, or an array of "
                              "one dimension")
    if not all(type(offset) is int for offset in given):
        given = [take_integer(offset, f"cu_seqlens[{at}]") for at, offset in enumerate(given)]
    if len(given) < 1:
        raise InvalidArgument(f"cu_seqlens = {describe(given)}: must hold at least one offset")
    for offset in (min(given), max(given)):
        if not 0 <= offset < 2 ** 63:
            raise InvalidArgument(f"cu_seqlens[{given.index(offset)}] = {offset}: must be from 0 to 2^63 - 1")
    return tuple(given)


def check_offsets(offsets: Sequence[int], tokens: int, padded: bool = False) -> None:
    """Raises liblasp.InvalidArgument where they are not of `tokens` tokens, of which the last ones may be padding."""
    if offsets[0] != 0 or offsets[-1] > tokens or (offsets[-1] < tokens and not padded):
        raise InvalidArgument(f"cu_seqlens: goes from {offsets[0]} to {offsets[-1]}, must go from 0 to "
                               f"{'at most ' if padded else ''}the {tokens} tokens of the inputs")
    for at, (one, following) in enumerate(zip(offsets, offsets[1:])):
        if following < one:
            raise InvalidArgument(f"cu_seqlens[{at + 1}] = {following}: is below the {one} before it")


_TYPES_OF_OFFSETS = {"<i4": raw.LASP_INT32, "<i8": raw.LASP_INT64}


def offsets_in_memory(values: Any) -> tuple[int, int, int, int, int, Any]:
    """cu_seqlens as a call takes them: address, bytes, sequences, dtype, where they lie, and what holds them. Arrays of
    int32 and int64 in one piece are not copied; those on a GPU are not even read."""
    for name, where in (("__array_interface__", raw.LASP_DEVICE_CPU),
                        ("__cuda_array_interface__", raw.LASP_DEVICE_CUDA)):
        seen = getattr(values, name, None)
        if seen is None:
            continue
        kind, shape = seen["typestr"], seen["shape"]
        if kind in _TYPES_OF_OFFSETS and len(shape) == 1 and not seen.get("strides") and shape[0] > 0:
            return (seen["data"][0], shape[0] * int(kind[2]), shape[0] - 1, _TYPES_OF_OFFSETS[kind], where, values)
        if where == raw.LASP_DEVICE_CUDA:
            raise InvalidArgument(f"cu_seqlens: is an array {list(shape)} of {kind} on a GPU, must be [N + 1] of int32 or "
                                  "int64 in one piece")
    kept = array("q", take_offsets(values))
    address, count = kept.buffer_info()
    return address, 8 * count, count - 1, raw.LASP_INT64, raw.LASP_DEVICE_CPU, kept
