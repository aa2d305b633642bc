"""New arrays for a plan's calls: outputs beside the inputs, and the workspace and state cache that a plan keeps."""

from __future__ import annotations

from typing import Any, Callable

from .arrays import (address_of, aligned_bytes, contiguous_strides, empty_like_those_of, framework_of,
                     torch_output_maker)
from .enums import Device, DType
from .errors import InvalidArgument
from .problem import Problem
from .results import PlanInfo


class Outputs:
    """Makes a plan's arrays by the framework of the inputs."""

    def __init__(self, problem: Problem, info: PlanInfo, device: Device, device_index: int):
        self._device, self._device_index = device, device_index
        self._dtype, self._dtype_of = problem.dtype, problem.dtype_of
        self._alignment = info.alignment
        self._states = (info.num_sequences, info.heads, problem.head_dim_k, problem.head_dim_v)
        self._shapes = {name: problem.shape_of(name) for name in ("o", "dq", "dk", "dv", "d_decay", "d_beta")}
        self._mixed = problem.gradient_dtypes
        self._usual = {name: problem.strides_of(name) == contiguous_strides(shape or ())
                       for name, shape in self._shapes.items()}
        self._makers: dict[type, tuple[str, Any, bool]] = {}
        self._of_o: dict[type, Callable[[Any], Any]] = {}  # by the type of q
        self._blocks: dict[tuple[Any, ...], Any] = {}

    def new_o(self, like: Any) -> Any:
        """o, beside q."""
        make = self._of_o.get(type(like)) or self._maker_of_o(like)
        return make(like)

    def new_gradient(self, name: str, like: Any) -> Any:
        """An array for a gradient, made like the input it belongs to; None where the problem has none."""
        shape = self._shapes[name]
        if shape is None:
            return None
        if not self._usual[name]:
            raise InvalidArgument(f"{name}: the plan's is not contiguous, so that it must be given")
        _, empty, own = self._maker(like)
        return empty(shape, like.dtype if own and name not in self._mixed else self._dtype_of(name))

    def new_like(self, like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """An array of this shape and dtype, by the framework of `like`."""
        return self._maker(like)[1](shape, dtype)

    def new_states(self, like: Any) -> Any:
        """Zeros [N, H, K, V]."""
        states = self._maker(like)[1](self._states, DType.FLOAT32)
        if hasattr(states, "zero_"):
            states.zero_()
        else:
            states[...] = 0
        return states

    def new_bytes(self, like: Any, count: int) -> Any:
        """An aligned block of bytes; None for none."""
        return aligned_bytes(self._maker(like)[1], count, self._alignment) if count else None

    def block(self, name: str, kind: Any, like: Any, count: int) -> Any:
        """A block that the plan keeps, for one kind of array and one stream; None for none."""
        block = self._blocks.get((name, kind))
        if block is None and count:
            block = self._blocks[name, kind] = self.new_bytes(like, count)
        return block

    def own_cache(self, like: Any, count: int) -> tuple[Any, int, str]:
        """The plan's state cache for calls on arrays like this one, its address, and the framework that made it."""
        framework = self._maker(like)[0]
        block = self.block("cache", framework, like, count)
        return block, 0 if block is None else address_of(block), framework

    def clear(self) -> None:
        """Lets go of all blocks."""
        self._blocks.clear()

    def _maker(self, like: Any) -> tuple[str, Any, bool]:
        """How arrays beside `like` are made: framework, empty(shape, dtype), and whether like.dtype is a dtype for
        it."""
        maker = self._makers.get(type(like))
        if maker is None:
            framework, empty = empty_like_those_of(like, self._device, self._device_index)
            own = framework == framework_of(like) and hasattr(like, "dtype")
            maker = self._makers[type(like)] = framework, empty, own
        return maker

    def _maker_of_o(self, like: Any) -> Callable[[Any], Any]:
        if not self._usual["o"]:
            raise InvalidArgument("out: the plan's o is not contiguous, so that it must be given")
        framework, empty, own = self._maker(like)
        shape, dtype = self._shapes["o"] or (), self._dtype
        if framework == "torch":
            make = torch_output_maker(empty((1,), dtype), shape)
        elif own:
            def make(like: Any) -> Any:
                return empty(shape, like.dtype)
        else:
            def make(like: Any) -> Any:
                return empty(shape, dtype)
        self._of_o[type(like)] = make
        return make
