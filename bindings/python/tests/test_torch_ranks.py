"""Ranks as processes with gloo: the transport, the groups, segments in time, and ranks that fail. (Training beside one
rank: test_torch_ranks_training.py.)"""
import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
import test_torch_pieces  # noqa: E402
import test_torch_segments  # noqa: E402
import dropin_cases  # noqa: E402
import processes  # noqa: E402
from test_torch_convolution import BOUND as CONVOLUTION_BOUND, over_changing_shares, over_ranks  # noqa: E402
from test_torch_support import BOUNDS, make_problem, recurrence, relative_error, shard_of  # noqa: E402

RANKS = 4


def worst_of(rank, group, kinds):
    """Of attention by this group, whose ranks are the world's: forward and backward, uneven shares."""
    worst, world = 0.0, dist.group.WORLD
    for decay, packed in kinds:
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
        whole = lt.gather(actual_o, world, tokens)
        dist.all_reduce(actual_final.detach())
        pairs = [(whole, o), (lt.gather(mine["k"].grad, world, tokens), wide["k"].grad),
                 (lt.gather(mine["q"].grad, world, tokens), wide["q"].grad),
                 (lt.gather(mine["v"].grad, world, tokens), wide["v"].grad)]
        initial = mine["initial_state"].grad.clone()
        dist.all_reduce(initial)
        pairs.append((initial, wide["initial_state"].grad))
        worst = max([worst] + [relative_error(actual, expected) for actual, expected in pairs])
    return worst


def attention_over_gloo(rank, folder):
    """All decays, packed and not."""
    group = dist.group.WORLD
    worst = worst_of(rank, group, (("none", False), ("head", False), ("scalar", True), ("channel", False)))
    traffic = lt.sequence_group(group).traffic()
    return {"worst": worst, "messages": traffic["messages_sent"], "bytes": traffic["bytes_sent"]}


def attention_by_relay(rank, folder):
    """The same by a group that relays; and a packed call, which it refuses by name."""
    group = lt.SequenceGroup(dist.new_group(list(range(RANKS))), schedule="relay")
    worst = worst_of(rank, group, (("none", False), ("scalar", False)))
    x = shard_of("q", make_problem("none", batch=1, tokens=8, states=False)[0]["q"], 2 * rank, 2 * rank + 2)
    with pytest.raises(liblasp.Unsupported, match="LASP_SCHEDULE_RELAY: not with max_sequences"):
        lt.linear_attention(x, x, x, cu_seqlens=[0, 8], group=group)
    return worst


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


def functions_of_other_packages(rank, folder):
    return dropin_cases.on_ranks()


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


CHECKS = (attention_over_gloo, attention_by_relay, pieces, functions_of_other_packages, carried_state, several_runs, over_ranks, over_changing_shares, time_segments_of_packed_sequences,
          time_segments_of_shares, time_segments_under_wrappers, groups_of_the_world, ranks_that_disagree, rank_that_does_not_come,
          abort_from_a_rank)


def process(rank, folder):
    return processes.run_checks(rank, RANKS, folder, [(check.__name__, check, (rank, folder)) for check in CHECKS])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return processes.on_processes(folder, RANKS, process, folder)


def report_of(world, check):
    return processes.found(world, check.__name__)


def test_attention_over_gloo(world):
    for each in report_of(world, attention_over_gloo):
        assert each["worst"] <= BOUNDS[torch.float32]
    assert sum(each["messages"] for each in report_of(world, attention_over_gloo)) > 0


def test_attention_by_relay(world):
    assert max(report_of(world, attention_by_relay)) <= BOUNDS[torch.float32]


def test_pieces(world):
    assert report_of(world, pieces) == [None] * RANKS


def test_functions_of_other_packages(world):
    for report in report_of(world, functions_of_other_packages):
        for case, errors in report.items():
            assert len(errors) > 3 and max(errors.values()) <= dropin_cases.BOUND, (case, errors)


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
