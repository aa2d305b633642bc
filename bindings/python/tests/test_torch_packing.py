"""Packed sequences whose offsets lie in a tensor: nobody reads them but the library, so that on a GPU nothing waits."""
import threading

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from liblasp import raw  # noqa: E402
from liblasp.torch import packing  # noqa: E402
from test_torch_convolution import agree  # noqa: E402
from test_torch_operators import Watch, gradients, same  # noqa: E402
from test_torch_support import make_problem  # noqa: E402

OFFSETS = [0, 7, 7, 31, 45]  # and padding to 50
READS = ("tolist", "item", "cpu", "numpy", "__array__", "__bool__", "__int__", "__index__", "__float__", "__iter__", "__repr__")


class Reads:
    """While it lasts whatever would bring numbers of a tensor to the host raises."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def __enter__(self):
        self._patch = self._monkeypatch.context()
        patch = self._patch.__enter__()
        for name in READS:
            def refuse(*given, name=name, **named):
                raise AssertionError(f"Tensor.{name}: would wait for a GPU")
            patch.setattr(torch.Tensor, name, refuse)

    def __exit__(self, *exception):
        self._patch.__exit__(*exception)


def layer_gradients(layer, x, d_y, **given):
    x = x.clone().requires_grad_()
    y = layer(x, **given)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], d_y)]


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
@pytest.mark.parametrize("kind", ("head", "channel", "delta_scalar"))
def test_offsets_are_not_read(monkeypatch, kind, dtype):
    """By ordinary calls, the operators and a compiled program; and the result is that of whole numbers."""
    x, d_o, d_final = make_problem(kind, batch=1, tokens=50, sequences=4)
    expected = gradients(lt.linear_attention, x, d_o, d_final, cu_seqlens=OFFSETS)
    offsets = torch.tensor(OFFSETS, dtype=dtype)
    compiled = torch.compile(lt.linear_attention, backend="aot_eager", fullgraph=True)
    gradients(compiled, x, d_o, d_final, cu_seqlens=offsets)
    with Reads(monkeypatch):
        found = gradients(lt.linear_attention, x, d_o, d_final, cu_seqlens=offsets)
        with Watch() as watch:
            by_operators = gradients(lt.linear_attention, x, d_o, d_final, cu_seqlens=offsets)
        by_compiler = gradients(compiled, x, d_o, d_final, cu_seqlens=offsets)
    assert watch.seen == ["forward", "backward"]
    assert same(found, expected) and same(by_operators, expected) and same(by_compiler, expected)


@pytest.mark.parametrize("make", (lambda: lt.LinearAttention(32, 2, decay="scalar"),
                                  lambda: lt.ShortConvolution(32, 4, bias=True, activation="silu"),
                                  lambda: lt.GatedDeltaNet(32, 2, head_dim_k=8)))
def test_layers_do_not_read_offsets(monkeypatch, make):
    torch.manual_seed(2)
    layer, x, d_y = make(), torch.randn(1, 50, 32), torch.randn(1, 50, 32)
    expected = layer_gradients(layer, x, d_y, cu_seqlens=OFFSETS)
    offsets = torch.tensor(OFFSETS)
    if isinstance(layer, lt.LinearAttention):
        with Reads(monkeypatch):
            found = layer_gradients(layer, x, d_y, cu_seqlens=offsets)
    else:  # a convolution checks what lies on the host
        monkeypatch.setattr(packing, "_on_host", lambda offsets: False)
        monkeypatch.setattr(packing, "_memory_of", lambda offsets, of=packing._memory_of: (
            *of(offsets)[:4], raw.LASP_DEVICE_CPU, offsets))
        with Reads(monkeypatch):
            found = layer_gradients(layer, x, d_y, cu_seqlens=offsets)
    assert same(found, expected)


def test_a_convolution_over_ranks_does_not_read_offsets(monkeypatch):
    torch.manual_seed(2)
    whole, x, d_y = lt.ShortConvolution(8, 4), torch.randn(1, 50, 8), torch.randn(1, 50, 8)
    expected = layer_gradients(whole, x, d_y, cu_seqlens=OFFSETS)
    offsets, found = torch.tensor(OFFSETS), [None] * 2
    monkeypatch.setattr(packing, "_on_host", lambda offsets: False)

    def run(rank, comm):
        with lt.SequenceGroup(comm, cpu_threads=1, time_limit=60) as group:
            layer = lt.ShortConvolution(8, 4, group=group)
            layer.load_state_dict(whole.state_dict())
            found[rank] = layer_gradients(layer, x.split(25, 1)[rank], d_y.split(25, 1)[rank], cu_seqlens=offsets)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(liblasp.Comm.threads(2))]
    with Reads(monkeypatch):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert agree([torch.cat([each[at] for each in found], 1) for at in range(2)], expected[:2])


class OnAGpu(torch.Tensor):
    """A tensor on the CPU that says that it is on a GPU."""

    is_cpu = False
    device = torch.device("cuda:0")


def test_offsets_on_a_gpu_are_handed_on(monkeypatch):
    offsets = torch.tensor(OFFSETS, dtype=torch.int32)
    given = offsets.as_subclass(OnAGpu)
    with Reads(monkeypatch):
        found = packing.Packing(given, torch.device("cuda:0"))
    assert found.memory[:5] == (offsets.data_ptr(), 20, 4, raw.LASP_INT32, raw.LASP_DEVICE_CUDA) and found.most == 4
    assert packing.offsets_on(torch.device("cuda:0"), given, 50) is not None
    with pytest.raises(liblasp.InvalidArgument, match="^cu_seqlens: is on cuda:0, must be on q's cuda:1 or on the CPU"):
        packing.Packing(given, torch.device("cuda:1"))
    every_other = torch.tensor([0, 9, 5, 9], dtype=torch.int64)[::2]
    assert packing.Packing(every_other, torch.device("cpu")).offsets.tolist() == [0, 5]


def test_offsets_that_are_written_to_between_the_passes():
    x, d_o, d_final = make_problem("scalar", batch=1, tokens=50, sequences=4)
    offsets = torch.tensor(OFFSETS)
    o = lt.linear_attention(x["q"].requires_grad_(), x["k"], x["v"], x["decay"], cu_seqlens=offsets)
    offsets[1] = 8
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.backward(d_o)


def test_offsets_made_in_inference_mode():
    x, d_o, d_final = make_problem("scalar", batch=1, tokens=50, sequences=4)
    expected = gradients(lt.linear_attention, x, d_o, d_final, cu_seqlens=OFFSETS)
    with torch.inference_mode():
        offsets = torch.tensor(OFFSETS)
        inside = lt.linear_attention(*(x[name] for name in ("q", "k", "v", "decay")), cu_seqlens=offsets,
                                     initial_state=x["initial_state"])
    assert torch.equal(inside, expected[0])
    assert same(gradients(lt.linear_attention, x, d_o, d_final, cu_seqlens=offsets), expected)


def test_padding_of_a_convolution_is_not_read():
    """It may be NaN: y and gradients there are zero, and the parameters' gradients are those of the other tokens."""
    torch.manual_seed(2)
    layer, x, d_y = lt.ShortConvolution(8, 4, bias=True, activation="silu"), torch.randn(1, 50, 8), torch.randn(1, 50, 8)
    expected = layer_gradients(layer, x[:, :45], d_y[:, :45], cu_seqlens=OFFSETS)
    x[:, 45:], d_y[:, 45:] = float("nan"), float("nan")
    found = layer_gradients(layer, x, d_y, cu_seqlens=OFFSETS)
    assert not found[0][:, 45:].any() and not found[1][:, 45:].any()
    assert agree([found[0][:, :45], found[1][:, :45], *found[2:]], expected)


@pytest.mark.parametrize("offsets, words", (
    (torch.tensor([0.0, 50.0]), r"is a tensor \[2\] of torch.float32, must be \[N \+ 1\] of torch.int32 or torch.int64"),
    (torch.tensor([[0, 50]]), r"is a tensor \[1, 2\] of torch.int64"),
    (torch.empty(0, dtype=torch.int32), r"is a tensor \[0\] of torch.int32"),
    (torch.tensor([False, True]), r"is a tensor \[2\] of torch.bool"),
    (torch.zeros(2, dtype=torch.int64, device="meta"), "is on meta, must be on q's cpu or on the CPU")))
def test_bad_offsets(offsets, words):
    x = torch.randn(1, 50, 2, 8)
    for call in (lambda: lt.linear_attention(x, x, x, cu_seqlens=offsets),
                 lambda: lt.ShortConvolution(16, 4)(x.flatten(2), cu_seqlens=offsets)):
        with pytest.raises(liblasp.InvalidArgument, match=f"^cu_seqlens: {words}"):
            call()
