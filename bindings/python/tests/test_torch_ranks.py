"""Ranks as processes with gloo: the transport, the groups, and training by DDP, FSDP and FSDP2 times sequence
parallelism against one rank. The processes start once; each test looks at what they reported."""
import datetime
import math
import os
import pathlib
import pickle
import sys
import time
import traceback
import types

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
import test_torch_pieces  # noqa: E402
import test_torch_segments  # noqa: E402
from test_torch_convolution import BOUND as CONVOLUTION_BOUND, over_changing_shares, over_ranks  # noqa: E402
from test_torch_support import BOUNDS, make_problem, recurrence, relative_error, shard_of  # noqa: E402

RANKS = 4
EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "pytorch"
TRAINING = {"ddp": ["--sequence-ranks", "2"], "fsdp": ["--sequence-ranks", "2", "--parallel", "fsdp"],
            "fsdp2": ["--sequence-ranks", "2", "--parallel", "fsdp2", "--stride", "2"],
            "sequence": ["--sequence-ranks", "4", "--checkpoint"]}
STEPS, SEQ_LEN, BATCH, LAYERS, D_MODEL, LR = 6, 96, 2, 2, 32, 1e-3


def attention_over_gloo(rank, folder):
    """All decays, uneven shares, packed and not, forward and backward."""
    worst = 0.0
    group = dist.group.WORLD
    for decay, packed in (("none", False), ("head", False), ("scalar", True), ("channel", False)):
        batch, tokens, offsets = (1, 41, [0, 5, 5, 30, 41]) if packed else (2, 41, None)
        x, d_o, d_final = make_problem(decay, batch=batch, tokens=tokens, sequences=4 if packed else None)
        wide = {name: None if value is None else value.double().requires_grad_() for name, value in x.items()}
        o, final = recurrence(wide["q"], wide["k"], wide["v"], wide["decay"], initial_state=wide["initial_state"],
                              cu_seqlens=offsets)
        torch.autograd.backward([o, final], [d_o.double(), d_final.double()])
        begin, end = lt.shard_bounds(tokens, rank, RANKS)
        mine = {name: shard_of(name, value, begin, end) for name, value in x.items()}
        actual_o, actual_final = lt.linear_attention(
            mine["q"], mine["k"], mine["v"], mine["decay"], initial_state=mine["initial_state"], cu_seqlens=offsets,
            group=group, output_final_state=True)
        torch.autograd.backward([actual_o, actual_final], [d_o[:, begin:end], d_final])
        whole = lt.gather(actual_o, group, tokens)
        dist.all_reduce(actual_final.detach())
        pairs = [(whole, o), (lt.gather(mine["k"].grad, group, tokens), wide["k"].grad),
                 (lt.gather(mine["q"].grad, group, tokens), wide["q"].grad),
                 (lt.gather(mine["v"].grad, group, tokens), wide["v"].grad)]
        initial = mine["initial_state"].grad.clone()
        dist.all_reduce(initial)
        pairs.append((initial, wide["initial_state"].grad))
        worst = max([worst] + [relative_error(actual, expected) for actual, expected in pairs])
    traffic = lt.sequence_group(group).traffic()
    return {"worst": worst, "messages": traffic["messages_sent"], "bytes": traffic["bytes_sent"]}


def carried_state(rank, folder):
    """The gradient of a second segment's output by the first one's input, through the state that all ranks got."""
    torch.manual_seed(5)
    module, x = lt.LinearAttention(32, 4, decay="scalar"), torch.randn(1, 40, 32)
    whole = x.clone().requires_grad_()
    module(whole)[:, 24:].sum().backward()
    module.group = dist.group.WORLD
    first, second = (lt.shard(part, rank, RANKS).clone().requires_grad_() for part in (x[:, :24], x[:, 24:]))
    y, state = module(first, return_state=True)
    (module(second, state).sum() + 0.0 * y.sum()).backward()
    return [relative_error(lt.gather(mine.grad, dist.group.WORLD, mine.shape[1] * RANKS), expected)
            for mine, expected in ((first, whole.grad[:, :24]), (second, whole.grad[:, 24:]))]


def wrapped_by(how, model):
    """The model whose gradients this wrapper averages over the ranks."""
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if how == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    from torch.distributed.fsdp import fully_shard
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole_gradients(how, wrapped, model):
    if how == "fsdp":
        with wrapped.summon_full_params(wrapped, with_grads=True):
            return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return {name: parameter.grad if how == "ddp" else parameter.grad.full_tensor()
            for name, parameter in model.named_parameters()}


def time_segments_under(how):
    """Segments in time, each of them split over the ranks, against one piece on one rank."""
    inputs, targets = test_torch_segments.batch(1001)
    model = test_torch_segments.Model()
    loss = test_torch_segments.mean_loss(targets.numel())
    whole = loss(model(inputs), targets)
    whole.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    split = test_torch_segments.Model()
    for module in split.modules():
        if isinstance(module, lt.LinearAttention):
            module.group = dist.group.WORLD
    wrapped, reductions = wrapped_by(how, split), []
    if how == "ddp":

        def count(_, bucket):
            reductions.append(bucket.index())
            return default_hooks.allreduce_hook(dist.group.WORLD, bucket)
        wrapped.register_comm_hook(None, count)
    part = lt.time_segments(wrapped, inputs, targets, lambda *given: RANKS * loss(*given), segment=300,
                            group=dist.group.WORLD)  # the wrappers give the mean over the ranks
    dist.all_reduce(part)
    return {"loss": float(part) / RANKS - float(whole.detach()), "reductions": reductions,
            "gradients": test_torch_segments.largest_error(whole_gradients(how, wrapped, split), expected)}


def time_segments_of_packed_sequences(rank, folder):
    """With short convolutions, over ranks, beside each sequence alone on one rank; shares of two lengths."""
    offsets = [0, 30, 31, 31, 90, 203]
    inputs, targets = test_torch_segments.batch(203, rows=1)
    loss = test_torch_segments.mean_loss(targets.numel())

    def make(group):
        torch.manual_seed(4)  # the convolution is made before the model
        model = test_torch_segments.Model(mixer=lt.ShortConvolution(32, 4, group=group), norm=False)
        for block in model.blocks:
            block.attention.group = group
        return model
    model, split = make(None), make(dist.group.WORLD)
    total = sum(loss(model(inputs[:, b:e]), targets[:, b:e]) for b, e in zip(offsets, offsets[1:]) if b < e)
    total.backward()
    part = lt.time_segments(split, inputs, targets, loss, segment=51, group=dist.group.WORLD, cu_seqlens=offsets)
    dist.all_reduce(part)
    for parameter in split.parameters():
        dist.all_reduce(parameter.grad)
    found, expected = ({name: each.grad for name, each in of.named_parameters()} for of in (split, model))
    return {"loss": float(part - total.detach()), "gradients": test_torch_segments.largest_error(found, expected)}


def time_segments_of_shares(rank, folder):
    """A rank that gives its share, and not the whole."""
    inputs, targets = test_torch_segments.batch(64)
    model = test_torch_segments.Model()
    try:
        lt.time_segments(model, lt.shard(inputs, rank, RANKS), lt.shard(targets, rank, RANKS),
                         test_torch_segments.mean_loss(64), segment=8, group=dist.group.WORLD)
    except liblasp.InvalidArgument as error:
        return str(error)


def time_segments_under_wrappers(rank, folder):
    return {how: time_segments_under(how) for how in ("ddp", "fsdp", "fsdp2")}


def groups_of_the_world(rank, folder):
    found = {}
    for stride in (1, 2):
        groups = lt.init_groups(None, 2, stride=stride)
        found[stride] = (dist.get_process_group_ranks(groups.sequence), dist.get_process_group_ranks(groups.data),
                         dist.get_rank(groups.sequence) == groups.sequence_rank, groups.data_rank,
                         groups.data_ranks)
    with pytest.raises(liblasp.InvalidArgument):
        lt.init_groups(None, 3)
    return found


def rank_that_does_not_come(rank, folder):
    """By the ring rank 3 waits for 2, which waits for 1, which stays away. Rank 3 begins first and loses patience
    first; yet it must not name rank 2, which only waits itself."""
    process_group = dist.new_group(list(range(RANKS)))
    group = lt.SequenceGroup(process_group, time_limit=2.0, schedule="ring")
    x, _, _ = make_problem("none", batch=1, tokens=8, states=False)
    lt.linear_attention(x["q"], x["k"], x["v"], group=group)
    dist.barrier()
    if rank == 1:
        time.sleep(3.5)
        return None
    if rank in (0, 2):  # both wait for rank 1 itself
        time.sleep(0.7)
    began = time.monotonic()
    try:
        lt.linear_attention(x["q"], x["k"], x["v"], group=group)
    except liblasp.PeerLost as error:
        return {"sentence": str(error), "rank": error.rank, "seconds": time.monotonic() - began}


def abort_from_a_rank(rank, folder):
    process_group = dist.new_group(list(range(RANKS)))
    group = lt.SequenceGroup(process_group, time_limit=60)
    x, _, _ = make_problem("none", batch=1, tokens=8, states=False)
    lt.linear_attention(x["q"], x["k"], x["v"], group=group)
    if rank == 0:
        time.sleep(0.3)
        group.abort()
        return None
    began = time.monotonic()
    try:
        lt.linear_attention(x["q"], x["k"], x["v"], group=group, scale=2.0)
    except liblasp.Aborted as error:
        return {"sentence": str(error), "seconds": time.monotonic() - began}


def ranks_that_disagree(rank, folder):
    x, _, _ = make_problem("none", batch=1, tokens=8, states=False)
    group = lt.SequenceGroup(dist.new_group(list(range(RANKS))))
    try:
        lt.linear_attention(x["q"], x["k"], x["v"], group=group, scale=1.0 + (rank == 1))
    except liblasp.Disagreement as error:
        return str(error)


def pieces(rank, folder):
    test_torch_pieces.on_ranks(dist.group.WORLD)


def several_runs(rank, folder):
    """Softmax attention and gather where ranks hold several runs: the errors against one rank."""
    torch.manual_seed(7)
    tokens, errors = 48, []
    x = [torch.randn(2, tokens, 2, 8) for _ in range(3)]
    d_o, mask = torch.randn(2, tokens, 2, 8), torch.rand(2, tokens) > 0.2
    for ownership in ("zigzag", [(7, 2), (20, 1), (6, 0), (12, 2), (3, 0)]):  # rank 3 has none
        group = lt.sequence_group(dist.group.WORLD).owned(ownership)
        for options in ({}, {"window": 5}, {"key_mask": mask}):
            whole = [each.clone().requires_grad_() for each in x]
            expected = lt.softmax_attention(*whole, **options)
            expected.backward(d_o)
            mine = [lt.shard(each, rank, RANKS, ownership=ownership).clone().requires_grad_() for each in x]
            own = {**options, **({"key_mask": lt.shard(mask, rank, RANKS, ownership=ownership)} if "key_mask" in options
                                 else {})}
            o = lt.softmax_attention(*mine, group=group, **own)
            gathered = lt.gather(o, group, tokens)
            gathered.backward(d_o / RANKS)
            errors += [relative_error(gathered, expected)]
            errors += [relative_error(lt.gather(a.grad, group, tokens), b.grad) for a, b in zip(mine, whole)]
    return max(errors)


CHECKS = (attention_over_gloo, pieces, carried_state, several_runs, over_ranks, over_changing_shares, time_segments_of_packed_sequences,
          time_segments_of_shares, time_segments_under_wrappers, groups_of_the_world, ranks_that_disagree, rank_that_does_not_come,
          abort_from_a_rank)


def example_train():
    sys.path.insert(0, str(EXAMPLE))
    import train
    return train


def training_arguments(curve, extra):
    return ["--steps", str(STEPS), "--seq-len", str(SEQ_LEN), "--batch", str(BATCH), "--layers", str(LAYERS),
            "--d-model", str(D_MODEL), "--heads", "2", "--d-ff", "48", "--lr", str(LR), "--device", "cpu",
            "--log-every", "1000", "--text", __file__, "--loss-csv", str(curve), *extra]


def run_training(name, extra, folder):
    train = example_train()
    train.main(training_arguments(folder / f"{name}.csv", extra))


def process(rank, folder):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1")
    report = {}
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=60))
    for check in CHECKS:
        try:
            report[check.__name__] = check(rank, folder)
        except BaseException:
            report[check.__name__] = traceback.format_exc()
        dist.barrier()
    dist.destroy_process_group()
    for name, extra in TRAINING.items():
        os.environ["MASTER_PORT"] = (folder / f"port-{name}").read_text()
        try:
            run_training(name, extra, folder)
            report[name] = None
        except BaseException:
            report[name] = traceback.format_exc()
            if dist.is_initialized():
                dist.destroy_process_group()
    (folder / f"report-{rank}").write_bytes(pickle.dumps(report))


def free_ports(count):
    import socket
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Reports of all ranks, and the folder with the loss curves."""
    folder = tmp_path_factory.mktemp("ranks")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name, port in zip(TRAINING, free_ports(len(TRAINING))):
        (folder / f"port-{name}").write_text(str(port))
    context = mp.spawn(process, (folder,), RANKS, join=False)
    run_one_rank(folder)
    deadline = time.monotonic() + 240
    while not context.join(5):
        if time.monotonic() > deadline:
            for each in context.processes:
                each.kill()
            pytest.fail("the ranks did not end in time")
    reports = [pickle.loads((folder / f"report-{rank}").read_bytes()) for rank in range(RANKS)]
    return types.SimpleNamespace(folder=folder, reports=reports)


def run_one_rank(folder):
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    run_training("one", [], folder)


def report_of(world, check):
    found = [report[check.__name__] for report in world.reports]
    for each in found:
        assert not (isinstance(each, str) and "Traceback" in each), each
    return found


def test_attention_over_gloo(world):
    for each in report_of(world, attention_over_gloo):
        assert each["worst"] <= BOUNDS[torch.float32]
    assert sum(each["messages"] for each in report_of(world, attention_over_gloo)) > 0


def test_pieces(world):
    assert report_of(world, pieces) == [None] * RANKS


def test_several_runs(world):
    assert max(report_of(world, several_runs)) <= 8 * BOUNDS[torch.float32]  # torch's own sums, in other orders


def test_carried_state(world):
    for errors in report_of(world, carried_state):
        assert max(errors) <= 128 * BOUNDS[torch.float32]  # as test_torch_module has it


def test_time_segments(world):
    for report in report_of(world, time_segments_under_wrappers):
        for how, found in report.items():
            assert abs(found["loss"]) <= 1e-5 and found["gradients"] <= test_torch_segments.BOUND, (how, found)
        assert report["ddp"]["reductions"] == [0]  # its one bucket, once


def test_short_convolutions(world):
    for report in report_of(world, over_ranks):
        assert max(report) <= CONVOLUTION_BOUND


def test_short_convolutions_of_changing_shares(world):
    for rank, found in enumerate(report_of(world, over_changing_shares)):
        assert max(found["errors"]) <= CONVOLUTION_BOUND and found["halos"] == 2
        assert found["messages"] > 0 and found["sentence"] == "total_tokens = 1: the ranks hold 40"


def test_time_segments_of_packed_sequences(world):
    for report in report_of(world, time_segments_of_packed_sequences):
        assert abs(report["loss"]) <= 1e-5 and report["gradients"] <= test_torch_segments.BOUND, report


def test_time_segments_of_shares(world):
    assert all(report.startswith("inputs: differ between the ranks") for report in report_of(world, time_segments_of_shares))


def test_groups(world):
    for rank, found in enumerate(report_of(world, groups_of_the_world)):
        first = rank // 2 * 2
        assert found[1] == ([first, first + 1], [rank % 2, rank % 2 + 2], True, rank // 2, 2)
        assert found[2] == ([rank % 2, rank % 2 + 2], [first, first + 1], True, rank % 2, 2)


def test_disagreement(world):
    assert all("scale" in each for each in report_of(world, ranks_that_disagree))


def test_a_rank_that_does_not_come(world):
    found = report_of(world, rank_that_does_not_come)
    for rank in (0, 2, 3):
        assert found[rank] is not None and found[rank]["rank"] == 1, found[rank]
        assert "rank 1" in found[rank]["sentence"] and found[rank]["seconds"] < 15, found[rank]


def test_abort(world):
    for rank, found in enumerate(report_of(world, abort_from_a_rank)):
        if rank != 0:
            assert found is not None and found["seconds"] < 10, found


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
