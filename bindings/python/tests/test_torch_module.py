"""LinearAttention, activation checkpointing, sharding helpers: on one rank and on ranks as threads."""
import copy
import threading

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from test_torch_support import BOUNDS, relative_error, run_ranks  # noqa: E402

DECAYS = ("none", "head", "scalar", "channel")
# A module is a chain of float32 operations around the attention, each a sum of at most 64 terms; split over ranks
# only the attention's sums change their order, and what follows carries that difference on. Eight operations deep
# and with the norm per head in between, 16 of the attention's own bounds leave room.
MODULE_BOUND = 16 * BOUNDS[torch.float32]


def make_module(decay, **options):
    torch.manual_seed(3)
    return lt.LinearAttention(32, 4, head_dim_k=8, head_dim_v=16, kv_heads=2, decay=decay, **options)


def gradients_of(module, x):
    """Over all ranks' tokens, of a loss that weighs each output differently; returns the output too."""
    y = module(x)
    (y * torch.linspace(-1, 1, y.shape[-1])).sum().backward()
    return y.detach(), {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("decay", DECAYS)
def test_module_over_ranks(decay):
    torch.manual_seed(1)
    x = torch.randn(2, 30, 32)
    learn = {"learn_decay": True} if decay == "head" else {}
    y, expected = gradients_of(make_module(decay, **learn), x)

    def rank_function(rank, group):
        module = modules[rank]
        module.group = group
        return gradients_of(module, lt.shard(x, rank, 3))

    modules = [make_module(decay, **learn) for _ in range(3)]  # torch's random numbers are the process's
    ranks = run_ranks(3, rank_function)
    assert relative_error(torch.cat([rank[0] for rank in ranks], dim=1), y) <= MODULE_BOUND
    assert len(expected) == {"none": 2, "head": 3, "scalar": 4, "channel": 5}[decay]
    for name, gradient in expected.items():
        total = torch.stack([rank[1][name] for rank in ranks]).sum(0)
        # Parameter gradients sum over 60 tokens, by ranks or at once.
        assert relative_error(total, gradient) <= 8 * MODULE_BOUND, name


@pytest.mark.parametrize("nranks", (1, 2))
def test_carried_state(nranks):
    """Two segments with the state handed on are one sequence; on one rank the gradient reaches back over the cut
    (over ranks as processes: test_torch_ranks)."""
    torch.manual_seed(1)
    x = torch.randn(1, 24, 32)
    whole = x.clone().requires_grad_()
    y = make_module("scalar")(whole)
    y[:, 16:].sum().backward()

    def rank_function(rank, group):
        module = modules[rank]
        module.group = group
        mine = [lt.shard(part, rank, nranks).clone().requires_grad_() for part in (x[:, :16], x[:, 16:])]
        first, state = module(mine[0], return_state=True)
        second = module(mine[1], state if nranks == 1 else state.detach())
        (second.sum() + 0.0 * first.sum()).backward()
        return first.detach(), second.detach(), mine[0].grad

    modules = [make_module("scalar") for _ in range(nranks)]
    ranks = run_ranks(nranks, rank_function)
    joined = torch.cat([rank[part] for part in (0, 1) for rank in ranks], dim=1)
    assert relative_error(joined, y) <= MODULE_BOUND
    if nranks == 1:
        assert relative_error(ranks[0][2], whole.grad[:, :16]) <= 8 * MODULE_BOUND


def test_packed_sequences_do_not_see_each_other():
    torch.manual_seed(1)
    x = torch.randn(1, 20, 32)
    module = make_module("channel")
    packed = module(x, cu_seqlens=[0, 9, 20])
    assert relative_error(packed[:, 9:], module(x[:, 9:])) <= MODULE_BOUND


def test_decoding_follows_the_module():
    torch.manual_seed(1)
    x = torch.randn(2, 12, 32)
    module = make_module("head")
    with torch.no_grad():
        y = module(x)
        state = module.zero_state(2)
        steps = torch.cat([module.step(x[:, t:t + 1], state) for t in range(12)], dim=1)
    assert relative_error(steps, y) <= MODULE_BOUND


def test_module_is_an_ordinary_module():
    module = make_module("head", learn_decay=True)
    twin = make_module("head", learn_decay=True)
    twin.load_state_dict(module.state_dict())
    module.group = lt.SequenceGroup()
    assert copy.deepcopy(module).group is module.group
    half = module.to(torch.bfloat16)
    assert half(torch.randn(1, 8, 32, dtype=torch.bfloat16)).dtype == torch.bfloat16
    for wrong in ({"decay": "sometimes"}, {"feature_map": "relu"}, {"slopes": [-1.0]}, {"slopes": [0.5] * 4},
                  {"decay": "none", "learn_decay": True}):
        with pytest.raises(ValueError):
            lt.LinearAttention(32, 4, **wrong)
    with pytest.raises(ValueError, match="divide"):
        lt.LinearAttention(30, 4)


def two_layers(modules):
    def function(x):
        for module in modules:
            x = x + module(x)
        return x
    return function


def run_checkpointed(how, nranks=3):
    """Messages sent in the forward and the backward pass, the input's gradient, the state cache of a rank."""
    torch.manual_seed(1)
    x = torch.randn(2, 30, 32)
    modules = [[make_module("scalar") for _ in range(2)] for _ in range(nranks)]

    def rank_function(rank, group):
        for module in modules[rank]:
            module.group = group
        mine = lt.shard(x, rank, nranks).clone().requires_grad_()
        function = two_layers(modules[rank])
        with torch.no_grad():
            function(mine)  # plans that do not differentiate are others
        make_plans = torch.randn_like(mine).requires_grad_()
        how(function, make_plans).sum().backward()
        before = group.traffic()["messages_sent"]
        y = how(function, mine)
        between = group.traffic()["messages_sent"]
        y.sum().backward()
        return between - before, group.traffic()["messages_sent"] - between, mine.grad, y.detach()

    ranks = run_ranks(nranks, rank_function)
    return ([sum(rank[i] for rank in ranks) for i in (0, 1)],
            torch.cat([rank[2] for rank in ranks], dim=1), torch.cat([rank[3] for rank in ranks], dim=1))


def torch_checkpoint(function, x):
    return torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)


def nested_checkpoint(function, x):
    return lt.checkpoint(lambda y: lt.checkpoint(function, y) * 1.0, x)


@pytest.mark.parametrize("how", (lt.checkpoint, nested_checkpoint))
def test_checkpointing_exchanges_nothing_twice(how):
    plain, gradient, y = run_checkpointed(lambda function, x: function(x))
    messages, actual, actual_y = run_checkpointed(how)
    assert plain[0] > 0 and messages == plain
    assert torch.equal(actual_y, y)
    assert relative_error(actual, gradient) <= MODULE_BOUND
    # The control: torch's own checkpointing is right too, and repeats the forward pass's messages.
    repeated, actual, _ = run_checkpointed(torch_checkpoint)
    assert repeated == [plain[0], plain[0] + plain[1]]
    assert relative_error(actual, gradient) <= MODULE_BOUND


def test_checkpoint_keeps_the_small_cache():
    group = lt.SequenceGroup()
    module = make_module("head", group=group)
    x = torch.randn(1, 512, 32, requires_grad=True)
    lt.checkpoint(module, x).sum().backward()
    module(x).sum().backward()
    small, large = (plan.state_cache_bytes for plan in group._plans.values())
    assert small < large


def test_recomputing_twice():
    module = make_module("scalar")
    x = torch.randn(1, 16, 32, requires_grad=True)
    y = lt.checkpoint(module, x).sum()
    first, = torch.autograd.grad(y, x, retain_graph=True)
    second, = torch.autograd.grad(y, x)
    assert torch.equal(first, second)


def test_a_recomputation_that_does_otherwise():
    module, calls = make_module("none"), []

    def function(x):
        calls.append(None)
        return module(x) if len(calls) == 1 else module(x[:, :8])

    y = lt.checkpoint(function, torch.randn(1, 16, 32, requires_grad=True))
    with pytest.raises(RuntimeError, match="the same both times"):
        y.sum().backward()


def test_checkpoint_with_a_broadcast_state():
    """A recomputation writes final states on their owners alone; what was broadcast is kept."""
    torch.manual_seed(1)
    x = torch.randn(1, 24, 32)

    def run(how):
        modules = [make_module("head") for _ in range(2)]

        def rank_function(rank, group):
            module = modules[rank]
            module.group = group
            mine = lt.shard(x, rank, 2).clone().requires_grad_()

            def function(x):
                y, state = module(x, return_state=True)
                return y * state.detach().square().mean()  # saved for the backward pass on every rank
            how(function, mine).sum().backward()
            return mine.grad

        return torch.cat(run_ranks(2, rank_function), dim=1)

    assert relative_error(run(lt.checkpoint), run(lambda function, x: function(x))) <= MODULE_BOUND


def test_a_broadcast_state_has_no_gradient_over_a_comm():
    """Ranks as threads cannot sum it: an error and not a part of the gradient."""
    modules = [make_module("head") for _ in range(2)]
    both = threading.Barrier(2)

    def rank_function(rank, group):
        modules[rank].group = group
        y, state = modules[rank](torch.ones(1, 8, 32, requires_grad=True), return_state=True)
        both.wait()  # what one rank refuses breaks the group of the other
        with pytest.raises(liblasp.Unsupported, match="detach the state"):
            (y.sum() + state.sum()).backward()

    run_ranks(2, rank_function)


def test_shards():
    assert [lt.shard_bounds(10, rank, 4) for rank in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert lt.shard_bounds(2, 3, 4) == (2, 2)
    tokens = torch.arange(11).unsqueeze(0)
    inputs, targets = lt.shard_with_targets(tokens, 1, 4)
    assert inputs.tolist() == [[3, 4, 5]] and targets.tolist() == [[4, 5, 6]]
    assert lt.shard(tokens, 1, 2).data_ptr() == tokens[:, 6:].data_ptr()
    with pytest.raises(ValueError):
        lt.shard_bounds(10, 4, 4)
