"""Training by DDP, FSDP and FSDP2 times sequence parallelism, over ranks as processes with gloo, against one rank."""
import math
import os
import pathlib
import sys
import traceback
import types

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from processes import on_processes  # noqa: E402
from support import free_ports  # noqa: E402

RANKS = 4
EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "pytorch"
TRAINING = {"ddp": ["--sequence-ranks", "2"], "fsdp": ["--sequence-ranks", "2", "--parallel", "fsdp"],
            "fsdp2": ["--sequence-ranks", "2", "--parallel", "fsdp2", "--stride", "2"],
            "sequence": ["--sequence-ranks", "4", "--checkpoint"]}
STEPS, SEQ_LEN, BATCH, LAYERS, D_MODEL, LR = 6, 96, 2, 2, 32, 1e-3


def example_train():
    sys.path.insert(0, str(EXAMPLE))
    import train
    return train


def training_arguments(curve, extra):
    return ["--steps", str(STEPS), "--seq-len", str(SEQ_LEN), "--batch", str(BATCH), "--layers", str(LAYERS),
            "--d-model", str(D_MODEL), "--heads", "2", "--d-ff", "48", "--lr", str(LR), "--device", "cpu",
            "--log-every", "1000", "--text", __file__, "--loss-csv", str(curve), *extra]


def run_training(name, extra, folder):
    example_train().main(training_arguments(folder / f"{name}.csv", extra))


def process(rank, ports, folder):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1")
    report = {}
    for (name, extra), port in zip(TRAINING.items(), ports):
        os.environ["MASTER_PORT"] = str(port)
        try:
            run_training(name, extra, folder)
            report[name] = None
        except BaseException:
            report[name] = traceback.format_exc()
            if dist.is_initialized():
                dist.destroy_process_group()
    return report


def run_one_rank(folder):
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    run_training("one", [], folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Reports of all ranks, and the folder with the loss curves."""
    folder = tmp_path_factory.mktemp("training")
    reports = on_processes(folder, RANKS, process, free_ports(len(TRAINING)), folder,
                           meanwhile=lambda: run_one_rank(folder))
    return types.SimpleNamespace(folder=folder, reports=reports)


def read_curve(path):
    return [float(line.split(",")[1]) for line in path.read_text().splitlines()[1:]]


def curve_bounds():
    """Of the difference of two loss curves whose runs split the sums differently. u = 2^-24 is float32's unit
    roundoff.

    A token passes 10 operations a block and 4 outside, each a sum of m <= max(d_model, d_ff, chunk + head_dim) =
    272
    terms: logits carry the relative error e = u sqrt((10 L + 4) m), the mean loss over T tokens b = 4 ln(256) e /
    sqrt(T).
    The backward pass repeats the chain and sums T tokens: sqrt(2) e + u sqrt(T). AdamW divides by the gradient's
    own size,
    so that a step of rate r moves each of P parameters by r at most, in error by r times that, of random sign: with
    a gradient of norm 1 or less the loss moves by r (sqrt(2) e + u sqrt(T)) sqrt(P) a step. An entry whose gradient
    is itself as small as rounding may move by 2 r the other way: there the gradient, so the effect, is as small.
    """
    u, tokens, parameters = 2.0**-24, SEQ_LEN * BATCH, 30000
    chain = u * math.sqrt((10 * LAYERS + 4) * 272)
    first = 4 * math.log(256) * chain / math.sqrt(tokens)
    return [first + step * LR * (math.sqrt(2) * chain + u * math.sqrt(tokens)) * math.sqrt(parameters)
            for step in range(STEPS)]


@pytest.mark.parametrize("name", TRAINING)
def test_training_equals_one_rank(world, name):
    for rank in range(RANKS):
        assert world.reports[rank][name] is None, world.reports[rank][name]
    one, many = read_curve(world.folder / "one.csv"), read_curve(world.folder / f"{name}.csv")
    assert len(one) == STEPS and one[-1] < one[0] - 0.05
    for step, (a, b, bound) in enumerate(zip(one, many, curve_bounds())):
        assert abs(a - b) <= bound, f"step {step}: {a} and {b}, bound {bound:.2g}"


def test_curves_of_a_wrong_exchange_differ(world):
    """The bound is not a formality: ranks that each start from a zero state leave it."""
    one = read_curve(world.folder / "one.csv")
    train = example_train()
    import model
    original = model.LinearAttention
    model.LinearAttention = lambda *args, group=None, **options: _CutAttention(original(*args, **options))
    try:
        train.main(training_arguments(world.folder / "cut.csv", []))
    finally:
        model.LinearAttention = original
    cut = read_curve(world.folder / "cut.csv")
    assert max(abs(a - b) / bound for a, b, bound in zip(one, cut, curve_bounds())) > 10


class _CutAttention(torch.nn.Module):
    """Two halves of the sequence that do not see each other."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        half = x.shape[1] // 2
        return torch.cat([self.attention(part.contiguous()) for part in (x[:, :half], x[:, half:])], dim=1)
