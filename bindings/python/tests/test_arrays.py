"""Arrays go in and out without a copy, whichever protocol they speak and however they are strided."""

import importlib.util
import sys
import tracemalloc

import numpy as np
import pytest

import liblasp
from liblasp import arrays
from support import FLOAT32_BOUND, random_problem, recurrence, relative_error

Q, K, V, G, D_O = random_problem(2, batch=2, tokens=40, heads=3, head_dim=16, decay="channel")
EXPECTED = recurrence(Q, K, V, G, D_O, 0.25)


def test_addresses():
    """What the library is handed is the arrays' own memory."""
    out, states = np.empty_like(Q), np.zeros((2, 3, 16, 16), np.float32)
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G, backward=False))
        bound = plan.bind_forward(Q, K, V, G, out=out, initial_state=states).__self__
        given = {"q": Q, "k": K, "v": V, "decay": G, "o": out, "initial_state": states}
        assert {
    name: bound.addresses()[name] for name in given} == {
        name: x.ctypes.data for name,
         x in given.items()}


def test_nothing_is_copied():
    """Calls on 16 MB of arrays take less than 100 kB of new memory (which NumPy reports to tracemalloc)."""
    q, k, v, g, d_o = random_problem(3, tokens=4096, heads=4, head_dim=32, decay="none")
    grads = {name: np.empty_like(q) for name in ("dq", "dk", "dv")}
    out = np.empty_like(q)
    with liblasp.Context() as context:
        plan = context.plan(liblasp.Problem.like(q, k, v))
        plan.forward(q, k, v, out=out)
        plan.backward(d_o, q, k, v, out=grads)  # makes cache and workspace
        tracemalloc.start()
        assert plan.forward(q, k, v, out=out) is out
        result = plan.backward(d_o, q, k, v, out=grads)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert result.dq is grads["dq"] and peak < 100_000


def swapped(x):
    """The same values laid out [B, H, T, D]."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)


def test_strides_are_read():
    """q, k and v inside one packed array, the decay and d_o as [B, H, T, D], gradients packed too."""
    qkv = np.concatenate([Q, K, V], 3)
    q, k, v = qkv[..., :16], qkv[..., 16:32], qkv[..., 32:]
    g, d_o = swapped(G), swapped(D_O)
    packed = np.empty_like(qkv)
    out = {"dq": packed[..., :16], "dk": packed[..., 16:32], "dv": packed[..., 32:]}
    steps = tuple(step // 4 for step in q.strides[:3])
    d_steps = tuple(step // 4 for step in d_o.strides[:3])
    problem = liblasp.Problem.like(q, k, v, decay=g, strides={"d_o": d_steps, "dq": steps, "dk": steps, "dv": steps})
    assert problem.strides["q"] == steps and problem.strides["decay"] == d_steps
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(problem)
        o = plan.forward(q, k, v, g)
        grads = plan.backward(d_o, q, k, v, g, out=out)
        with pytest.raises(liblasp.InvalidArgument, match="dq: the plan's is not contiguous"):
            plan.backward(d_o, q, k, v, g)
    assert relative_error(o, EXPECTED["o"]) <= FLOAT32_BOUND
    for name in out:
        assert relative_error(getattr(grads, name), EXPECTED[name]) <= FLOAT32_BOUND


class OnlyDlpack:
    """An array that speaks DLPack alone, as JAX's do. Counts the capsules that are alive."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack__(self, stream=None):
        assert stream is None  # on the CPU
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnlyInterface:
    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.array = array


@pytest.mark.parametrize("wrap", [OnlyDlpack, OnlyInterface, memoryview])
def test_protocols(wrap):
    q, k, v, g = (wrap(x) for x in (Q, K, V, G))
    out = np.empty_like(Q)
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=g))
        plan.forward(q, k, v, g, out=wrap(out))
        assert relative_error(out, EXPECTED["o"]) <= FLOAT32_BOUND
        grads = plan.backward(wrap(D_O), q, k, v, g)
        assert relative_error(grads.dk, EXPECTED["dk"]) <= FLOAT32_BOUND
        bound = plan.bind_forward(q, k, v, g, out=wrap(out)).__self__
        assert bound.addresses()["q"] == Q.ctypes.data and bound.addresses()["o"] == out.ctypes.data


def test_dlpack_strides_and_release():
    """A strided DLPack array; and no capsule is left over, so that the array can be resized again."""
    wide = np.concatenate([Q, Q], 3)
    q = OnlyDlpack(wide[..., :16])
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(q, K, V, decay=G))
        assert relative_error(plan.forward(q, K, V, G), EXPECTED["o"]) <= FLOAT32_BOUND
    before = sys.getrefcount(Q)
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G))
        for _ in range(10):
            plan.forward(OnlyDlpack(Q), K, V, G)
    assert sys.getrefcount(Q) == before


class Bfloat16:
    """How ml_dtypes' bfloat16 looks: no buffer protocol, an array interface of two opaque bytes, a dtype by
    name."""

    class dtype:
        name = "bfloat16"

    def __init__(self, array):
        self.bits = (array.view(np.uint32) >> 16).astype(np.uint16)
        self.values = (self.bits.astype(np.uint32) << 16).view(np.float32)
        self.__array_interface__ = {**self.bits.__array_interface__, "typestr": "<V2"}


def test_bfloat16_by_name():
    q, k, v = (Bfloat16(x) for x in (Q, K, V))
    out = Bfloat16(np.empty_like(Q))
    expected = recurrence(q.values, k.values, v.values, G, D_O, 0.25)
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=G))
        assert plan.problem.dtype == liblasp.DType.BFLOAT16
        plan.forward(q, k, v, G, out=out)
    o = (out.bits.astype(np.uint32) << 16).view(np.float32)
    assert relative_error(o, expected["o"]) <= FLOAT32_BOUND + 2.0 ** -9


if importlib.util.find_spec("ml_dtypes"):
    def test_ml_dtypes():
        """The same by the package itself, where it is installed: outputs are of its type."""
        import ml_dtypes

        q, k, v, d_o = (x.astype(ml_dtypes.bfloat16) for x in (Q, K, V, D_O))
        expected = recurrence(*(x.astype(np.float32) for x in (q, k, v)), G, d_o.astype(np.float32), 0.25)
        with liblasp.Context(cpu_threads=1) as context:
            plan = context.plan(liblasp.Problem.like(q, k, v, decay=G))
            o, grads = plan.forward(q, k, v, G), plan.backward(d_o, q, k, v, G)
        assert o.dtype == q.dtype and grads.dq.dtype == q.dtype
        assert relative_error(o.astype(np.float32), expected["o"]) <= FLOAT32_BOUND + 2.0 ** -9


def test_no_tokens():
    """A rank without tokens leaves its arrays out, or gives empty ones."""
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(tokens=0, batch=2, heads=3, head_dim=16, decay="channel")
        o, state = plan.forward(
    None, None, None, initial_state=np.ones(
        (2, 3, 16, 16), np.float32), final_state=True)
        assert o.shape == (2, 0, 3, 16) and (state == 1).all()
        assert plan.forward(Q[:, :0], K[:, :0], V[:, :0], G[:, :0]).shape == (2, 0, 3, 16)
        assert plan.backward(None, None, None, None).dq.shape == (2, 0, 3, 16)


def test_caches():
    """A cache of one's own survives the plan's next forward; reuse_cache computes o again from it."""
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(Q, K, V, decay=G))
        mine = plan.new_cache()
        assert mine.nbytes == plan.info.state_cache_bytes and mine.ctypes.data % plan.info.alignment == 0
        o = plan.forward(Q, K, V, G, cache=mine)
        plan.forward(K, Q, V, G)
        assert np.array_equal(plan.forward(Q, K, V, G, cache=mine, reuse_cache=True), o)
        grads = plan.backward(D_O, Q, K, V, G, cache=mine, d_decay=False)
        assert grads.d_decay is None and relative_error(grads.dq, EXPECTED["dq"]) <= FLOAT32_BOUND


class FakeStream:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class ProtocolStream:
    def __cuda_stream__(self):
        return 0, 48


def test_streams():
    """Streams by every name they go by; without a GPU only how they are read can be tested."""
    assert arrays.pointer_of_stream(16) == 16
    assert arrays.pointer_of_stream(FakeStream(cuda_stream=32)) == 32
    assert arrays.pointer_of_stream(FakeStream(ptr=64)) == 64
    assert arrays.pointer_of_stream(ProtocolStream()) == 48
    with pytest.raises(liblasp.InvalidArgument, match="stream is a str"):
        arrays.pointer_of_stream("default")


def test_cuda_arrays_are_read():
    class OnGpu:
        __cuda_array_interface__ = {"shape": (1, 4, 2, 8), "typestr": "<f2", "data": (4096, False), "version": 3,
                                    "strides": (256, 64, 16, 2), "stream": 7}

    with pytest.raises(liblasp.InvalidArgument, match="q is in use on stream 0x7"):
        arrays.describe(OnGpu(), "q")
    arrays.enter_stream(7, None, 0)
    told = arrays.describe(OnGpu(), "q")
    assert (told.address, told.dtype, told.device, told.strides) == (4096, liblasp.DType.FLOAT16, liblasp.Device.CUDA,
                                                                     (128, 32, 8, 1))
    arrays.enter_stream(0, None, 0)


def test_a_problem_is_read_whatever_the_stream():
    """CuPy's arrays name its current stream, which matters to a call only."""
    class InUse:
        __cuda_array_interface__ = {"shape": (1, 4, 2, 8), "typestr": "<f4", "data": (4096, False), "version": 3,
                                    "strides": None, "stream": 7}

    arrays.enter_stream(9, None, 0)
    assert liblasp.Problem.like(InUse(), InUse(), InUse()).tokens == 4
    assert arrays.address_of(InUse()) == 4096
    with pytest.raises(liblasp.InvalidArgument, match="q is in use on stream 0x7"):
        arrays.describe(InUse(), "q")
    arrays.enter_stream(0, None, 0)


class LikeJax:
    """An array that its framework takes for constant, of which DLPack's first version says nothing."""

    __module__ = "jaxlib._jax"

    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_constant_arrays_are_read_and_not_written():
    q, k, v, out = (LikeJax(x) for x in (Q, K, V, np.zeros_like(Q)))
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=G))
        assert np.array_equal(plan.forward(q, k, v, G), plan.forward(Q, K, V, G))
        with pytest.raises(liblasp.InvalidArgument, match="o is read-only, but the call writes it"):
            plan.forward(q, k, v, G, out=out)
        assert not out.array.any()


class Offsets:
    """What says that it lies on a GPU."""

    def __init__(self, typestr="<i4", shape=(2,), strides=None):
        self.__cuda_array_interface__ = {"data": (4096, False), "typestr": typestr, "shape": shape, "version": 3,
                                         "strides": strides}


def test_offsets_on_a_gpu_are_not_read():
    with liblasp.Context(cpu_threads=1) as context:
        plan = context.plan(liblasp.Problem.like(Q[:1], K[:1], V[:1], decay=G[:1], max_sequences=2))
        for given, kind, words in (
                (Offsets(), liblasp.Unsupported, "LASP_DEVICE_CUDA: offsets lie in host memory here"),
                (Offsets("<i8"), liblasp.Unsupported, "LASP_DEVICE_CUDA: offsets lie in host memory here"),
                (Offsets("<f4"), liblasp.InvalidArgument, r"cu_seqlens: is an array \[2\] of <f4 on a GPU"),
                (Offsets(shape=(2, 1)), liblasp.InvalidArgument, r"cu_seqlens: is an array \[2, 1\] of <i4 on a GPU"),
                (Offsets(strides=(8,)), liblasp.InvalidArgument, r"must be \[N \+ 1\] of int32 or int64 in one piece")):
            with pytest.raises(kind, match=words):
                plan.forward(Q[:1], K[:1], V[:1], G[:1], cu_seqlens=given)
