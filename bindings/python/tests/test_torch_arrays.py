"""Torch tensors as arguments of a plain liblasp.Plan, and how liblasp.torch finds its plans again: by DLPack's exchange
API where this torch has one, and by torch's own methods."""
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
import support  # noqa: E402
from test_torch_support import make_problem  # noqa: E402

HAS_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


class Subclass(torch.Tensor):
    """C does not know it: its tensors are read by torch's methods."""


@pytest.fixture
def x():
    return make_problem("scalar", states=False)[0]


@pytest.fixture
def plan(x):
    with liblasp.Context(cpu_threads=1) as context:
        yield context.plan(liblasp.Problem.like(x["q"], x["k"], x["v"], decay=x["decay"]))


def test_the_exchange_api_is_used():
    """On torch 2.10 and later; a subclass keeps out of it."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    assert liblasp.raw.learn_type(torch.Tensor, capsule) == HAS_EXCHANGE
    for wrong in (None, 1, object()):
        assert not liblasp.raw.learn_type(Subclass, wrong)
    assert not liblasp.raw.learn_type(3, capsule)


def addresses(plan, out, *tensors):
    return plan.bind_forward(*tensors, out=out).__self__.addresses()


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: tensor.as_subclass(Subclass)],
                         ids=["tensor", "subclass"])
def test_both_ways_read_the_same(plan, x, wrap):
    q, k, v, decay = (x[name].detach() for name in ("q", "k", "v", "decay"))
    expected = plan.forward(q, k, v, decay)
    out = torch.empty_like(expected)
    given = [wrap(tensor) for tensor in (q, k, v, decay)]
    assert plan.forward(*given, out=wrap(out)).data_ptr() == out.data_ptr() and torch.equal(out, expected)
    found = addresses(plan, wrap(out), *given)
    assert [found[name] for name in ("q", "k", "v", "decay", "o")] == [
        tensor.data_ptr() for tensor in (q, k, v, decay, out)]


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: tensor.as_subclass(Subclass)],
                         ids=["tensor", "subclass"])
def test_both_ways_refuse_the_same(plan, x, wrap):
    q, k, v, decay = (x[name].detach() for name in ("q", "k", "v", "decay"))

    def refused(words, wrong):
        support.refused(words, lambda: plan.forward(wrap(wrong), k, v, decay))

    refused("q is of type", q.double())
    refused("q is of type", q.int())
    refused("q has shape", q[:, :-1])
    refused("q has shape", q[0])
    refused("q has strides", q.transpose(1, 2).contiguous().transpose(1, 2))
    refused("dimensions", q[None])
    refused("q requires a gradient", q.clone().requires_grad_())
    refused("q is a torch.strided tensor on meta", q.to("meta"))
    if wrap(q) is q:
        refused("q is a torch.sparse_coo tensor on cpu", q.to_sparse())
    assert torch.complex(q, q).conj().imag.is_neg()  # how such a view comes about
    refused("the negative of its memory", torch._neg_view(q))
    with torch.no_grad():  # nothing would be recorded
        plan.forward(wrap(q.clone().requires_grad_()), k, v, decay)
    with pytest.raises(liblasp.InvalidArgument, match="workspace is not contiguous"):
        plan.forward(q, k, v, decay, workspace=wrap(torch.empty(16, 8, dtype=torch.uint8).t()))
    parameter = torch.nn.Parameter(q)
    refused("q requires a gradient", parameter)
    with torch.no_grad():
        assert torch.equal(plan.forward(parameter, k, v, decay), plan.forward(q, k, v, decay))


def test_a_cache_is_of_one_kind_of_array(plan, x):
    """A plan keeps a cache for each framework: backward on tensors does not read that of a forward on NumPy's arrays,
    nor the other way; one that is given serves both."""
    d_o = torch.ones(plan.problem.shape_of("o"))
    tensors = [x[name].detach() for name in ("q", "k", "v", "decay")]
    arrays = [tensor.numpy() for tensor in tensors]
    plan.forward(*tensors)
    expected = plan.backward(d_o, *tensors).dq

    def refused(words, call):
        assert "cache=" in str(support.refused(words, call))  # what to do

    plan.forward(*arrays)
    refused("was on arrays of numpy, .* of this call on arrays of torch", lambda: plan.backward(d_o, *tensors))
    refused("of numpy, .* of torch", lambda: plan.forward(*tensors, reuse_cache=True))
    plan.forward(*tensors)
    refused("was on arrays of torch, .* of this call on arrays of numpy", lambda: plan.backward(d_o, *arrays))
    assert torch.equal(plan.backward(d_o, *tensors).dq, expected)
    both = plan.new_cache()
    plan.forward(*arrays, cache=both)
    assert torch.equal(plan.backward(d_o, *tensors, cache=both).dq, expected)


def test_lazy_negatives_in_the_function(x):
    """Refused as inputs; resolved where autograd hands one back as the gradient of o."""
    q, k, v = (x[name].detach() for name in "qkv")
    negated = torch._neg_view(q)
    lt.linear_attention(q, k, v)  # makes the plan of their layout, which is one
    with pytest.raises(liblasp.InvalidArgument, match="resolve_neg"):
        lt.linear_attention(negated, k, v)
    leaf = q.clone().requires_grad_()
    d_o = torch.ones_like(lt.linear_attention(q, k, v))
    minus = torch._neg_view(d_o)  # as by conj().imag of a complex tensor, and contiguous
    assert minus.is_neg() and minus.is_contiguous() and (minus == -1).all()
    (wrong_sign,) = torch.autograd.grad(lt.linear_attention(leaf, k, v), leaf, minus)
    (expected,) = torch.autograd.grad(lt.linear_attention(leaf, k, v), leaf, d_o)
    assert torch.equal(wrong_sign, -expected)


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: tensor.as_subclass(Subclass)],
                         ids=["tensor", "subclass"])
def test_a_step_records_nothing(x, wrap):
    """Also where a tensor requires a gradient and gradients are on."""
    q, k, v, decay = (x[name].detach() for name in ("q", "k", "v", "decay"))
    states = [torch.zeros(2, 2, 16, 24) for _ in range(2)]
    o = lt.linear_attention_step(wrap(q.clone().requires_grad_()), k, v, states[0], decay)
    assert not o.requires_grad
    assert torch.equal(o, lt.linear_attention_step(q, k, v, states[1], decay)) and torch.equal(*states)


def test_a_plan_is_found_by_its_key_alone():
    """The quick way finds a plan exactly where its key would be found: by strides of dimensions of one element too,
    because another rank may look it up the other way."""
    group = lt.SequenceGroup(plan_limit=3)
    q = torch.zeros(1, 4, 2, 8)
    wide = torch.zeros(2, 4, 2, 8)[:1].as_strided((1, 4, 2, 8), (99, 16, 8, 1))
    plans = []

    def call(tensor, **options):
        lt.linear_attention(tensor, tensor, tensor, group=group, **options)
        latest = max(group._plans.values(), key=lambda each: each.last_use)
        plans.append(latest)
        return latest

    assert call(q) is call(q) and call(q.clone()) is plans[0]
    assert call(wide) is not plans[0] and len(group._plans) == 2
    assert call(q, scale=2.0) not in plans[:4]
    assert call(q.clone().requires_grad_()) not in plans[:5]  # a fourth: the least recently used is gone
    assert len(group._plans) == 3 and plans[0] not in group._plans.values()
    assert call(q) is not plans[0]
    group.close()
    with pytest.raises(liblasp.InvalidHandle):
        lt.linear_attention(q, q, q, group=group)


def test_many_looks():
    """More plans than the quick way keeps: each is still made once."""
    group = lt.SequenceGroup()
    for _ in range(3):
        for tokens in range(1, 13):
            x = torch.zeros(1, tokens, 1, 8)
            lt.linear_attention(x, x, x, group=group)
            lt.linear_attention(x, x, x, group=group)
    assert len(group._plans) == 12
    group.close()


def test_what_is_kept_is_let_go():
    group = lt.SequenceGroup(plan_limit=1)
    x = torch.zeros(1, 4, 1, 8)
    lt.linear_attention(x, x, x, group=group)
    plan = weakref.ref(next(iter(group._plans.values())))
    lt.linear_attention(x[:, :2], x[:, :2], x[:, :2], group=group)
    gc.collect()
    assert plan() is None
    plan = weakref.ref(next(iter(group._plans.values())))
    del group
    gc.collect()
    assert plan() is None


def test_recents_refuse_nonsense():
    recents = liblasp.raw.recents_create()
    assert recents.find((), torch.zeros(1)) is None
    recents.keep("value", (1,), torch.zeros(2, 3), None)
    found = "value" if HAS_EXCHANGE else None
    assert recents.find((1,), torch.ones(2, 3), None) == found
    assert recents.find((2,), torch.ones(2, 3), None) is None
    assert recents.find((1,), torch.ones(2, 3)) is None
    assert recents.find((1,), torch.ones(2, 3), torch.ones(1)) is None
    assert recents.find((1,), torch.ones(2, 3).half(), None) is None
    assert recents.find((1,), "no tensor", None) is None
    assert recents.find((1,), *[None] * 9) is None
    recents.drop("another")
    assert recents.find((1,), torch.ones(2, 3), None) == found
    recents.drop()
    assert recents.find((1,), torch.ones(2, 3), None) is None
    for call in (recents.find, recents.keep):
        with pytest.raises(TypeError):
            call()
