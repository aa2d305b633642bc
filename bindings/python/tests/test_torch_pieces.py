"""softmax_attention, shift, gather, cross_entropy, causal_conv1d, and functions with other packages' signatures, on one
rank; what runs on several is in test_torch_ranks, by `on_ranks`."""
import math

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from liblasp.torch import dropins  # noqa: E402
from test_torch_support import BOUNDS, make_problem, recurrence, relative_error  # noqa: E402

TOKENS, BOUND = 23, 4 * BOUNDS[torch.float32]  # of a result, and of a gradient through two products


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- What each should give, in float64 ----

def attended(q, k, v, offsets=None, key_mask=None, window=None, scale=None):
    at = torch.arange(q.shape[1])
    mask = at[:, None] >= at
    if window is not None:
        mask = mask & (at[:, None] - at < window)
    if offsets is not None:
        of = torch.bucketize(at, torch.tensor(offsets[1:]), right=True)
        mask = mask & (of[:, None] == of) & (of < len(offsets) - 1)
    mask = mask.expand(q.shape[0], 1, -1, -1)
    if key_mask is not None:
        mask = mask & key_mask[:, None, None]
    k, v = (each.repeat_interleave(q.shape[2] // k.shape[2], 2) for each in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[-1] ** -0.5)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights.nan_to_num(), v)


def convolved(x, weight, bias):
    padded = F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, weight[:, None], bias, groups=len(weight))).transpose(1, 2)


def moved(x, by):
    tokens = x.shape[1]
    if abs(by) >= tokens:
        return torch.zeros_like(x)
    empty = torch.zeros_like(x[:, :abs(by)])
    return torch.cat([empty, x[:, :tokens - by]], 1) if by >= 0 else torch.cat([x[:, -by:], empty], 1)


ATTENTION = {"q": (2, TOKENS, 4, 8), "k": (2, TOKENS, 2, 8), "v": (2, TOKENS, 2, 6)}
MASK = torch.arange(TOKENS).expand(2, -1) >= torch.tensor([[0], [9]])
# name: the function on this rank's tokens, what it should give of whole ones, shapes of its inputs, those that all
# ranks have whole
CASES = {
    "attention": (lambda x, group, part: lt.softmax_attention(**x, group=group), lambda x: attended(**x), ATTENTION, ()),
    "attention, told": (lambda x, group, part: lt.softmax_attention(**x, group=group, total_tokens=TOKENS, scale=0.3),
                        lambda x: attended(**x, scale=0.3), ATTENTION, ()),
    "attention, window": (lambda x, group, part: lt.softmax_attention(**x, group=group, window=5),
                          lambda x: attended(**x, window=5), ATTENTION, ()),
    "attention, padding": (lambda x, group, part: lt.softmax_attention(**x, group=group, key_mask=part(MASK)),
                           lambda x: attended(**x, key_mask=MASK), ATTENTION, ()),
    "attention, packed": (lambda x, group, part: lt.softmax_attention(**x, group=group, cu_seqlens=(0, 3, 13, 20)),
                          lambda x: attended(**x, offsets=(0, 3, 13, 20)),
                          {name: (1, *shape[1:]) for name, shape in ATTENTION.items()}, ()),
    "convolution": (lambda x, group, part: lt.causal_conv1d(**x, activation="silu", group=group),
                    lambda x: convolved(**x), {"x": (2, TOKENS, 5), "weight": (5, 4), "bias": (5,)}, ("weight", "bias")),
    "shift": (lambda x, group, part: lt.shift(x["x"], 2, group), lambda x: moved(x["x"], 2), {"x": (2, TOKENS, 5)}, ()),
    "shift back, far": (lambda x, group, part: lt.shift(x["x"], -13, group), lambda x: moved(x["x"], -13),
                        {"x": (2, TOKENS)}, ()),
    "gather": (lambda x, group, part: part(lt.gather(x["x"], group, TOKENS).cumsum(1)), lambda x: x["x"].cumsum(1),
               {"x": (2, TOKENS, 5)}, ()),
}


def rounded(value):
    return value.float().double()


def case(name, group=None, rank=0, ranks=1):
    """This rank's output and gradients of a case, those of whole inputs not yet summed."""
    function, _, shapes, whole = CASES[name]

    def part(value):
        return lt.shard(value, rank, ranks)

    inputs = {key: (normal(*shape, seed=at) if key in whole else part(normal(*shape, seed=at))).float().requires_grad_()
              for at, (key, shape) in enumerate(shapes.items())}
    y = function(inputs, group, part)
    d_y = part(normal(y.shape[0], TOKENS, *y.shape[2:], seed=9))
    y.backward(d_y.float())
    return y.detach(), {key: each.grad for key, each in inputs.items()}


def expected(name):
    _, function, shapes, _ = CASES[name]
    inputs = {key: rounded(normal(*shape, seed=at)).requires_grad_() for at, (key, shape) in enumerate(shapes.items())}
    y = function(inputs)
    y.backward(rounded(normal(*y.shape, seed=9)))
    return y.detach(), {key: each.grad for key, each in inputs.items()}


def whole_case(name, group):
    """The case on ranks, put together again."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    y, gradients = case(name, group, rank, ranks)
    for key, each in gradients.items():
        if key in CASES[name][3]:
            dist.all_reduce(each)
    return lt.gather(y, group, TOKENS), {key: each if key in CASES[name][3] else lt.gather(each, group, TOKENS)
                                         for key, each in gradients.items()}


def compare(name, found):
    wanted = expected(name)
    assert relative_error(found[0], wanted[0]) <= BOUND, name
    for key, gradient in wanted[1].items():
        assert relative_error(found[1][key], gradient) <= BOUND, (name, key)


def loss_inputs():
    ids = torch.randint(0, 7, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    ids[0, 4:6] = -100
    return normal(2, TOKENS, 6).float(), normal(7, 6, seed=1).float(), ids


def loss_case(group=None, rank=0, ranks=1):
    hidden, weight, labels = loss_inputs()
    hidden, labels = lt.shard(hidden, rank, ranks).requires_grad_(), lt.shard(labels, rank, ranks)
    weight.requires_grad_()
    loss = lt.cross_entropy(hidden, weight, labels, group, tile=5)
    loss.backward()
    return loss.detach(), hidden.grad, weight.grad


def compare_loss(loss, d_hidden, d_weight):
    hidden, weight, labels = (each.double() if each.is_floating_point() else each for each in loss_inputs())
    hidden.requires_grad_(), weight.requires_grad_()
    wanted = F.cross_entropy((hidden @ weight.T)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    wanted.backward()
    for one, other in ((loss, wanted), (d_hidden, hidden.grad), (d_weight, weight.grad)):
        assert relative_error(one, other) <= BOUND


def on_ranks(group):
    """For test_torch_ranks: all cases, and the loss, on this rank's tokens."""
    for name in CASES:
        compare(name, whole_case(name, group))
    loss, d_hidden, d_weight = loss_case(group, dist.get_rank(), dist.get_world_size())
    dist.all_reduce(d_weight)
    compare_loss(loss, lt.gather(d_hidden, group, TOKENS), d_weight)
    labels = torch.arange(40).reshape(2, 20)
    shifted = lt.shift(lt.shard(labels, dist.get_rank(), dist.get_world_size()), -1, group)
    assert torch.equal(lt.gather(shifted, group, 20), moved(labels, -1))


@pytest.mark.parametrize("name", CASES)
def test_pieces(name):
    compare(name, case(name))


def test_the_loss():
    compare_loss(*loss_case())


def test_delta_rules_of_fla():
    for decay, function in (("delta_scalar", dropins.chunk_gated_delta_rule), ("delta_channel", dropins.chunk_kda)):
        x = make_problem(decay)[0]
        options = {"scale": 0.5, "initial_state": x["initial_state"], "output_final_state": True}
        o, state = function(x["q"], x["k"], x["v"], x["decay"], x["beta"], chunk_size=64, **options)
        wide = {name: each.double() for name, each in x.items()}
        wanted, final = recurrence(wide["q"], wide["k"], wide["v"], wide["decay"], beta=wide["beta"], scale=0.5,
                                   initial_state=wide["initial_state"])
        assert relative_error(o, wanted) <= BOUND and relative_error(state, final) <= BOUND
        long = function(7 * x["q"], 3 * x["k"], x["v"], x["decay"], x["beta"], use_qk_l2norm_in_kernel=True)[0]
        unit = function(F.normalize(x["q"], dim=-1), F.normalize(x["k"], dim=-1), x["v"], x["decay"], x["beta"])[0]
        assert relative_error(long, unit) <= 4 * BOUND  # fla adds 1e-6 under the root


def test_gated_attentions_of_fla():
    for decay, function, name in (("scalar", dropins.chunk_simple_gla, "g"), ("head", dropins.chunk_simple_gla, "g_gamma"),
                                  ("channel", dropins.chunk_gla, "g")):
        x = make_problem(decay, states=False)[0]
        o, state = function(x["q"], x["k"], x["v"], **{name: x["decay"]}, scale=1.0)
        assert state is None
        assert torch.equal(o, lt.linear_attention(x["q"], x["k"], x["v"], x["decay"], scale=1.0))


def test_what_layers_of_fla_say():
    """Gates and betas that fla's kernels make, decays by head, states that are the other way round."""
    x = make_problem("delta_scalar")[0]
    raw = normal(*x["beta"].shape).float()
    A_log, bias = normal(raw.shape[2], seed=1).float(), normal(raw.shape[2], seed=2).float()
    given = {"initial_state": x["initial_state"], "output_final_state": True}
    flipped = {**given, "initial_state": x["initial_state"].transpose(-1, -2).contiguous(), "state_v_first": True}
    wanted = dropins.chunk_gated_delta_rule(x["q"], x["k"], x["v"], -A_log.exp() * F.softplus(raw + bias),
                                            2 * torch.sigmoid(raw), **given)
    made = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    found = dropins.chunk_gated_delta_rule(x["q"], x["k"], x["v"], raw, raw, A_log=A_log, dt_bias=bias, **made, **flipped)
    assert relative_error(found[0], wanted[0]) <= BOUND
    assert relative_error(found[1].transpose(-1, -2), wanted[1]) <= BOUND
    plain = lt.linear_attention(x["q"], x["k"], x["v"], beta=x["beta"])
    assert torch.equal(dropins.chunk_delta_rule(x["q"], x["k"], x["v"], x["beta"])[0], plain)

    x = make_problem("delta_channel")[0]
    wide = normal(*x["decay"].shape, seed=3).float()
    heads, channels = wide.shape[2:]
    A_log, bias = normal(heads, seed=4).float(), normal(heads * channels, seed=5).float()
    shifted, rate = wide + bias.view(heads, channels), A_log.exp()[:, None]
    for options, decay in (({}, -rate * F.softplus(shifted)),
                           ({"safe_gate": True, "lower_bound": -5.0}, -5.0 * torch.sigmoid(rate * shifted))):
        found = dropins.chunk_kda(x["q"], x["k"], x["v"], wide, x["beta"], use_gate_in_kernel=True, A_log=A_log,
                                  dt_bias=bias, **options)[0]
        assert relative_error(found, dropins.chunk_kda(x["q"], x["k"], x["v"], decay, x["beta"])[0]) <= BOUND

    x = make_problem("head", states=False)[0]
    heads = x["q"].shape[2]
    for found, factors in ((dropins.chunk_retention(x["q"], x["k"], x["v"]), [1 - 2.0**(-5 - h) for h in range(heads)]),
                           (dropins.chunk_lightning_attn(x["q"], x["k"], x["v"], 1, 4),
                            [math.exp(-8 * h / heads * 0.75) for h in range(heads)])):
        wide = [x[name].double() for name in "qkv"]
        wanted, _ = recurrence(*wide, torch.tensor(factors, dtype=torch.float64).log())
        assert relative_error(found[0], wanted) <= BOUND


def test_the_recurrence_of_mamba():
    batch, tokens, heads, groups, dim, states = 2, TOKENS, 4, 2, 8, 16
    x, dt = normal(batch, tokens, heads, dim), normal(batch, tokens, heads, seed=1)
    A, B, C = -normal(heads, seed=2).exp(), *(normal(batch, tokens, groups, states, seed=seed) for seed in (3, 4))
    D, bias, z = normal(heads, seed=5), normal(heads, seed=6), normal(batch, tokens, heads, dim, seed=7)
    first = normal(batch, heads, dim, states, seed=8)
    y, final = dropins.mamba_chunk_scan_combined(
        *(each.float() for each in (x, dt, A, B, C)), 256, D=D.float(), z=z.float(), dt_bias=bias.float(),
        initial_states=first.float(), dt_softplus=True, dt_limit=(0.0, 2.0), return_final_states=True)
    state, step = first, F.softplus(dt + bias).clamp(0.0, 2.0)
    B, C = (each.repeat_interleave(heads // groups, 2) for each in (B, C))
    for t in range(tokens):
        state = torch.exp(step[:, t] * A)[..., None, None] * state + torch.einsum(
            "bh,bhp,bhn->bhpn", step[:, t], x[:, t], B[:, t])
        wanted = (torch.einsum("bhpn,bhn->bhp", state, C[:, t]) + D[:, None] * x[:, t]) * F.silu(z[:, t])
        assert relative_error(y[:, t], wanted) <= 4 * BOUND
    assert relative_error(final, state) <= 4 * BOUND


def test_convolution_of_causal_conv1d():
    x, weight = normal(2, 5, TOKENS).float(), normal(5, 4, seed=1).float()
    y = dropins.causal_conv1d_fn(x, weight, activation="swish")
    assert torch.equal(y.transpose(1, 2), lt.causal_conv1d(x.transpose(1, 2), weight, activation="silu"))


@pytest.mark.parametrize("function, arguments, words", (
    ("chunk_gated_delta_rule", {"g": 0.1}, "g[0, 0, 0] = 0.1: is a log-decay above 0"),
    ("chunk_kda", {"lower_bound": -5.0}, "lower_bound: has no counterpart"),
    ("chunk_kda", {"use_gate_in_kernel": True}, "A_log: is missing"),
    ("chunk_kda", {"allow_neg_eigval": True}, "needs use_beta_sigmoid_in_kernel"),
    ("chunk_simple_gla", {"g": -0.1, "g_gamma": -0.1}, "g and g_gamma together")))
def test_refusals(function, arguments, words):
    x = make_problem("delta_channel" if function == "chunk_kda" else "delta_scalar")[0]
    given = {name: torch.full_like(x["decay"], value) if name == "g" else value for name, value in arguments.items()}
    more = {} if function == "chunk_simple_gla" else {"beta": x["beta"], "g": given.pop("g", x["decay"])}
    with pytest.raises(liblasp.Error) as caught:
        getattr(dropins, function)(x["q"], x["k"], x["v"], **more, **given)
    assert words in str(caught.value)


def test_refusals_of_states():
    x, weight = normal(2, 5, TOKENS).float(), normal(5, 4, seed=1).float()
    with pytest.raises(liblasp.Unsupported, match="seq_idx"):
        dropins.causal_conv1d_fn(x, weight, seq_idx=torch.zeros(2, TOKENS))
    with pytest.raises(liblasp.InvalidArgument, match="A.*above 0"):
        dropins.mamba_chunk_scan_combined(torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2), torch.ones(2),
                                          torch.zeros(1, 4, 1, 8), torch.zeros(1, 4, 1, 8))
