"""The custom operators: what torch's machinery asks of them, against the ordinary call."""
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import (CheckpointPolicy, checkpoint,  # noqa: E402
                                    create_selective_checkpoint_contexts)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from liblasp.torch import operators  # noqa: E402
from test_torch_support import assert_close, make_problem  # noqa: E402

FORWARD, BACKWARD, STEP = (getattr(torch.ops.liblasp, name).default for name in ("forward", "backward", "step"))
PACKED = [0, 7, 7, 31, 50]


KINDS = ("none", "head", "scalar", "channel", "packed", "delta_none", "delta_scalar", "delta_channel", "delta_packed")


def problem(kind, dtype=torch.float32, heads=(2, 2, 2)):
    packed = kind.endswith("packed")
    x, d_o, d_final = make_problem(kind.replace("packed", "scalar"), batch=1 if packed else 2, tokens=50, heads=heads,
                                   sequences=4 if packed else None, dtype=dtype)
    return x, d_o, d_final, torch.tensor(PACKED) if packed else None


def arguments(x, offsets, differentiable=True, output_final_state=True):
    """Of the operator forward."""
    inputs = [x["q"], x["k"], x["v"], x["decay"], x.get("beta")]
    return (*inputs, x["initial_state"], offsets, operators.strides_of(*inputs), "", None, True, None, "chunks",
            False, differentiable, output_final_state)


def gradients(function, x, d_o, d_final, **options):
    leaves = {name: None if value is None else value.detach().requires_grad_() for name, value in x.items()}
    o, final = function(**leaves, output_final_state=True, **options)
    torch.autograd.backward([o, final], [d_o, d_final])
    return [o.detach(), final.detach(), *(leaf.grad for leaf in leaves.values() if leaf is not None)]


def same(actual, expected):
    return len(actual) == len(expected) and all(torch.equal(a, e) for a, e in zip(actual, expected))


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    """Sees which operators run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "liblasp":
            self.seen.append(function._schema.name.split("::")[1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_watched_call_is_the_ordinary_one(kind):
    x, d_o, d_final, offsets = problem(kind, heads=(4, 2, 2))
    expected = gradients(lt.linear_attention, x, d_o, d_final, cu_seqlens=offsets)
    with Watch() as watch:
        actual = gradients(lt.linear_attention, x, d_o, d_final, cu_seqlens=offsets)
    assert watch.seen == ["forward", "backward"] and same(actual, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck_forward(kind):
    x, _, _, offsets = problem(kind)
    inputs = {name: None if value is None else value.detach().requires_grad_() for name, value in x.items()}
    torch.library.opcheck(FORWARD, arguments(inputs, offsets))
    torch.library.opcheck(FORWARD, arguments(x, offsets, differentiable=False, output_final_state=False))


@pytest.mark.parametrize("kind", ("none", "head", "scalar", "packed", "delta_none", "delta_channel", "delta_packed"))
def test_opcheck_backward(kind):
    x, d_o, d_final, offsets = problem(kind)
    given = arguments(x, offsets)
    _, _, cache = FORWARD(*given)
    cache = operators.whole_cache(cache)  # opcheck copies its arguments
    torch.library.opcheck(BACKWARD, (d_o, d_final, cache, *given[:-2], True, True, True))
    torch.library.opcheck(BACKWARD, (None, None, cache, *given[:-2], False, False, False))


@pytest.mark.parametrize("kind", ("head", "delta_channel"))
def test_opcheck_step(kind):
    x, _, _, _ = problem(kind)
    torch.library.opcheck(STEP, (x["q"], x["k"], x["v"], x["decay"], x["initial_state"].clone(), None, x.get("beta")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ("fake", "meta"))
def test_shapes_without_memory(how, kind):
    """Forward and backward: shapes, dtypes and strides follow from those of the inputs."""
    x, d_o, d_final, offsets = problem(kind, torch.bfloat16, heads=(4, 2, 2))
    expected = gradients(lt.linear_attention, x, d_o, d_final, cu_seqlens=offsets)
    if how == "meta":
        x = {name: None if value is None else value.to("meta") for name, value in x.items()}
        actual = gradients(lt.linear_attention, x, d_o.to("meta"), d_final.to("meta"), cu_seqlens=offsets)
    else:
        with FakeTensorMode() as mode:
            x = {name: None if value is None else mode.from_tensor(value) for name, value in x.items()}
            actual = gradients(lt.linear_attention, x, mode.from_tensor(d_o), mode.from_tensor(d_final),
                               cu_seqlens=None if offsets is None else mode.from_tensor(offsets))
    looks = lambda tensors: [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in tensors]
    assert looks(actual) == looks(expected)


def test_a_model_without_memory():
    with torch.device("meta"):
        module, x = lt.LinearAttention(64, 4, decay="channel"), torch.empty(2, 1000000, 64)
    assert module(x).shape == x.shape and module(x).is_meta
    y, state = module(x, return_state=True)
    assert state.shape == (2, 4, 16, 16)
    assert module.step(x[:, :1], state).shape == (2, 1, 64)


def test_wrong_shapes_without_memory():
    x = {name: value.to("meta") for name, value in make_problem("delta_scalar")[0].items()}
    for words, changed in (("k: shape", {"k": x["k"][:, 1:]}), ("decay: shape", {"decay": x["decay"][:, 1:]}),
                           ("v: dtype", {"v": x["v"].half()}), ("beta: shape", {"beta": x["beta"][:, 1:]}),
                           ("initial_state: shape", {"initial_state": x["initial_state"][1:]})):
        with pytest.raises(liblasp.InvalidArgument, match=f"^{words}"):
            lt.linear_attention(**{**x, **changed})


@pytest.mark.parametrize("kind", ("scalar", "delta_channel"))
def test_func_grad(kind):
    x, d_o, _, _ = problem(kind)

    def loss(*given):
        return (lt.linear_attention(**dict(zip(x, given))) * d_o).sum()

    actual = torch.func.grad(loss, argnums=tuple(range(len(x))))(*x.values())
    leaves = [tensor.detach().requires_grad_() for tensor in x.values()]
    assert same(actual, torch.autograd.grad(loss(*leaves), leaves))


def test_left_behind_by_func_grad():
    """What a transform that has ended wrapped is the tensor inside, as in torch's Function.apply."""
    x, d_o, _, _ = problem("delta_scalar")
    held = {}

    def hold(*given):
        held.update(zip(x, given))
        return sum(each.sum() for each in given)

    torch.func.grad(hold, argnums=tuple(range(len(x))))(*x.values())
    assert all(torch._C._functorch.is_functorch_wrapped_tensor(each) for each in held.values())
    for name in x:
        leaf = "k" if name == "q" else "q"
        given = {**x, leaf: x[leaf].clone().requires_grad_()}
        assert torch.equal(lt.linear_attention(**{**given, name: held[name]}), lt.linear_attention(**given)), name


@pytest.mark.parametrize("kind,in_dims", (("scalar", (0, 0, 0, 0, 0)), ("scalar", (0, None, 0, None, None)),
                                          ("scalar", (2, 0, 1, 0, None)), ("delta_scalar", (0, 0, 0, 0, 0, 0)),
                                          ("delta_scalar", (None, 0, 0, None, 2, None)),
                                          ("delta_scalar", (0, None, 1, 0, None, 0))))
def test_vmap(kind, in_dims):
    problems = [make_problem(kind, seed=seed)[0] for seed in range(3)]
    names = tuple(problems[0])
    function = lambda *given: lt.linear_attention(**dict(zip(names, given)), output_final_state=True)
    given = [problems[0][name] if dim is None else torch.stack([x[name] for x in problems], dim)
             for name, dim in zip(names, in_dims)]
    each = [[problems[0 if dim is None else i][name] for name, dim in zip(names, in_dims)] for i in range(3)]
    for actual, expected in zip(torch.vmap(function, in_dims)(*given), zip(*(function(*one) for one in each))):
        assert torch.equal(actual, torch.stack(expected))
    loss = lambda *one: sum(part.square().sum() for part in function(*one))
    actual = torch.vmap(torch.func.grad(loss, argnums=tuple(range(len(names)))), in_dims)(*given)
    for i, one in enumerate(each):
        leaves = [tensor.detach().requires_grad_() for tensor in one]
        for name, a, e in zip(names, actual, torch.autograd.grad(loss(*leaves), leaves)):
            assert_close(f"d {name}", a[i], e, torch.float32)


def test_vmap_of_a_constant_decay():
    x, _, _ = make_problem("head", states=False)
    given = [torch.stack([x[name], 2 * x[name]]) for name in "qkv"]
    function = lambda q, k, v: lt.linear_attention(q, k, v, x["decay"])
    expected = torch.stack([function(*(tensor[i] for tensor in given)) for i in range(2)])
    assert torch.equal(torch.vmap(function)(*given), expected)


def test_vmap_refused():
    x, _, _ = make_problem("head", states=False)
    q = torch.stack([x["q"], x["q"]])
    function = lambda q, decay: lt.linear_attention(q, x["k"], x["v"], decay).sum()
    with pytest.raises(liblasp.Unsupported, match=r"decay \[H\]: give it for each token"):
        torch.vmap(function)(q, torch.stack([x["decay"]] * 2))
    with pytest.raises(liblasp.Unsupported, match=r"by a decay \[H\]"):
        torch.vmap(torch.func.grad(function, argnums=1), (0, None))(q, x["decay"])
    with pytest.raises(liblasp.Unsupported, match="pack the mapped sequences too"):
        torch.vmap(lambda q: lt.linear_attention(q, x["k"][:1], x["v"][:1], cu_seqlens=[0, 37]))(q[:, :1])
    with pytest.raises(liblasp.Unsupported, match="linear_attention_step"):
        torch.vmap(lambda q: lt.linear_attention_step(q, x["k"], x["v"], torch.zeros(2, 2, 16, 24)))(q)


@pytest.mark.parametrize("watched", (False, True))
def test_no_second_derivative(watched):
    x, _, _ = make_problem("none", states=False)
    q = x["q"].detach().requires_grad_()
    with Watch() if watched else torch.enable_grad():
        first, = torch.autograd.grad(lt.linear_attention(q, x["k"], x["v"]).square().sum(), q, create_graph=True)
        with pytest.raises(liblasp.Unsupported if watched else RuntimeError,
                           match="no second derivative" if watched else "differentiate twice"):
            first.sum().backward()
    with pytest.raises(liblasp.Unsupported, match="no second derivative"):
        loss = lambda q: lt.linear_attention(q, x["k"], x["v"]).square().sum()
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(x["q"])


def distributed(tensor):
    from torch.distributed.tensor import DTensor
    return torch.Tensor._make_subclass(DTensor, tensor)


X, FLAT = torch.zeros(1, 8, 2, 8), torch.zeros(1, 8, 32)
TAKERS = {  # each takes a tensor for the argument that is named
    "q": lambda q: lt.linear_attention(q, X, X),
    "k": lambda k: lt.linear_attention(X, k, X),
    "cu_seqlens": lambda offsets: lt.linear_attention(X, X, X, cu_seqlens=offsets),
    "beta": lambda beta: lt.delta_rule(X, X, X, beta),
    "state": lambda state: lt.linear_attention_step(X, X, X, state),
    "x": lambda x: lt.LinearAttention(32, 2)(x),
    "x of step": lambda x: lt.LinearAttention(32, 2).step(x, torch.zeros(1, 2, 16, 16)),
    "initial_state": lambda state: lt.LinearAttention(32, 2)(FLAT, state),
    "x of a layer of the delta rule": lambda x: lt.GatedDeltaNet(32, 2)(x),
    "x of a convolution": lambda x: lt.ShortConvolution(32, 4)(x),
    "cu_seqlens of a convolution": lambda offsets: lt.ShortConvolution(32, 4)(FLAT, cu_seqlens=offsets),
    "hidden": lambda hidden: lt.linear_cross_entropy(hidden, torch.zeros(7, 32), torch.zeros(1, 8, dtype=torch.long)),
    "weight": lambda weight: lt.linear_cross_entropy(FLAT, weight, torch.zeros(1, 8, dtype=torch.long)),
    "tensor": lambda x: lt.time_segments(lt.LinearAttention(32, 2), x, FLAT, torch.nn.functional.mse_loss, segment=4),
    "tensor of shard": lambda x: lt.shard(x, 0, 1),
    "x of a checkpointed layer": lambda x: lt.checkpoint(lt.LinearAttention(32, 2), x),
}
GIVEN = {"beta": X[..., 0], "state": torch.zeros(1, 2, 8, 8), "initial_state": torch.zeros(1, 2, 16, 16),
         "weight": torch.zeros(7, 32), "cu_seqlens": torch.tensor([0, 8]), "q": X, "k": X}


@pytest.mark.parametrize("what", TAKERS)
def test_distributed_tensors_are_refused(what):
    name = what.split()[0]
    with pytest.raises(liblasp.Unsupported, match=rf"^{name}: is a DTensor.*{name}\.(to_local|full_tensor)\(\)"):
        TAKERS[what](distributed(GIVEN.get(name, FLAT)))


@pytest.mark.parametrize("kind", ("scalar", "delta_scalar"))
def test_selective_checkpointing(kind):
    """What the policy saves is not computed again."""
    x, d_o, d_final, _ = problem(kind)
    expected = gradients(lt.linear_attention, x, d_o, d_final)
    calls = {}
    for policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE):
        ran, forward = [], operators.passes.forward
        operators.passes.forward = lambda *given: (ran.append(1), forward(*given))[1]
        choose = lambda ctx, function, *args, **kwargs: (policy if function is FORWARD else
                                                         CheckpointPolicy.PREFER_RECOMPUTE)
        try:
            function = lambda *given, **options: checkpoint(
                lt.linear_attention, *given, use_reentrant=False,
                context_fn=lambda: create_selective_checkpoint_contexts(choose), **options)
            assert same(gradients(function, x, d_o, d_final), expected)
        finally:
            operators.passes.forward = forward
        calls[policy] = len(ran)
    assert list(calls.values()) == [1, 2]


@pytest.mark.parametrize("kind,products", (("scalar", 2), ("delta_scalar", 3)))
def test_flop_are_counted(kind, products):
    """`products` of K by V for each token and head, and twice as many for the gradients."""
    x, _, _ = make_problem(kind, batch=2, tokens=37, heads=(4, 2, 2), dim_k=16, dim_v=24, states=False)
    x["q"] = x["q"].detach().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        lt.linear_attention(**x).sum().backward()
    numbers = 2 * 37 * 4 * 16 * 24
    assert counter.get_flop_counts()["Global"] == {torch.ops.liblasp.forward: 2 * products * numbers,
                                                   torch.ops.liblasp.backward: 4 * products * numbers}


def test_a_copied_state_cache_is_refused():
    """It would hold one byte of it."""
    x, d_o, d_final, _ = problem("scalar")
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor), Watch():
        with pytest.raises(liblasp.Unsupported, match="^state_cache: holds 1 bytes of .*cannot be copied"):
            gradients(lt.linear_attention, x, d_o, d_final)


@pytest.mark.parametrize("change", (lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
                                    lambda t: torch.cat([t, t], -1)[..., :t.shape[-1]]))
@pytest.mark.parametrize("kind", ("channel", "delta_channel"))
def test_backward_has_the_plan_of_forward(change, kind):
    """Whatever strides its tensors have in the meantime."""
    x, d_o, d_final, _ = problem(kind)
    given = arguments(x, None)
    _, _, cache = FORWARD(*given)
    expected = BACKWARD(d_o, d_final, cache, *given[:-2], True, True, True)
    plans = len(lt.sequence_group(None)._plans)
    moved = tuple(None if tensor is None else change(tensor) for tensor in given[:5])
    assert all(now is None or now.stride() != then.stride() for now, then in zip(moved, given))
    assert same(BACKWARD(d_o, d_final, cache, *moved, *given[5:-2], True, True, True), expected)
    assert len(lt.sequence_group(None)._plans) == plans


def test_strides_of_zero():
    """The planned tensor holds one element for many, and the one that is given all of them."""
    x, _, _, _ = problem("scalar")
    x["q"] = x["q"][:, :, :1].expand(-1, -1, 2, -1)
    given = arguments(x, None)
    expected = FORWARD(*given)[:2]
    whole = x["q"].clone(memory_format=torch.contiguous_format)
    assert whole.stride() != x["q"].stride() and same(FORWARD(whole, *given[1:])[:2], expected)
    assert same(FORWARD(*arguments({**x, "q": whole}, None))[:2], expected)


def test_names_of_groups():
    x, _, _ = make_problem("none", states=False)
    q = x["q"].detach().requires_grad_()
    group = lt.SequenceGroup(cpu_threads=1)
    with Watch() as watch:
        o = lt.linear_attention(q, x["k"], x["v"], group=group)
    assert watch.seen and len(group._plans) == 1  # its plan, not that of another group
    assert torch.equal(o, lt.linear_attention(x["q"], x["k"], x["v"]))
    given = list(arguments(x, None, output_final_state=False))
    for name, words in (("liblasp:0", "no such SequenceGroup"), ("nowhere", "no such process group")):
        given[8] = name
        with pytest.raises(liblasp.InvalidArgument, match=words):
            FORWARD(*given)
    given[8], name = group.name, group.name
    FORWARD(*given)
    del group, o
    with pytest.raises(liblasp.InvalidArgument, match=f"^group = '{name}'"):
        FORWARD(*given)


def test_strides_of_another_number_are_refused():
    given = list(arguments(problem("none")[0], None))
    for strides in (given[7][:-1], [*given[7], 1]):
        given[7] = strides
        with pytest.raises(liblasp.InvalidArgument, match="^strides: "):
            FORWARD(*given)


def test_one_plan_serves_all_packings():
    group = lt.SequenceGroup()
    x, _, _ = make_problem("scalar", batch=1, tokens=50, sequences=4)
    for offsets in (PACKED, torch.tensor(PACKED, dtype=torch.int32), [0, 10, 20, 30, 50], [0, 3, 50], [0, 9, 20, 31]):
        o = lt.linear_attention(x["q"], x["k"], x["v"], x["decay"], cu_seqlens=offsets, group=group)
        assert not o[:, int(offsets[-1]):].any()
    assert len(group._plans) == 2  # of up to four sequences and of two


@pytest.mark.parametrize("again", (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))))
@pytest.mark.parametrize("decay", ("head", "channel"))
def test_modules_are_copied_and_pickled(again, decay):
    torch.manual_seed(0)
    module, x = lt.LinearAttention(32, 2, decay=decay), torch.randn(1, 20, 32)
    expected = module(x)
    copied = again(module)
    assert torch.equal(copied(x), expected)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.equal(module(x), expected)
    other = lt.LinearAttention(32, 2, decay=decay)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), expected)


def test_a_group_is_copied_with_its_module_and_not_pickled():
    module = lt.LinearAttention(32, 2, group=lt.SequenceGroup())
    assert copy.deepcopy(module).group is module.group
    with pytest.raises(TypeError, match=r"^a SequenceGroup cannot be pickled.*state_dict\(\)"):
        pickle.dumps(module)
