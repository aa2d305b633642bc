"""The XLA custom calls: the shared library that has them, told to JAX once; and one call of them."""
from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import jax
import numpy as np

from . import varying

CALLS = ("forward", "summarize", "apply", "backward", "summarize_backward", "apply_backward")


def library_path() -> str:
    """Where the shared library lies: beside the extension module."""
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_lasp_jax.so")


@functools.lru_cache(maxsize=None)
def _register() -> None:
    path = library_path()
    try:
        library = ctypes.CDLL(path)  # liblasp itself is loaded: `import liblasp` came first
    except OSError as reason:
        raise ImportError(f"liblasp has no library for XLA that can be loaded: {reason}") from reason
    for call in CALLS:
        for suffix, platform in (("cpu", "cpu"), ("cuda", "CUDA")):
            handler = jax.ffi.pycapsule(getattr(library, f"lasp_jax_{call}_{suffix}"))
            jax.ffi.register_ffi_target(f"liblasp_{call}", handler, platform=platform)
    library.lasp_jax_share_cpus(_cpu_devices())


def _cpu_devices() -> int:
    try:
        return jax.local_device_count("cpu")
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return 1


def call(name: str, attributes: Mapping[str, Any], operands: Mapping[str, Optional[jax.Array]],
         results: Mapping[str, Optional[Tuple[Sequence[int], Any]]]) -> Dict[str, jax.Array]:
    """One call. `operands` and `results` by name, in any order; None is absent. Of results (shape, dtype). What is an
    operand and a result is written in place."""
    _register()
    given = {key: value for key, value in operands.items() if value is not None}
    wanted = {key: value for key, value in results.items() if value is not None}
    order = list(given)
    aliases = {order.index(key): at for at, key in enumerate(wanted) if key in given}
    arrays, kind = varying.alike(given.values())
    made = [varying.struct(shape, dtype, kind) for shape, dtype in wanted.values()]
    function = jax.ffi.ffi_call(f"liblasp_{name}", made, vmap_method="sequential", input_output_aliases=aliases)
    numbers = {key: np.float32(value) if isinstance(value, float) else np.int64(value)
               for key, value in attributes.items()}
    found = function(*arrays, **numbers, operands=" ".join(given), results=" ".join(wanted))
    return dict(zip(wanted, found))


def memory(size: int) -> Optional[Tuple[Sequence[int], Any]]:
    """A result of so many bytes; none of no bytes. Whole lines, so that in a loop each of many is aligned."""
    return ((-(-size // 256) * 256,), np.uint8) if size else None


def floats(size: int) -> Tuple[Sequence[int], Any]:
    """A result of so many bytes, as float32."""
    return (size // 4,), np.float32
