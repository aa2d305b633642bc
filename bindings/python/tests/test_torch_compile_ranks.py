"""Two ranks as processes with gloo: compiled and exported programs, and wrappers around compiled modules, each against
the ordinary call of the same ranks."""
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
import processes  # noqa: E402
from processes import on_processes, run_checks  # noqa: E402
from test_torch_operators import FORWARD, gradients, same  # noqa: E402
from test_torch_support import make_problem, relative_error, shard_of  # noqa: E402

RANKS, TOKENS = 2, 41


def inputs(rank, decay="scalar"):
    x, d_o, d_final = make_problem(decay, tokens=TOKENS)
    begin, end = lt.shard_bounds(TOKENS, rank, RANKS)
    return ({name: shard_of(name, value, begin, end) for name, value in x.items()}, d_o[:, begin:end], d_final)


def compiled(rank, folder):
    """Forward and backward as one graph, by every kind of group; uneven shares."""
    x, d_o, d_final = inputs(rank)
    world = dist.group.WORLD
    found = {}
    with lt.SequenceGroup(dist.new_group([0, 1])) as group:
        for name, given in (("process group", world), ("SequenceGroup", group),
                            ("DeviceMesh", dist.device_mesh.init_device_mesh("cpu", (RANKS,)))):
            options = {"group": given, "total_tokens": TOKENS, "broadcast_final_state": name != "SequenceGroup"}
            torch._dynamo.reset()
            graph = torch.compile(lt.linear_attention, fullgraph=True, backend="aot_eager")
            found[name] = same(gradients(graph, x, d_o, d_final, **options),
                               gradients(lt.linear_attention, x, d_o, d_final, **options))
    return found


def a_model():
    torch.manual_seed(3)
    blocks = [torch.nn.Sequential(torch.nn.Linear(32, 32), lt.LinearAttention(32, 2, decay="channel",
                                                                            group=dist.group.WORLD)) for _ in range(2)]
    return torch.nn.Sequential(*blocks)


def trained(model, x):
    model(x).square().sum().backward()
    return {name.removeprefix("module."): parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor")
            else parameter.grad.clone() for name, parameter in model.named_parameters()}


def under_wrappers(rank, folder):
    """DDP and FSDP2 around compiled blocks; the largest error of a gradient."""
    x = lt.shard(torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(8)), rank, RANKS)
    expected = trained(torch.nn.parallel.DistributedDataParallel(a_model()), x)
    found = {}
    for how in ("ddp", "fsdp2"):
        torch._dynamo.reset()
        model = a_model()
        for block in model:
            block.compile(fullgraph=True, backend="inductor")
        if how == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.fsdp import fully_shard
            mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
            for block in model:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        actual = trained(model, x)
        assert actual.keys() == expected.keys()
        found[how] = max(relative_error(actual[name], expected[name]) for name in expected)
    return found


def exported(rank, folder):
    """The program holds the group's name, and finds the group by it when it is loaded."""
    module, x = a_model()[0][1], torch.randn(1, 20, 32)
    with torch.no_grad():
        program = torch.export.export(module, (x,), strict=True)
        torch.export.save(program, folder / f"{rank}.pt2")
        program = torch.export.load(folder / f"{rank}.pt2")
        name, = (node.args[8] for node in program.graph.nodes if node.target is FORWARD)
        return torch.equal(program.module()(x), module(x)), name == dist.group.WORLD.group_name


def without_messages(rank, folder):
    """Shapes of fake tensors need no group, only its name: one rank alone asks."""
    group = lt.sequence_group(dist.group.WORLD)
    before = group.traffic()
    if rank == 0:
        with FakeTensorMode(), torch.device("cpu"):
            x = torch.empty(2, 7, 2, 16)
            o, state = lt.linear_attention(x, x, x, group=dist.group.WORLD, output_final_state=True)
        assert o.shape == x.shape and state.shape == (2, 2, 16, 16)
    return group.traffic() == before


def copied(rank, folder):
    module = lt.LinearAttention(32, 2, group=dist.group.WORLD)
    again = copy.deepcopy(torch.nn.Sequential(module, lt.ShortConvolution(4, group=dist.group.WORLD)))
    assert again[0] is not module and again[0].group is module.group and again[1].group is module.group
    try:
        pickle.dumps(module)
    except TypeError as error:
        return str(error)


def distributed_tensors(rank, folder):
    """Their placement says how they are split, which the library does not read: refused, compiled and not."""
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.zeros(1, 8, 2, 8), mesh, [Shard(1)])
    said = []
    for call in (lt.linear_attention, torch.compile(lt.linear_attention, backend="eager")):
        try:
            call(x, x, x, group=dist.group.WORLD)
        except liblasp.Unsupported as error:
            said.append(str(error))
    return said


def wrong_on_one_rank(rank, folder):
    """A compiled call that fails on one rank is told to the other."""
    x = torch.randn(1, 8, 2, 16)
    group = lt.SequenceGroup(dist.new_group([0, 1]), time_limit=30)
    torch._dynamo.reset()
    call = torch.compile(lambda q, **options: lt.linear_attention(q, q, q, group=group, **options), fullgraph=True,
                         backend="eager")
    call(x)
    try:
        call(x, scale=1e300 if rank else 0.5)
    except liblasp.Error as error:
        return type(error).__name__


CHECKS = (compiled, under_wrappers, exported, without_messages, copied, distributed_tensors, wrong_on_one_rank)


def process(rank, folder):
    return run_checks(rank, RANKS, folder, [(check.__name__, check, (rank, folder)) for check in CHECKS], wait=100)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return on_processes(folder, RANKS, process, folder, seconds=350)


def found(reports, check):
    return processes.found(reports, check.__name__)


def test_compiled(reports):
    for each in found(reports, compiled):
        assert each == {"process group": True, "SequenceGroup": True, "DeviceMesh": True}


def test_under_wrappers(reports):
    for each in found(reports, under_wrappers):
        assert set(each) == {"ddp", "fsdp2"} and max(each.values()) < 1e-5  # inductor's own order of sums, in float32


def test_exported(reports):
    assert found(reports, exported) == [(True, True)] * RANKS


def test_fake_tensors_send_nothing(reports):
    assert found(reports, without_messages) == [True] * RANKS


def test_copied_and_not_pickled(reports):
    for each in found(reports, copied):
        assert each.startswith("a LinearAttention in a process group cannot be pickled")


def test_distributed_tensors(reports):
    for said in found(reports, distributed_tensors):
        assert len(said) == 2 and all(each.startswith("q: is a DTensor") for each in said), said


def test_a_wrong_call_is_told(reports):
    told, wrong = found(reports, wrong_on_one_rank)
    assert told in ("PeerLost", "Disagreement") and wrong == "InvalidArgument"
