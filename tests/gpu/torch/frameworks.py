"""Arrays of torch, CuPy and JAX, and of anything with DLPack or __cuda_array_interface__: without a copy, on the
caller's current stream."""

import functools
import time

import torch

import liblasp
from problems import BOUNDS, attempt, error, line, need, problem, recurrence, refused, run, skip

NAMES = ("q", "k", "v", "decay", "initial_state")
TICKS = 200_000_000  # of torch.cuda._sleep: about 0.1 s, so that what comes too early is seen


class Interface:
    """A tensor of which nothing but __cuda_array_interface__ is to be seen."""

    def __init__(self, tensor, readonly=False, **fields):
        self._tensor = tensor
        address, _ = tensor.__cuda_array_interface__["data"]
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "data": (address, readonly), **fields}


class Capsule:
    """A tensor of which nothing but DLPack is to be seen."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, stream=None):
        return self._tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


class Framework:
    """How a framework's arrays are made of tensors, where they lie, and how they are read again."""

    dtypes = (torch.float32,)

    def put(self, tensor):
        return tensor.cuda()

    def address(self, array):
        return getattr(array, "_tensor", array).data_ptr()

    def read(self, array):
        return array.cpu()


class Torch(Framework):
    name, dtypes = "torch", (torch.float32, torch.bfloat16, torch.float16)


class OnlyInterface(Framework):
    name = "__cuda_array_interface__ alone"

    def put(self, tensor):
        return Interface(tensor.cuda())


class OnlyDLPack(Framework):
    name, dtypes = "DLPack alone", (torch.float32, torch.bfloat16)

    def put(self, tensor):
        return Capsule(tensor.cuda())


def bits_of(tensor):
    """As NumPy's; bfloat16 as its bits."""
    return tensor.view(torch.int16).numpy().view("uint16") if tensor.dtype == torch.bfloat16 else tensor.numpy()


class CuPy(Framework):
    name, dtypes = "CuPy", (torch.float32, torch.bfloat16, torch.float16)

    def __init__(self):
        import cupy

        self.cupy = cupy
        cupy.cuda.runtime.getDeviceCount()

    def put(self, tensor):
        return self.cupy.asarray(bits_of(tensor))

    def address(self, array):
        return array.data.ptr

    def read(self, array):
        host = array.get()
        return torch.from_numpy(host.view("int16")).view(torch.bfloat16) if host.dtype == "uint16" else (
            torch.from_numpy(host))


class Jax(Framework):
    name, dtypes = "JAX", (torch.float32, torch.bfloat16)

    def __init__(self):
        import jax
        import ml_dtypes

        self.jax, self.bfloat16, self.device = jax, ml_dtypes.bfloat16, jax.devices("gpu")[0]

    def put(self, tensor):
        host = bits_of(tensor)
        host = host.view(self.bfloat16) if tensor.dtype == torch.bfloat16 else host
        return self.jax.device_put(host, self.device).block_until_ready()

    def address(self, array):
        return array.unsafe_buffer_pointer()


def present():
    """Those that this machine has; a line for each that it has not."""
    found = []
    for make in (Torch, CuPy, Jax, OnlyInterface, OnlyDLPack):
        try:
            found.append(make())
        except Exception as reason:
            skip(f"{make.__name__}: {type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else ''}")
    torch.cuda.set_device(0)  # JAX leaves the last of several current
    return found


def framework_of_outputs(framework):
    """Whose arrays the package makes beside these: their own, or torch's, which these checks have imported."""
    return framework if isinstance(framework, CuPy) else Torch()


def check_arrays():
    for framework in present():
        for dtype in framework.dtypes:
            for decay in ("head", "scalar") if dtype == torch.float32 else ("scalar",):
                attempt(f"{framework.name}, {dtype}, {decay}", one_problem, framework, dtype, decay)


@functools.cache
def known(dtype, decay):
    """A problem, and what is right in float64."""
    x, d_o = problem(decay, batch=2, tokens=100, dtype=dtype)
    return x, d_o, run(lambda leaves: recurrence(**leaves), x, d_o, "cpu", double=True)


def one_problem(framework, dtype, decay):
    x, d_o, expected = known(dtype, decay)
    given = {name: framework.put(x[name]) for name in NAMES}
    initial = given.pop("initial_state")
    outputs = framework_of_outputs(framework)
    with liblasp.Context(device="cuda:0") as context:
        plan = context.plan(liblasp.Problem.like(given["q"], given["k"], given["v"], decay=given["decay"]))
        o, final = plan.forward(*given.values(), initial_state=initial, final_state=True)
        gradients = plan.backward(framework.put(d_o), *given.values(), initial_state=initial,
                                  d_final_state=framework.put(torch.ones_like(x["initial_state"])))
        mine = outputs.put(torch.zeros(d_o.shape, dtype=dtype))
        returned = plan.forward(*given.values(), initial_state=initial, out=mine)
        addresses = plan.bind_forward(*given.values(), out=mine).__self__.addresses()
        torch.cuda.synchronize()
    text = f"{framework.name}, {str(dtype)[6:]}, {decay}"
    actual = {"o": o, "final_state": final, "d q": gradients.dq, "d k": gradients.dk, "d v": gradients.dv,
              "d decay": gradients.d_decay, "d initial_state": gradients.d_initial_state}
    found = {name: error(outputs.read(actual[name]), expected[name]) for name in expected}
    # A per-head decay's gradient is a sum over all tokens whose terms cancel.
    bad = {name: f"{value:.2g}" for name, value in found.items()
           if not value <= BOUNDS[dtype] * (200**0.5 if name == "d decay" and decay == "head" else 1)}
    line(not bad, f"{text}: forward and backward against float64: at most {max(found.values()):.2g} {bad or ''}")
    line(returned is mine and torch.equal(outputs.read(mine), outputs.read(o)), f"{text}: written where told")
    where = {name: framework.address(array) for name, array in given.items()} | {"o": outputs.address(mine)}
    line(all(addresses[name] == where[name] for name in where), f"{text}: C is given the arrays' own addresses")


class Late:
    """q that gets its values on `stream`, after 0.1 s of other work there: a call that does not keep to the
    stream's order reads zeros."""

    def __init__(self, stream):
        x, _ = problem("scalar", batch=1, tokens=300)
        self.stream = torch.cuda.ExternalStream(stream)
        self.x = {name: x[name].cuda() for name in NAMES[:4]}
        self.q = torch.zeros_like(self.x["q"])
        self.out = torch.zeros_like(self.x["q"])
        torch.cuda.synchronize()

    def check(self, text, call, expected):
        """call(q) is made once to have workspace and all else ready, then on the late q."""
        call(self.q)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(TICKS)
            self.q.copy_(self.x["q"])
        began = time.perf_counter()
        call(self.q)
        seconds = time.perf_counter() - began
        busy = not self.stream.query()
        torch.cuda.synchronize()
        line(torch.equal(self.out, expected) and busy and seconds < 0.05,
             f"{text}: the call took {seconds * 1e6:.0f} us, its stream was {'busy' if busy else 'done'} then, the "
             f"result is {'right' if torch.equal(self.out, expected) else 'WRONG'}")
        self.q.zero_()
        self.out.zero_()


def check_streams():
    side = torch.cuda.Stream()
    late = Late(side.cuda_stream)
    q, k, v, decay = late.x.values()
    with liblasp.Context(device="cuda:0") as context:
        plan = context.plan(liblasp.Problem.like(q, k, v, decay=decay, backward=False))
        expected = plan.forward(q, k, v, decay)
        torch.cuda.synchronize()

        def current(late_q):
            with torch.cuda.stream(side):
                plan.forward(late_q, k, v, decay, out=late.out)

        late.check("torch's current stream", current, expected)
        for name, stream in (("a torch stream", side), ("an int", side.cuda_stream)):
            late.check(f"stream= {name}", functools.partial(
                plan.forward, k=k, v=v, decay=decay, out=late.out, stream=stream), expected)
        late.check("stream= for arrays of DLPack alone",
                   lambda late_q: plan.forward(*map(Capsule, (late_q, k, v, decay)), out=Capsule(late.out),
                                               stream=side), expected)
        bound = plan.bind_forward(late.q, k, v, decay, out=late.out)
        late.check("a bound call", lambda _: bound(side.cuda_stream), expected)
        try:
            cupy = CuPy().cupy
        except Exception as reason:
            skip(f"CuPy's streams: {type(reason).__name__}: {reason}")
        else:
            attempt("CuPy's streams", cupy_streams, cupy, plan, expected)


def cupy_streams(cupy, plan, expected):
    for kind in ("non-blocking", "blocking"):
        stream = cupy.cuda.Stream(non_blocking=kind == "non-blocking")
        late = Late(stream.ptr)
        shared = {name: cupy.asarray(tensor) for name, tensor in late.x.items()}
        late_q, out = cupy.asarray(late.q), cupy.asarray(late.out)
        need(late_q.data.ptr == late.q.data_ptr(), "CuPy copied torch's memory")
        rest = [shared[name] for name in ("k", "v", "decay")]

        def current(_):
            with stream:  # noqa: B023
                plan.forward(late_q, *rest, out=out)  # noqa: B023

        late.check(f"CuPy's current stream, {kind}", current, expected)
        with stream:
            made = plan.forward(shared["q"], *rest)
            line(isinstance(made, cupy.ndarray), "  and o made there is CuPy's")
            line(bool((made.get() == expected.cpu().numpy()).all()), "  and right")
            line(liblasp.Problem.like(shared["q"], *rest[:2], decay=rest[2]).tokens == 300,
                 "  and a problem is read from arrays in use there")
            bound = plan.bind_forward(late_q, *rest, out=out)
        late.check("  a bound call", lambda _: bound(stream.ptr), expected)  # noqa: B023
        late.check("stream= CuPy's, torch's arrays",
                   lambda q: plan.forward(q, *[late.x[name] for name in ("k", "v", "decay")],  # noqa: B023
                                          out=late.out, stream=stream), expected)  # noqa: B023
        with stream:
            refused("an array in use on CuPy's current stream, a call on another", "in use on stream",
                    lambda: plan.forward(shared["q"], *rest, stream=torch.cuda.Stream()))  # noqa: B023
