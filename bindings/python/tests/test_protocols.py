"""The protocols that arrays are read by, corner by corner: what DLPack, buffers and array interfaces may say that
NumPy's own arrays seldom do; and that all is let go again."""

import ctypes

import numpy as np
import pytest

import liblasp
from liblasp import arrays
from support import random_problem

Q, K, V, G, D_O = random_problem(4)


class DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("dims", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class DlManaged(ctypes.Structure):
    _fields_ = [("tensor", DlTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DlVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DlTensor)]


class Spoken:
    """An array that says what it is told to say."""

    def __init__(self, array, offset=0, strides=None, device=(1, 0), code=2, lanes=1, version=None, flags=0):
        self.array, self.device = array, device
        dims = array.ndim
        self.shape_field = (ctypes.c_int64 * dims)(*array.shape)
        self.strides_field = strides and (ctypes.c_int64 * dims)(*strides)
        tensor = DlTensor(array.ctypes.data - offset, (ctypes.c_int32 * 2)(*device), dims, code, 8 * array.itemsize,
                          lanes, self.shape_field, self.strides_field, offset)
        if version is None:
            self.managed, self.name = DlManaged(tensor, None, None), b"dltensor"
        else:
            self.managed, self.name = DlVersioned(version, 0, None, None, flags, tensor), b"dltensor_versioned"

    def __dlpack__(self, **said):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self):
        return self.device


@pytest.fixture
def plan():
    with liblasp.Context(cpu_threads=1) as context:
        yield context.plan(liblasp.Problem.like(Q, K, V, decay=G))


def refuses(plan, q, sentence, **named):
    out = np.full_like(Q, 7)
    with pytest.raises(liblasp.InvalidArgument, match=sentence):
        plan.forward(q, K, V, G, **{"out": out, **named})
    assert (out == 7).all(), "a refused call wrote"


def test_an_offset_counts_in_bytes(plan):
    expected = plan.forward(Q, K, V, G)
    q = Spoken(Q, offset=64)
    assert arrays.describe(q, "q").address == Q.ctypes.data
    assert np.array_equal(plan.forward(q, K, V, G), expected)


def test_no_strides_mean_row_after_row(plan):
    told = arrays.describe(Spoken(Q), "q")
    assert told.strides == (1024, 16, 8, 1) and told.shape == Q.shape
    assert np.array_equal(plan.forward(Spoken(Q), K, V, G), plan.forward(Q, K, V, G))
    assert arrays.describe(Spoken(Q, strides=(1, 2, 3, 4)), "q").strides == (1, 2, 3, 4)


@pytest.mark.parametrize("flags", [0, 1, 2, 3])  # bit 0: read-only; bit 1: the array was copied
def test_what_is_read_only_is_not_written(plan, flags):
    expected = plan.forward(Q, K, V, G)
    out = np.full_like(Q, 7)
    assert np.array_equal(plan.forward(Spoken(Q, version=1, flags=flags), K, V, G), expected)
    if flags & 1:
        refuses(plan, Q, "o is read-only, but the call writes it", out=Spoken(out, version=1, flags=flags))
        assert (out == 7).all()
    else:
        plan.forward(Q, K, V, G, out=Spoken(out, version=1, flags=flags))
        assert np.array_equal(out, expected)


class OnGpu:
    """Says that it is on a GPU, of memory that is here: a reader who believes it, and one who does not, show."""

    def __init__(self, array, index=0):
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, "strides": None}
        self.device = type("Device", (), {"id": index})()


@pytest.mark.parametrize("q,sentence", [
    (Spoken(Q, device=(2, 0)), "q lies on cuda:0, but the context is on cpu:0"),
    (Spoken(Q, device=(2, 3)), "q lies on cuda:3, but the context is on cpu:0"),
    (Spoken(Q, device=(13, 1)), "q lies on cuda:1, but the context is on cpu:0"),
    (OnGpu(Q), "q lies on cuda:0, but the context is on cpu:0"),
    (OnGpu(Q, 2), "q lies on cuda:2, but the context is on cpu:0"),
    (Spoken(Q, device=(7, 0)), "device type 7"),
    (Spoken(Q, code=0), "q is of type"),
    (Spoken(Q, code=4), "q is of type"),
    (Spoken(Q, lanes=2), "q is of type"),
    (Spoken(Q, version=2), "speaks DLPack 2"),
    (Spoken(Q, strides=(1024, 16, 9, 1)), "q has strides")])
def test_what_does_not_fit_is_refused(plan, q, sentence):
    refuses(plan, q, sentence)


def test_pinned_memory_is_the_hosts(plan):
    assert np.array_equal(plan.forward(Spoken(Q, device=(3, 0)), K, V, G), plan.forward(Q, K, V, G))


class Interface:
    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


def test_strides_that_split_elements(plan):
    """No element of float32 lies 65 bytes after another: rounded, that would be 16 elements, what the plan wants."""
    split = np.ndarray(Q.shape, np.float32, bytes(2 * Q.nbytes), 1, (4096, 65, 32, 4))
    assert arrays.describe(Interface(split), "q").strides == (1024, -1, 8, 1)
    refuses(plan, Interface(split), "q has strides")
    refuses(plan, split, "q has strides")


@pytest.mark.parametrize("kind", [np.int16, np.float16, np.dtype("V2")])
def test_sixteen_bits_of_another_kind(kind):
    """Arrays of uint16 are taken for bfloat16, since NumPy has no such type. Others of two bytes are not."""
    q, k, v = (np.full((1, 4, 1, 8), 0x3f80, np.uint16) for _ in range(3))
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v))
        assert plan.problem.dtype == liblasp.DType.BFLOAT16
        with pytest.raises(liblasp.InvalidArgument, match="q is of type .*, but the plan was made for bfloat16"):
            plan.forward(q.view(kind), k, v)
        with pytest.raises(liblasp.InvalidArgument, match="o is of type .*, but the plan was made for bfloat16"):
            plan.forward(q, k, v, out=q.view(kind))
        plan.forward(q, k, v)


def test_buffers_are_let_go(plan):
    """memoryview.release raises where somebody still holds what it exported."""
    for k in (K, K[:, :-1]):  # a call that goes well, and one that is refused after q was taken
        q = memoryview(Q)
        try:
            plan.forward(q, k, V, G)
        except liblasp.InvalidArgument:
            assert k is not K
        q.release()
    out = bytearray(Q.nbytes)
    bound = plan.bind_forward(Q, K, V, G, out=memoryview(out).cast("f", Q.shape))
    bound()
    with pytest.raises(BufferError):
        out.append(0)  # the bound call writes there
    del bound
    out.append(0)
