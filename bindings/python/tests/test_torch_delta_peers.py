"""What flash-linear-attention tests of its own delta rules (tests/ops/test_gdn, test_kda, test_delta and
tests/context_parallel), as cases of ours: inputs made as there, lengths, gates, groups of heads and cuts over ranks.
Its bounds are 5e-3 for outputs, 8e-3 for gradients and 2e-2 for those of gates, against itself; here they are the
library's own, against the recurrence in float64."""
import pytest

torch = pytest.importorskip("torch")

import liblasp.torch as lt  # noqa: E402
from test_torch_support import DELTA, DELTA_GATES, assert_close, run_ranks  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

FUNCTIONS = {"delta": lt.delta_rule, "gdn": lt.gated_delta_rule, "kda": lt.kda}
PIECE = 128  # of the reference, which keeps the states at their borders alone


def inputs(rule, tokens, heads, dim, *, batch=1, v_heads=None, normalizer=1.0, zero_gates=0.0, dtype=torch.float32,
           sequences=None, alike=True):
    """Keys of positive numbers, which are alike, or of normal ones; a share `zero_gates` of the gates is exactly 0."""
    torch.manual_seed(42)
    v_heads = v_heads or heads
    draw = torch.rand if alike else torch.randn
    x = {name: F.normalize(draw(batch, tokens, heads, dim), dim=-1).to(dtype) for name in "qk"}
    x["v"] = draw(batch, tokens, v_heads, dim).to(dtype)
    if rule != "delta":
        g = F.logsigmoid(draw(batch, tokens, v_heads, *((dim,) if rule == "kda" else ()))) / normalizer
        x["g"] = g * (torch.rand_like(g) >= zero_gates)
    x["beta"] = torch.randn(batch, tokens, v_heads).sigmoid()
    x["initial_state"] = torch.randn(sequences or batch, v_heads, dim, dim)
    return x, torch.randn(batch, tokens, v_heads, dim).to(dtype), torch.randn_like(x["initial_state"])


def steps(q, k, v, g, beta, state, scale):
    """The recurrence of some tokens of all rows and heads at once."""
    outputs = []
    factors = [None] * q.shape[1] if g is None else torch.exp(g.reshape(*g.shape[:3], -1, 1)).unbind(1)
    rows = (scale * q.unsqueeze(3), k.unsqueeze(3), k.unsqueeze(4), v.unsqueeze(3), beta[..., None, None])
    for factor, (q_t, k_t, k_column, v_t, beta_t) in zip(factors, zip(*(each.unbind(1) for each in rows))):
        if factor is not None:
            state = state * factor
        state = state + k_column * (beta_t * (v_t - k_t @ state))
        outputs.append(q_t @ state)
    return torch.cat(outputs, 2).transpose(1, 2), state


def reference(x, d_o, d_final, scale, offsets):
    """o, the final states and the gradients of all inputs, in float64."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for products of so few numbers
    try:
        return _reference(x, d_o, d_final, scale, offsets)
    finally:
        torch.set_num_threads(threads)


def _reference(x, d_o, d_final, scale, offsets):
    wide = {name: value.detach().double().requires_grad_() for name, value in x.items()}
    heads = wide["v"].shape[2]
    q, k = (wide[name].repeat_interleave(heads // wide[name].shape[2], 2) for name in "qk")
    outputs, finals = [], []
    spans = [(slice(None), 0, q.shape[1])] if offsets is None else [
        (slice(n, n + 1), *ends) for n, ends in enumerate(zip(offsets, offsets[1:]))]
    for rows, begin, end in spans:
        state = wide["initial_state"][rows]
        for at in range(begin, end, PIECE):
            part = slice(at, min(at + PIECE, end))
            given = [None if each is None else each[:, part] for each in (q, k, wide["v"], wide.get("g"), wide["beta"])]
            o, state = checkpoint(steps, *given, state, scale, use_reentrant=False)
            outputs.append(o)
        finals.append(state)
    o, final = torch.cat(outputs, 1), torch.cat(finals)
    torch.autograd.backward([o, final], [d_o.double(), d_final.double()])
    return o, final, {name: value.grad for name, value in wide.items()}


def hold(rule, x, d_o, d_final, *, ends=None, scale=None, offsets=None):
    """Over ranks whose shares end at `ends`, and the promise for each tensor."""
    ends = [0, *(ends or [d_o.shape[1]])]
    ranks = len(ends) - 1

    def rank_function(rank, group):
        part = slice(ends[rank], ends[rank + 1])
        mine = {name: (value if name == "initial_state" else value[:, part]).detach().requires_grad_()
                for name, value in x.items()}
        o, final = FUNCTIONS[rule](**mine, scale=scale, cu_seqlens=offsets, group=group, output_final_state=True)
        torch.autograd.backward([o, final], [d_o[:, part], d_final])
        return o.detach(), final.detach(), {name: value.grad for name, value in mine.items()}

    found = run_ranks(ranks, rank_function)
    o, final, expected = reference(x, d_o, d_final, x["q"].shape[3] ** -0.5 if scale is None else scale, offsets)
    assert_close("o", torch.cat([each[0] for each in found], 1), o, d_o.dtype, DELTA)
    assert_close("final_state", sum(each[1] for each in found), final, torch.float32, DELTA)
    for name, gradient in expected.items():
        parts = [each[2][name] for each in found]
        actual = sum(parts) if name == "initial_state" else torch.cat(parts, 1)
        assert_close(f"d {name}", actual, gradient, actual.dtype, DELTA_GATES if name in ("g", "beta") else DELTA)


# ---- One rank: lengths, gates, scales, groups of heads ----


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("rule,tokens,heads,dim,scale,more", (
    ("gdn", 63, 1, 64, 1.0, {}),
    ("gdn", 75, 4, 64, 1.0, {"normalizer": 0.01, "batch": 2}),
    ("gdn", 500, 3, 64, 1.0, {"batch": 2}),
    ("gdn", 500, 2, 64, 0.1, {"zero_gates": 0.5, "batch": 2}),
    ("gdn", 300, 2, 128, 0.1, {"zero_gates": 1.0}),
    ("gdn", 256, 2, 64, 1.0, {"v_heads": 4, "normalizer": 10.0}),
    ("gdn", 200, 2, 64, 1.0, {"v_heads": 8, "normalizer": 0.1}),
    ("kda", 63, 1, 64, 1.0, {}),
    ("kda", 75, 2, 64, 1.0, {"normalizer": 0.01}),
    ("kda", 500, 2, 64, 0.1, {"zero_gates": 0.5}),
    ("kda", 300, 2, 64, 0.1, {"zero_gates": 1.0}),
    ("kda", 200, 1, 64, 1.0, {"v_heads": 4, "normalizer": 10.0}),
    ("delta", 56, 3, 64, None, {"batch": 2, "alike": False}),
    ("delta", 211, 3, 112, None, {"alike": False}),
    ("delta", 400, 1, 200, None, {"alike": False}),
))
def test_operators(rule, tokens, heads, dim, scale, more, dtype):
    hold(rule, *inputs(rule, tokens, heads, dim, dtype=dtype, **more), scale=scale)


@pytest.mark.parametrize("rule,offsets", (("delta", [0, 15, 100, 300, 1203]), ("kda", [0, 15]),
                                          ("kda", [0, 256, 500, 1000]), ("gdn", [0, 15, 100, 300, 1200])))
def test_packed_operators(rule, offsets):
    x = inputs(rule, offsets[-1], 2, 32, sequences=len(offsets) - 1, alike=False, zero_gates=0.5)
    hold(rule, *x, offsets=offsets)


# ---- Context parallelism ----

SEVEN = [100, 150, 200, 250, 124, 100, 100]


@pytest.mark.parametrize("rule,ranks,lengths,dtype", (
    ("gdn", 2, [300, 400, 324], torch.float32), ("kda", 2, [512, 512], torch.bfloat16),
    ("kda", 4, [700, 324], torch.float32), ("gdn", 4, [1024], torch.bfloat16),
    ("gdn", 2, SEVEN, torch.bfloat16), ("kda", 8, SEVEN, torch.float32)))
def test_context_parallel(rule, ranks, lengths, dtype):
    offsets = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    x = inputs(rule, 1024, 2, 64, dtype=dtype, sequences=len(lengths), alike=False)
    hold(rule, *x, ends=[1024 * (rank + 1) // ranks for rank in range(ranks)], offsets=offsets)


def test_ten_thousand_tokens():
    """Three sequences over four even ranks, and one sequence over three uneven ones."""
    packed = inputs("kda", 10240, 1, 32, sequences=3, alike=False, dtype=torch.bfloat16)
    hold("kda", *packed, ends=[2560, 5120, 7680, 10240], offsets=[0, 3000, 7000, 10240])
    hold("gdn", *inputs("gdn", 10240, 1, 32, alike=False), ends=[3000, 7000, 10240])
