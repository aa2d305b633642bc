"""torch.compile and torch.export of what calls a linear attention: one graph, with the results of the ordinary call."""
import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from test_torch_operators import FORWARD, KINDS, PACKED, gradients, problem, same  # noqa: E402
from test_torch_support import assert_close, make_problem, relative_error, run_ranks  # noqa: E402

BACKENDS = ("eager", "aot_eager", "inductor")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def trained(module, call, x):
    """y and the gradients of x and of the parameters."""
    module.zero_grad()
    x = x.detach().requires_grad_()
    y = call(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_is_one_graph(backend):
    torch.manual_seed(0)
    module, x = lt.LinearAttention(32, 2, decay="scalar"), torch.randn(2, 20, 32)
    expected = trained(module, module, x)
    actual = trained(module, compiled(module, backend), x)
    if backend == "inductor":  # which has its own order of sums around the call: a few roundings of float32
        assert all(relative_error(a, e) < 1e-5 for a, e in zip(actual, expected))
    else:
        assert same(actual, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument(kind):
    x, d_o, d_final, offsets = problem(kind, heads=(4, 2, 2))
    options = {"scale": 0.25, "total_tokens": 50, "state_cache": "incoming", "cu_seqlens": offsets,
               "broadcast_final_state": True}
    expected = gradients(lt.linear_attention, x, d_o, d_final, **options)
    assert same(gradients(compiled(lt.linear_attention), x, d_o, d_final, **options), expected)
    if offsets is not None:
        options["cu_seqlens"] = PACKED
        assert same(gradients(compiled(lt.linear_attention), x, d_o, d_final, **options), expected)


def test_bidirectional():
    x, _, _ = make_problem("none", states=False)
    function = lambda q, k, v: lt.linear_attention(q, k, v, causal=False)
    assert same([compiled(function)(x["q"], x["k"], x["v"])], [function(x["q"], x["k"], x["v"])])


def test_of_any_length():
    """One graph for all numbers of tokens."""
    from torch._dynamo.testing import CompileCounterWithBackend
    counter = CompileCounterWithBackend("aot_eager")
    torch.manual_seed(0)
    module = lt.LinearAttention(32, 2, decay="channel")
    call = torch.compile(module, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (20, 33, 7):
        x = torch.randn(2, tokens, 32)
        assert same(trained(module, call, x), trained(module, module, x))
    assert counter.frame_count == 1


def test_under_autocast():
    torch.manual_seed(0)
    module, x = lt.LinearAttention(32, 2, decay="head", learn_decay=True), torch.randn(2, 20, 32)

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    def direct(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return lt.linear_attention(q, k, v)

    assert same(trained(module, compiled(function), x), trained(module, function, x))
    inputs = [make_problem("none", states=False)[0][name] for name in "qkv"]
    o = compiled(direct)(*inputs)
    assert o.dtype == torch.bfloat16 and torch.equal(o, direct(*inputs))


def test_inputs_of_any_strides():
    """As they are in one packed tensor; the compiled program hands them on uncopied, and its results are the same."""
    x, _, _ = make_problem("none", heads=(2, 2, 2), dim_v=16, states=False)
    packed = torch.cat([x[name].flatten(2) for name in "qkv"], dim=-1)

    def function(packed):
        return lt.linear_attention(*(part.unflatten(-1, (2, 16)) for part in packed.split(32, -1))).square().sum()

    for backend in BACKENDS[1:]:
        one, other = (packed.clone().requires_grad_() for _ in range(2))
        function(one).backward()
        compiled(function, backend)(other).backward()
        assert_close("packed", other.grad, one.grad, torch.float32)


def test_decoding():
    """The step changes the state in place, in the graph too."""
    torch.manual_seed(0)
    module = lt.LinearAttention(32, 2, decay="scalar").requires_grad_(False)
    one, other = module.zero_state(2), module.zero_state(2)
    call = compiled(module.step)
    for _ in range(3):
        x = torch.randn(2, 1, 32)
        assert torch.equal(call(x, other), module.step(x, one))
    assert torch.equal(one, other) and one.abs().sum() > 0


def test_a_wrong_call_says_why():
    x, _, _ = make_problem("scalar", states=False)
    with pytest.raises(Exception, match=r"k: shape \(2, 36, 2, 16\) does not go with"):
        compiled(lt.linear_attention)(x["q"], x["k"][:, 1:], x["v"], x["decay"])
    with pytest.raises(Exception, match="needs output_final_state=True"):
        compiled(lambda q: lt.linear_attention(q, q, q, broadcast_final_state=True))(x["q"])


def test_time_segments_around_a_compiled_model():
    """The graph breaks there, because states are handed on from call to call."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(11, 32), lt.LinearAttention(32, 2), torch.nn.Linear(32, 11))
    tokens = torch.randint(11, (1, 65))
    loss = lambda logits, targets: torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(),
                                                                     reduction="sum")
    results = []
    call = torch.compile(module, backend="aot_eager")
    call(tokens[:, :32])  # a graph without a break, which must not serve below
    for model in (module, call):
        module.zero_grad()
        total = lt.time_segments(model, tokens[:, :-1], tokens[:, 1:], loss, segment=32)
        results.append([total, *(parameter.grad for parameter in module.parameters())])
    for actual, expected in zip(*results):
        assert relative_error(actual, expected) < 1e-6
    torch._dynamo.reset()  # or what was compiled above, with its break, would serve
    with pytest.raises(Exception, match="_outside_the_graph|linear_attention"):
        lt.time_segments(compiled(module), tokens[:, :-1], tokens[:, 1:], loss, segment=32, check=False)


def test_checkpoint_around_a_compiled_model():
    torch.manual_seed(0)
    module, x = lt.LinearAttention(32, 2), torch.randn(1, 20, 32)
    expected, call = trained(module, module, x), torch.compile(module, backend="aot_eager")
    assert same(trained(module, call, x), expected)
    assert same(trained(module, lambda x: lt.checkpoint(call, x), x), expected)
    plain = compiled(lambda x: torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False))
    assert same(trained(module, plain, x), expected)


def test_a_group_is_found_by_name():
    """Ranks as threads, each with its own compiled function."""
    x, d_o, d_final, _ = problem("scalar")
    expected = gradients(lt.linear_attention, x, d_o, d_final)
    graphs = {}

    def rank_function(rank, group):
        mine = {name: value if name == "initial_state" else lt.shard(value, rank, 2) for name, value in x.items()}

        def call(q, k, v, decay, initial_state, output_final_state):
            return lt.linear_attention(q, k, v, decay, initial_state=initial_state, group=group,
                                       output_final_state=output_final_state)

        return gradients(graphs.setdefault(rank, torch.compile(call, fullgraph=True, backend="eager")), mine,
                         lt.shard(d_o, rank, 2), d_final)

    try:
        ranks = run_ranks(2, rank_function)
    finally:
        torch._dynamo.reset()
    for position in (0, 2, 3, 4, 5):  # o and the gradients of q, k, v and the decay
        assert_close(str(position), torch.cat([rank[position] for rank in ranks], 1), expected[position], torch.float32)


def test_a_comm_breaks_the_graph():
    """It has no name that a graph could keep; its SequenceGroup has."""
    x, _, _ = make_problem("none", states=False)
    comm = liblasp.Comm.self_()
    call = lambda q: lt.linear_attention(q, x["k"], x["v"], group=comm)
    expected = call(x["q"])
    assert torch.equal(torch.compile(call, backend="eager")(x["q"]), expected)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="linear_attention"):
        compiled(call)(x["q"])
    with lt.SequenceGroup(comm) as group:
        named = compiled(lambda q: lt.linear_attention(q, x["k"], x["v"], group=group))
        assert torch.equal(named(x["q"]), expected)


@pytest.mark.parametrize("strict", (True, False))
def test_export(strict):
    torch.manual_seed(0)
    module, x = lt.LinearAttention(32, 2, decay="channel"), torch.randn(2, 20, 32)
    tokens = torch.export.Dim("tokens", min=2, max=1000)
    with torch.no_grad():
        program = torch.export.export(module, (x,), dynamic_shapes=({1: tokens},), strict=strict)
        called = [node for node in program.graph.nodes if node.target is FORWARD]
        assert len(called) == 1 and called[0].args[8] == ""
        for length in (20, 51):
            x = torch.randn(2, length, 32)
            assert torch.equal(program.module()(x), module(x))
    with pytest.raises(liblasp.Unsupported, match="^an exported program inside of time_segments"):
        lt.time_segments(program.module(), x, x, lambda y, x: (y - x).sum(), segment=16, check=False)


def test_export_is_saved_and_loaded(tmp_path):
    module, x = lt.LinearAttention(32, 2), torch.randn(1, 20, 32)
    with torch.no_grad():
        torch.export.save(torch.export.export(module, (x,), strict=True), tmp_path / "program.pt2")
        assert torch.equal(torch.export.load(tmp_path / "program.pt2").module()(x), module(x))


def test_func_in_a_compiled_function():
    """The graph breaks there."""
    x, _, _ = make_problem("scalar", states=False)
    loss = lambda q: lt.linear_attention(q, x["k"], x["v"], x["decay"]).square().sum()
    assert same([torch.compile(torch.func.grad(loss), backend="aot_eager")(x["q"])], [torch.func.grad(loss)(x["q"])])
