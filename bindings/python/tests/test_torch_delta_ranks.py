"""The layers of the delta rule on three ranks as processes with gloo: training, and decoding after a split prefill."""
import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import liblasp.torch as lt  # noqa: E402
import test_torch_delta_layers as layers  # noqa: E402
from processes import found, on_processes, run_checks  # noqa: E402
from test_torch_support import relative_error  # noqa: E402

RANKS, TOKENS = 3, 30
KINDS = ("DeltaNet", "GatedDeltaNet", "KimiDeltaAttention, all options")


def whole_input():
    return torch.randn(2, TOKENS, layers.D_MODEL, generator=torch.Generator().manual_seed(1))


def part_of(name, ends, rank):
    """This rank's layer, in the group, and its tokens."""
    layer = layers.make(name)
    layer.group = dist.group.WORLD
    return layer, whole_input()[:, ([0, *ends])[rank]:ends[rank]]


def training(name, rank):
    """Cut so that a convolution reaches over two ranks: y, and the gradients summed over the ranks."""
    found = []
    for ends in ((10, 20, TOKENS), (28, 29, TOKENS)):
        layer, x = part_of(name, ends, rank)
        y, gradients = layers.trained(layer, x)
        for key in gradients:
            if key != "x":
                dist.all_reduce(gradients[key])
        found.append((y, gradients))
    return found


def decoding(name, rank):
    """The prefill of 17 tokens in two calls, then one token at a time on each rank for itself."""
    layer, _ = part_of(name, (1, 2, 3), rank)
    layer.requires_grad_(False)
    x, state = whole_input(), None
    for part in (x[:, :4], x[:, 4:17]):
        _, state = layer(lt.shard(part, rank, RANKS), state, return_state=True)
    return torch.cat([layer.step(x[:, t:t + 1], state) for t in range(17, TOKENS)], 1), state


def carried_gradients(name, rank):
    """The gradient of the second part's output by the first part's input."""
    layer, _ = part_of(name, (1, 2, 3), rank)
    x = whole_input()
    first, second = (lt.shard(part, rank, RANKS).clone().requires_grad_() for part in (x[:, :12], x[:, 12:]))
    y, state = layer(first, return_state=True)
    (layers.weighted(layer(second, state)) + 0.0 * y.sum()).backward()
    return lt.gather(first.grad, dist.group.WORLD, 12), lt.gather(second.grad, dist.group.WORLD, TOKENS - 12)


def process(rank, folder):
    return run_checks(rank, RANKS, folder, [((check.__name__, name), check, (name, rank)) for name in KINDS
                                            for check in (training, decoding, carried_gradients)])


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return on_processes(folder, RANKS, process, folder, seconds=180)


@pytest.mark.parametrize("name", KINDS)
def test_training(reports, name):
    expected = layers.by_the_formulas(name, layers.make(name), whole_input())
    for parts in zip(*found(reports, ("training", name))):
        d_x = torch.cat([gradients["x"] for _, gradients in parts], 1)
        for _, gradients in parts:
            layers.compare(torch.cat([y for y, _ in parts], 1), {**gradients, "x": d_x}, *expected)


@pytest.mark.parametrize("name", KINDS)
def test_decoding(reports, name):
    layer = layers.make(name).requires_grad_(False)
    y, end = layer(whole_input(), return_state=True)
    for steps, state in found(reports, ("decoding", name)):
        assert relative_error(steps, y[:, 17:]) <= 2 * layers.LAYER_BOUND
        assert all(relative_error(*pair) <= 2 * layers.LAYER_BOUND for pair in zip(state, end))


@pytest.mark.parametrize("name", KINDS)
def test_carried_gradients(reports, name):
    layer, x = layers.make(name), whole_input().requires_grad_()
    layers.weighted(layer(x)[:, 12:]).backward()
    for first, second in found(reports, ("carried_gradients", name)):
        assert relative_error(first, x.grad[:, :12]) <= layers.GATES_BOUND
        assert relative_error(second, x.grad[:, 12:]) <= layers.GATES_BOUND
