"""liblasp.torch.hf.functions against transformers' own functions, whose signatures they have: on one rank, and over two
in test_torch_hf, by `errors`."""
import importlib
import inspect

import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from test_torch_support import BOUNDS, relative_error  # noqa: E402

TOKENS, HEADS, KEYS, VALUES = 37, 4, 16, 8
# Both round sums of float32 (test_torch_support), theirs through inverses of products within a chunk.
BOUND = 16 * BOUNDS[torch.float32]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def delta(*dims):
    return {"query": normal(2, TOKENS, HEADS, KEYS), "key": normal(2, TOKENS, HEADS, KEYS, seed=1),
            "value": normal(2, TOKENS, HEADS, VALUES, seed=2),
            "g": -F.softplus(normal(2, TOKENS, HEADS, *dims, seed=3) - 2),
            "beta": normal(2, TOKENS, HEADS, seed=4).sigmoid(), "initial_state": normal(2, HEADS, KEYS, VALUES, seed=5)}


def mamba():
    return {"hidden_states": normal(2, TOKENS, HEADS, KEYS), "dt": normal(2, TOKENS, HEADS, seed=1),
            "A": -normal(HEADS, seed=2).exp(), "B": normal(2, TOKENS, 2, VALUES, seed=3),
            "C": normal(2, TOKENS, 2, VALUES, seed=4), "D": normal(HEADS, seed=5), "dt_bias": normal(HEADS, seed=6),
            "initial_states": normal(2, HEADS, KEYS, VALUES, seed=7)}


def convolution():
    return {"hidden_states": normal(2, 5, TOKENS), "weight": normal(5, 4, seed=1), "bias": normal(5, seed=2)}


DELTA = {"use_qk_l2norm_in_kernel": True, "output_final_state": True, "chunk_size": 16}
# name: where transformers has it, its inputs, options, the dimension of tokens
CASES = {
    "torch_chunk_gated_delta_rule": ("qwen3_next", delta, DELTA, 1),
    "chunk_kimi_delta_attention": ("kimi_linear", lambda: delta(KEYS), DELTA, 1),
    "mamba2_chunk_scan": ("mamba2", mamba, {"chunk_size": 16, "dt_softplus": True, "return_final_states": True,
                                            "dt_limit": (0.0, 2.0)}, 1),
    "causal_conv1d_fn": ("mamba2", convolution, {"activation": "silu"}, 2),
}
OF_ALL = ("A", "D", "dt_bias", "weight", "bias", "initial_state", "initial_states")


def theirs(name):
    module = importlib.import_module(f"transformers.models.{CASES[name][0]}.modeling_{CASES[name][0]}")
    return inspect.unwrap(getattr(module, name))  # not a kernel that happens to be installed


def ours(name):
    from liblasp.torch.hf import functions
    return getattr(functions, name)


def results(function, name, rank=0, ranks=1, **more):
    _, make, options, dim = CASES[name]
    inputs = {key: (each if key in OF_ALL else lt.shard(each, rank, ranks, dim)).detach().clone().requires_grad_()
              for key, each in make().items()}
    given = function(**inputs, **options, **more)
    o, final = given if isinstance(given, tuple) else (given, None)
    shape = list(o.shape)
    shape[dim] = TOKENS
    loss = (o * lt.shard(normal(*shape, seed=8), rank, ranks, dim)).sum()
    if final is not None:
        loss = loss + (final * normal(*final.shape, seed=9)).sum() / ranks
    loss.backward()
    return o.detach(), final, {key: each.grad for key, each in inputs.items()}


def errors(name, group=None, rank=0, ranks=1):
    """How far this rank's results are from transformers' on whole sequences."""
    o, final, gradients = results(theirs(name), name)
    dim, found = CASES[name][3], results(ours(name), name, rank, ranks, group=group)
    far = {"o": relative_error(found[0], lt.shard(o, rank, ranks, dim))}
    if final is not None:
        far["final state"] = relative_error(found[1], final)
    for key, wanted in gradients.items():
        if key in OF_ALL and ranks > 1:
            dist.all_reduce(found[2][key])
        far[key] = relative_error(found[2][key], wanted if key in OF_ALL else lt.shard(wanted, rank, ranks, dim))
    return far


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_transformers(name):
    far = errors(name)
    assert len(far) > 3 and max(far.values()) <= BOUND, far


@pytest.mark.parametrize("name", CASES)
def test_in_bfloat16_as_transformers_rounds(name):
    """Types of results, and numbers that are not further from float32's than theirs, and half again."""
    _, make, options, _ = CASES[name]
    kept = ("A", "D", "dt_bias", "g") if name != "causal_conv1d_fn" else ()
    inputs = {key: each if key in kept or "initial" in key else each.bfloat16() for key, each in make().items()}
    exact = theirs(name)(**{key: each.float() for key, each in inputs.items()}, **options)
    found = [function(**inputs, **options) for function in (theirs(name), ours(name))]
    own, mine, exact = (each[0] if isinstance(each, tuple) else each for each in (*found, exact))
    assert mine.dtype == own.dtype
    assert relative_error(mine, exact) <= 1.5 * relative_error(own, exact) + BOUND


@pytest.mark.parametrize("name", CASES)
def test_signatures(name):
    """Every argument of transformers', in its place and with its default, where there is one."""
    mine = [each for each in inspect.signature(ours(name)).parameters.values()]
    for one, other in zip(inspect.signature(theirs(name)).parameters.values(), mine):
        if one.kind == one.VAR_KEYWORD:
            break
        assert (one.name, one.kind) == (other.name, other.kind)
        assert one.default is one.empty or one.default == other.default
    assert mine[-1].kind == inspect.Parameter.VAR_KEYWORD and "group" in [each.name for each in mine]


def test_refusals():
    x = convolution()
    with pytest.raises(liblasp.Unsupported, match="followed by gelu"):
        ours("causal_conv1d_fn")(x["hidden_states"], x["weight"], None, "gelu")
    with pytest.raises(liblasp.Unsupported, match="seq_idx: give cu_seqlens"):
        ours("causal_conv1d_fn")(x["hidden_states"], x["weight"], seq_idx=torch.zeros(2, TOKENS))
    x = delta()
    with pytest.raises(liblasp.InvalidArgument, match="above 0"):
        ours("torch_chunk_gated_delta_rule")(**{**x, "g": -x["g"]})
