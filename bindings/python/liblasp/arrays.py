"""Arrays of any framework as arguments: where they lie, on which stream, and new ones of the same kind.

NumPy and everything else with the buffer protocol is read in C and never comes here.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any, Callable, NamedTuple, TypeVar, cast

from . import raw
from .enums import Device, DType
from .errors import InvalidArgument

ITEM_BYTES = {DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2}
_OTHER = -2  # a type that no tensor of the library has
_CPU, _CUDA = int(Device.CPU), int(Device.CUDA)
_CODES = {"float32": DType.FLOAT32, "bfloat16": DType.BFLOAT16, "float16": DType.FLOAT16}
_call = threading.local()  # .stream: of the call that this thread is making
_ANY_STREAM = -1
Function = TypeVar("Function", bound=Callable[..., Any])


class Description(NamedTuple):
    """What is to know about an array; strides are in elements. The C side reads it in this order."""

    address: int
    dtype: int
    itemsize: int
    device: int
    device_index: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    readonly: int
    owner: Any


_frameworks: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def framework_of(array: Any) -> str:
    """The package that an array's type, or what it is derived from, comes from: "numpy", "torch", "jaxlib", ..."""
    kind = type(array)
    found = _frameworks.get(kind)
    if found is None:
        packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
        found = next((name for name in packages if name in ("numpy", "torch", "cupy")), packages[0])
        _frameworks[kind] = found
    return found


def is_array(value: Any) -> bool:
    """Whether it speaks one of the protocols."""
    return raw.read_buffer(value) is not None or any(hasattr(value, name) for name in (
        "__dlpack__", "__cuda_array_interface__", "__array_interface__"))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a tensor without gaps, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


_torch_types: set[type] = set()  # that C was told of, or that it cannot be told of
_torch_kinds: dict[Any, tuple[int, int]] = {}  # (dtype, bytes) by torch's dtype


def _torch_kind(dtype: Any, itemsize: int) -> tuple[int, int]:
    kind = _torch_kinds[dtype] = _CODES.get(str(dtype).rpartition(".")[2], _OTHER), itemsize
    return kind


def learn_torch_type(kind: type) -> None:
    """From now on C reads tensors of this type itself, where this torch lets it (2.10 and later): by DLPack's
    exchange API. Not a subclass's, whose memory may not be what it stands for."""
    _torch_types.add(kind)
    torch = sys.modules["torch"]
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        raw.learn_type(kind, getattr(kind, "__dlpack_c_exchange_api__", None))


def _of_torch(tensor: Any, name: str) -> tuple[Any, ...]:
    """Read by torch's own methods: a DLPack capsule would cost more than the whole call."""
    if type(tensor) not in _torch_types:
        learn_torch_type(type(tensor))
    on_cuda = tensor.is_cuda
    if tensor.is_sparse or tensor.is_mkldnn or not (on_cuda or tensor.is_cpu):
        raise InvalidArgument(f"{name} is a {tensor.layout} tensor on {tensor.device}: must be a strided tensor on "
                              "cpu or cuda")
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise InvalidArgument(f"{name} requires a gradient, which this call would not record: detach it, or use "
                              "liblasp.torch")
    if tensor.is_neg():
        raise InvalidArgument(f"{name} is a view of the negative of its memory: take its resolve_neg()")
    kind = _torch_kinds.get(tensor.dtype)
    dtype, itemsize = kind if kind is not None else _torch_kind(tensor.dtype, tensor.element_size())
    # In the order of Description, whose making would take longer than all of this.
    return (tensor.data_ptr(), dtype, itemsize, _CUDA if on_cuda else _CPU,
            tensor.get_device() if on_cuda else 0, tensor.shape, tensor.stride(), 0, tensor)


def _of_interface(array: Any, interface: dict[str, Any], device: Device, index: int, name: str) -> Description:
    """From __array_interface__ or __cuda_array_interface__."""
    typestr = interface["typestr"]
    itemsize = max(int(typestr[2:]), 1)  # NumPy has types of no bytes
    dtype = {"<f4": DType.FLOAT32, "<f2": DType.FLOAT16, "<u2": DType.BFLOAT16}.get(typestr, _OTHER)
    if getattr(getattr(array, "dtype", None), "name", "") == "bfloat16":
        dtype = DType.BFLOAT16
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    steps = contiguous_strides(shape) if strides is None else tuple(
        step // itemsize if step % itemsize == 0 else -1 for step in strides)
    address, readonly = interface["data"]
    stream = interface.get("stream")
    if stream is not None and stream > 2 and getattr(_call, "stream", None) not in (stream, _ANY_STREAM):
        raise InvalidArgument(
            f"{name} is in use on stream {stream:#x}: give stream= that one, or synchronize first")
    return Description(address or 0, dtype, itemsize, device, index, shape, steps, int(readonly), array)


def _cuda_index(array: Any) -> int:
    device = getattr(array, "device", None)
    index = getattr(device, "id", None)
    return index if isinstance(index, int) else 0


def without_stream(describes: Function) -> Function:
    """For what asks about arrays and does not touch their memory: on whichever stream they are in use."""
    @functools.wraps(describes)
    def wrapped(*args: Any, **named: Any) -> Any:
        before, _call.stream = getattr(_call, "stream", None), _ANY_STREAM
        try:
            return describes(*args, **named)
        finally:
            _call.stream = before

    return cast(Function, wrapped)


def hook(array: Any, name: str) -> tuple[Any, ...]:
    """What the C side asks of an array that it cannot read itself: the fields of Description."""
    return _of_torch(array, name) if framework_of(array) == "torch" else describe(array, name)


def describe(array: Any, name: str) -> Description:
    """What an array is. Refuses what is no array."""
    framework = framework_of(array)
    if framework == "torch":
        return Description(*_of_torch(array, name))
    if framework == "numpy" or not (hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")):
        interface = getattr(array, "__array_interface__", None)
        if interface is None:
            raise InvalidArgument(f"{name} is a {type(array).__name__}: must be an array (the buffer protocol, "
                                  "__dlpack__ or __cuda_array_interface__)")
        return _of_interface(array, interface, Device.CPU, 0, name)
    if hasattr(array, "__cuda_array_interface__") and (framework == "cupy" or not hasattr(array, "__dlpack__")):
        return _of_interface(array, array.__cuda_array_interface__, Device.CUDA, _cuda_index(array), name)
    on_cuda = array.__dlpack_device__()[0] in (2, 13)
    stream = max(getattr(_call, "stream", None) or 1, 1)  # 1 is DLPack's number for the default stream
    try:
        capsule = array.__dlpack__(stream=stream) if on_cuda else array.__dlpack__()
    except BufferError as error:
        raise InvalidArgument(f"{name} cannot be read by DLPack: {error}") from error
    told = Description(*raw.read_dlpack(capsule))
    # JAX takes its arrays for constants, of which its capsules say nothing.
    return told._replace(readonly=1) if framework in ("jax", "jaxlib") else told


@without_stream
def shape_dtype_strides(array: Any, name: str) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Of any array, however it is read."""
    found = raw.read_buffer(array)
    if found is not None:
        dtype, shape, strides, _ = found
        return shape, dtype, strides
    told = describe(array, name)
    return told.shape, told.dtype, told.strides


# ---- Streams ----


def pointer_of_stream(stream: Any) -> int:
    """A stream as an integer: an int, torch's (cuda_stream), CuPy's (ptr), or anything with __cuda_stream__."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        if not 0 <= stream < 2 ** 64:
            raise InvalidArgument(f"stream = {stream}: must be a stream's address, or 0 for the default stream")
        return stream
    for attribute in ("cuda_stream", "ptr"):
        value = getattr(stream, attribute, None)
        if isinstance(value, int):
            return value
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return (protocol() if callable(protocol) else protocol)[1]
    raise InvalidArgument(f"stream is a {type(stream).__name__}: must be an int, or have cuda_stream, ptr or "
                          "__cuda_stream__")


def torch_stream(device_index: int) -> int:
    """torch's current stream; by the function of torch's compiled code where there is one, since the public way
    makes an object first, a microsecond or two."""
    torch = sys.modules["torch"]
    ask = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return ask(device_index) if ask is not None else torch.cuda.current_stream(device_index).cuda_stream


def enter_stream(stream: Any, array: Any, device_index: int) -> int:
    """The stream of a call on a GPU: the one given, else the framework's current one, else the default stream."""
    if stream is not None:
        pointer = pointer_of_stream(stream)
    elif framework_of(array) == "torch":
        pointer = torch_stream(device_index)
    elif framework_of(array) == "cupy":
        pointer = sys.modules["cupy"].cuda.get_current_stream().ptr
    else:
        pointer = 0
    _call.stream = pointer
    return pointer


# ---- New arrays ----

Empty = Callable[[tuple[int, ...], Any], Any]


def _numpy_maker() -> Empty:
    import numpy

    names = {DType.FLOAT32: "float32", DType.FLOAT16: "float16", DType.BFLOAT16: "uint16"}
    return lambda shape, dtype: numpy.empty(shape, names[dtype] if type(dtype) is DType else dtype)


def _torch_maker(where: str) -> Empty:
    torch = sys.modules["torch"]

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        named = isinstance(dtype, (DType, str))
        return torch.empty(shape, dtype=getattr(torch, str(dtype)) if named else dtype, device=where)

    return empty


def torch_output_maker(one: Any, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """make(anything): a new contiguous tensor of this shape and of the kind of the tensor `one`, which has one
    element. Of torch's ways to make a tensor the quickest is by the likeness of another."""
    torch = sys.modules["torch"]
    empty_like, contiguous, model = torch.empty_like, torch.contiguous_format, one.expand(shape)

    def make(_: Any) -> Any:
        return empty_like(model, memory_format=contiguous)

    return make


def _cupy_maker(device_index: int) -> Empty:
    cupy = sys.modules["cupy"]
    names = {DType.FLOAT32: "float32", DType.FLOAT16: "float16", DType.BFLOAT16: "uint16"}

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        with cupy.cuda.Device(device_index):
            return cupy.empty(shape, names[dtype] if type(dtype) is DType else dtype)

    return empty


def empty_like_those_of(array: Any, device: Device, device_index: int) -> tuple[str, Empty]:
    """How to make an array where `array` lives: the framework's name and empty(shape, dtype). A dtype is the
    framework's own, a DType, or "uint8". Frameworks whose arrays cannot be written get NumPy's, torch's or
    CuPy's."""
    framework = framework_of(array)
    if device == Device.CPU and framework != "torch":
        return "numpy", _numpy_maker()
    for candidate in (framework, "torch", "cupy"):
        if candidate == "torch" and "torch" in sys.modules:
            return "torch", _torch_maker(f"cuda:{device_index}" if device == Device.CUDA else "cpu")
        if candidate == "cupy" and "cupy" in sys.modules:
            return "cupy", _cupy_maker(device_index)
    raise InvalidArgument(f"arrays of {framework} cannot be made here to write into: give outputs, cache and "
                          "workspace, or import torch or cupy")


def aligned_bytes(empty: Empty, count: int, alignment: int) -> Any:
    """A block of bytes whose address is a multiple of `alignment`."""
    block = empty((count + alignment,), "uint8")
    start = -address_of(block) % alignment
    return block[start:start + count]


@without_stream
def address_of(array: Any) -> int:
    """The address of an array's first element."""
    found = raw.read_buffer(array)
    return found[3] if found is not None else describe(array, "array").address


raw.set_array_hook(hook)
