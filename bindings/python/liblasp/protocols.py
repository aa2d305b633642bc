"""What a type checker is told of arguments: arrays and streams of any framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Array", "WritableArray", "Stream", "BoundCall"]


class _Dlpack(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


class _ArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> Any: ...


class _CudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


class WritableArray(_Dlpack, Protocol):
    """An array of NumPy, torch or CuPy: outputs beside it are of its own kind."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


class _CudaStreamAttribute(Protocol):  # torch's
    @property
    def cuda_stream(self) -> int: ...


class _PointerAttribute(Protocol):  # CuPy's
    @property
    def ptr(self) -> int: ...


class _CudaStreamProtocol(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...


class BoundCall(Protocol):
    """A call whose arrays are taken already. On a GPU it is given the stream as an int (0: the default stream)."""

    def __call__(self, stream: int | None = None, /) -> None: ...


if TYPE_CHECKING:
    #: Memory that is not copied: the buffer protocol, DLPack, or one of the array interfaces.
    Array = Union[_Dlpack, _ArrayInterface, _CudaArrayInterface, Buffer]
    #: A CUDA stream: its address, or an object that stands for one.
    Stream = Union[int, _CudaStreamAttribute, _PointerAttribute, _CudaStreamProtocol]
else:
    Array = Stream = Any

WritableT = TypeVar("WritableT", bound=WritableArray)
OutputT = TypeVar("OutputT", bound="Array")
