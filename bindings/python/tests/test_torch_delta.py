"""delta_rule, gated_delta_rule and kda: each is the recurrence of its paper, and refuses the others' arguments."""
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
import support  # noqa: E402
from test_torch_support import (DELTA, DELTA_GATES, assert_close, make_problem, reference_gradients,  # noqa: E402
                                run_ranks, shard_of)

FUNCTIONS = {"delta_none": lt.delta_rule, "delta_scalar": lt.gated_delta_rule, "delta_channel": lt.kda}


def named(x):
    """The same arguments under the functions' names."""
    return {{"decay": "g"}.get(name, name): value for name, value in x.items() if value is not None}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_split_over_ranks(kind):
    x, d_o, d_final = make_problem(kind, heads=(2, 2, 4))
    o, final, expected = reference_gradients(x, d_o, d_final)

    def rank_function(rank, group):
        begin, end = lt.shard_bounds(d_o.shape[1], rank, group.size)
        mine = {name: shard_of(name, value, begin, end) for name, value in named(x).items()}
        part, state = FUNCTIONS[kind](**mine, group=group, output_final_state=True)
        torch.autograd.backward([part, state], [d_o[:, begin:end], d_final])
        return part.detach(), state.detach(), {name: value.grad for name, value in mine.items()}

    ranks = run_ranks(3, rank_function)
    assert_close("o", torch.cat([rank[0] for rank in ranks], 1), o, torch.float32, DELTA)
    assert_close("final_state", sum(rank[1] for rank in ranks), final, torch.float32, DELTA)
    for name, gradient in named(expected).items():
        parts = [rank[2][name] for rank in ranks]
        actual = sum(parts) if name == "initial_state" else torch.cat(parts, 1)
        assert_close(f"d {name}", actual, gradient, torch.float32, DELTA_GATES if name in ("g", "beta") else DELTA)


@pytest.mark.parametrize("name", ("q", "k", "v", "decay", "beta", "initial_state"))
def test_a_gradient_of_one_input_alone(name):
    x, d_o, d_final = make_problem("delta_scalar")
    _, _, expected = reference_gradients(x, d_o, d_final)
    leaf = x[name].detach().requires_grad_()
    o, final = lt.linear_attention(**{**x, name: leaf}, output_final_state=True)
    torch.autograd.backward([o, final], [d_o, d_final])
    assert_close(name, leaf.grad, expected[name], torch.float32, DELTA_GATES if name in ("decay", "beta") else DELTA)


def refused(words, function, *given, error=liblasp.InvalidArgument, **options):
    support.refused(words, lambda: function(*given, **options), error)


def test_wrong_calls():
    x = make_problem("delta_channel", states=False)[0]
    q, k, v, g, beta = (x[name] for name in ("q", "k", "v", "decay", "beta"))
    of_tokens = g[..., 0].contiguous()
    refused("^beta: must be a tensor .*, not None", lt.delta_rule, q, k, v, None)
    refused("^beta: shape", lt.delta_rule, q, k, v, g)
    refused(r"^g: has 4 dimensions, must be a tensor \[B, T, H\]$", lt.gated_delta_rule, q, k, v, g, beta)
    refused(r"^g: has 1 dimensions, must be a tensor \[B, T, H\]$", lt.gated_delta_rule, q, k, v, of_tokens[0, 0], beta)
    refused(r"^g: is a NoneType, must be a tensor \[B, T, H\]$", lt.gated_delta_rule, q, k, v, None, beta)
    refused(r"^g: has 3 dimensions, must be a tensor \[B, T, H, K\]$", lt.kda, q, k, v, of_tokens, beta)
    refused("^g: shape", lt.kda, q, k, v, g[:, 1:], beta)
    refused("^g: dtype torch.float64", lt.kda, q, k, v, g.double(), beta)
    refused("^beta: dtype torch.float16", lt.kda, q, k, v, g, beta.half())
    refused("^beta: is on meta", lt.kda, q, k, v, g, beta.to("meta"))
    refused("mask", lt.delta_rule, q, k, v, beta, causal=False, error=liblasp.Unsupported)
    refused("segment", lt.delta_rule, q, k, v, beta, group=lt.SequenceGroup(segment=64), error=liblasp.Unsupported)
    refused("decay", lt.kda, q, k, v, g, beta, decay=g, error=TypeError)
    assert lt.kda(q, k, v, g, beta).shape == v.shape


def test_compiled_wrong_calls():
    """None must not become another attention."""
    x = make_problem("delta_scalar", states=False)[0]
    for words, function, given in (
            ("beta: must be a tensor", lambda q, k, v: lt.delta_rule(q, k, v, None), "qkv"),
            ("g: is a NoneType", lambda q, k, v: lt.gated_delta_rule(q, k, v, None, x["beta"]), "qkv"),
            ("g: has 3 dimensions", lambda q, k, v: lt.kda(q, k, v, x["decay"], x["beta"]), "qkv")):
        with pytest.raises(Exception, match=words):
            torch.compile(function, backend="eager", fullgraph=True)(*(x[name] for name in given))


def test_a_rank_refused_is_told_to_the_others():
    """What the functions see before the library does ends the others' wait at once."""
    x = {name: value for name, value in named(make_problem("delta_scalar", states=False)[0]).items()}
    seen = threading.Barrier(2)

    def rank_function(rank, group):
        lt.gated_delta_rule(**x, group=group)
        seen.wait()
        wrong, began = ({"g": x["g"][0]} if rank == 0 else {}), time.monotonic()
        with pytest.raises(liblasp.InvalidArgument if rank == 0 else liblasp.PeerLost):
            lt.gated_delta_rule(**{**x, **wrong}, group=group)
        return time.monotonic() - began

    assert max(run_ranks(2, rank_function, time_limit=20.0)) < 10
