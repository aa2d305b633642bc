"""linear_attention on one rank and on ranks as threads: the given vectors, the recurrence in float64, strides,
dtypes."""
import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from test_torch_support import (BOUNDS, DELTA, DELTA_GATES, assert_close, make_problem, read_vector,  # noqa: E402
                                recurrence, reference_gradients, relative_error, run_ranks, shard_of, vector_names)

DECAYS = ("none", "head", "scalar", "channel", "delta_none", "delta_head", "delta_scalar", "delta_channel")


def run_split(x, d_o, d_final, nranks, *, total=None, cu_seqlens=None, scale=None, **options):
    """Forward and backward on `nranks` ranks; the whole tensors again, the states' and per-head gradients
    summed."""
    tokens = x["q"].shape[1]

    def rank_function(rank, group):
        begin, end = lt.shard_bounds(tokens, rank, nranks)
        mine = {name: shard_of(name, value, begin, end) for name, value in x.items()}
        o, final = lt.linear_attention(**mine, scale=scale, group=group, cu_seqlens=cu_seqlens,
                                       output_final_state=True, **options)
        torch.autograd.backward([o, final], [d_o[:, begin:end], d_final])
        return o.detach(), final.detach(), {name: getattr(value, "grad", None) for name, value in mine.items()}

    ranks = run_ranks(nranks, rank_function)
    gradients = {}
    for name, value in x.items():
        parts = [rank[2][name] for rank in ranks]
        if value is None:
            gradients[name] = None
        elif name == "initial_state" or value.dim() == 1:
            gradients[name] = torch.stack(parts).sum(0)
        else:
            gradients[name] = torch.cat(parts, dim=1)
    return torch.cat([rank[0] for rank in ranks], dim=1), torch.stack([rank[1] for rank in ranks]).sum(0), gradients


@pytest.mark.parametrize("nranks", (1, 3))
@pytest.mark.parametrize("name", vector_names())
def test_vectors(name, nranks):
    case, tensors = read_vector(name)
    x = {"q": tensors["q"], "k": tensors["k"], "v": tensors["v"], "decay": tensors.get("g"),
         "beta": tensors.get("beta"), "initial_state": tensors.get("initial_state")}
    sequences = case["B"] if case["cu_seqlens"] is None else len(case["cu_seqlens"]) - 1
    heads = max(case["Hq"], case["Hk"], case["Hv"])
    d_final = tensors.get("d_final_state", torch.zeros(sequences, heads, case["K"], case["V"]))
    o, final, gradients = run_split(x, tensors["do"], d_final, nranks, cu_seqlens=case["cu_seqlens"],
                                    scale=case["scale"])
    expected = {"o": o, "final_state": final, "dq": gradients["q"], "dk": gradients["k"], "dv": gradients["v"],
                "dg": gradients["decay"], "dbeta": gradients["beta"], "d_initial_state": gradients["initial_state"]}
    for tensor, actual in expected.items():
        if tensor in tensors and actual is not None:  # no initial state given, no gradient of it
            # A per-head decay's gradient is a sum over all tokens whose terms, of random sign, cancel: the bound
            # holds against the terms' sizes.
            factor = (case["B"] * case["T"]) ** 0.5 if tensor == "dg" and case["decay"] == "head" else 1.0
            if case["delta"]:
                factor *= DELTA_GATES if tensor in ("dg", "dbeta") else DELTA
            if case["exact"] and factor == 1.0:
                assert torch.equal(actual.double(), tensors[tensor].double()), tensor
            else:
                assert_close(tensor, actual, tensors[tensor], torch.float32, factor)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("nranks", (1, 4))
def test_gradients_of_everything(decay, nranks):
    x, d_o, d_final = make_problem(decay, heads=(4, 2, 2))
    o, final, expected = reference_gradients(x, d_o, d_final)
    actual_o, actual_final, actual = run_split(x, d_o, d_final, nranks)
    usual, gates = (DELTA, DELTA_GATES) if "beta" in x else (1.0, 1.0)
    assert_close("o", actual_o, o, torch.float32, usual)
    assert_close("final_state", actual_final, final, torch.float32, usual)
    assert {name for name, gradient in actual.items() if gradient is not None} == {
        name for name, value in x.items() if value is not None}
    for name, gradient in expected.items():
        if gradient is not None:
            factor = gates if name in ("decay", "beta") else usual
            if name == "decay" and x[name].dim() == 1:
                factor *= 37**0.5 * 2
            assert_close(f"d {name}", actual[name], gradient, torch.float32, factor)


@pytest.mark.parametrize("decay", ("scalar", "delta_channel"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half_types(dtype, decay):
    x, d_o, d_final = make_problem(decay, dtype=dtype)
    o, final, expected = reference_gradients(x, d_o, d_final)
    actual_o, actual_final, actual = run_split(x, d_o, d_final, 2)
    assert actual_o.dtype == dtype
    assert all(each.dtype == torch.float32 for each in (actual_final, actual["decay"], actual.get("beta")) if each is not None)
    usual, gates = (DELTA, DELTA_GATES) if "beta" in x else (1.0, 1.0)
    assert_close("o", actual_o, o, dtype)
    assert_close("final_state", actual_final, final, torch.float32, usual)
    for name, gradient in expected.items():
        if gradient is not None:
            factor = gates if name in ("decay", "beta") else usual
            assert_close(f"d {name}", actual[name], gradient, dtype if name in "qkv" else torch.float32, factor)


@pytest.mark.parametrize("name", ("decay", "beta"))
def test_half_gates(name):
    x, d_o, d_final = make_problem("channel" if name == "decay" else "delta_channel", dtype=torch.bfloat16)
    x[name] = x[name].bfloat16()
    _, _, expected = reference_gradients(x, d_o, d_final)
    _, _, actual = run_split(x, d_o, d_final, 1)
    assert actual[name].dtype == torch.bfloat16
    assert_close(f"d {name}", actual[name], expected[name], torch.bfloat16)


@pytest.mark.parametrize("decay", ("scalar", "delta_scalar"))
def test_packed(decay):
    x, d_o, d_final = make_problem(decay, batch=1, tokens=50, sequences=4)
    offsets = [0, 7, 7, 31, 50]
    o, final, expected = reference_gradients(x, d_o, d_final, cu_seqlens=offsets)
    for cu_seqlens in (offsets, torch.tensor(offsets, dtype=torch.int32)):
        actual_o, actual_final, actual = run_split(x, d_o, d_final, 3, cu_seqlens=cu_seqlens)
        usual, gates = (DELTA, DELTA_GATES) if "beta" in x else (1.0, 1.0)
        assert_close("o", actual_o, o, torch.float32, usual)
        assert_close("final_state", actual_final, final, torch.float32, usual)
        for name, gradient in expected.items():
            if gradient is not None:
                assert_close(f"d {name}", actual[name], gradient, torch.float32,
                             gates if name in ("decay", "beta") else usual)


def test_bidirectional():
    x, d_o, d_final = make_problem("none", states=False)
    o, _, expected = reference_gradients(x, d_o, torch.zeros_like(d_final), causal=False)
    actual_o, _, actual = run_split(x, d_o, torch.zeros_like(d_final), 2, causal=False)
    assert_close("o", actual_o, o, torch.float32)
    for name in "qkv":
        assert_close(f"d {name}", actual[name], expected[name], torch.float32)


def test_ranks_may_change_their_share_with_total_tokens():
    """Rank 0 has 3 tokens of 5 and of 6: only the other rank's share differs, and both make a plan."""
    def rank_function(rank, group):
        outputs = []
        for total in (5, 6, 5):
            x, _, _ = make_problem("head", batch=1, tokens=total, states=False, seed=total)
            # Copies, so that rank 0 sees the very same shapes and strides each time.
            mine = [lt.shard(x[name], rank, 2).clone(memory_format=torch.contiguous_format) for name in "qkv"]
            outputs.append(lt.linear_attention(*mine, x["decay"], group=group, total_tokens=total))
        return outputs, len(group._plans)

    ranks = run_ranks(2, rank_function, time_limit=10)
    for position, total in enumerate((5, 6, 5)):
        x, _, _ = make_problem("head", batch=1, tokens=total, states=False, seed=total)
        expected, _ = recurrence(*(x[name].double() for name in "qkv"), x["decay"].double())
        assert_close("o", torch.cat([rank[0][position] for rank in ranks], dim=1), expected, torch.float32)
    assert [rank[1] for rank in ranks] == [2, 2]


def test_broadcast_final_state():
    def rank_function(rank, group):
        x, _, _ = make_problem("scalar", tokens=24)
        mine = [lt.shard(x[name], rank, 3) for name in ("q", "k", "v", "decay")]
        return lt.linear_attention(*mine, initial_state=x["initial_state"], group=group, output_final_state=True,
                                   broadcast_final_state=True)[1]

    finals = run_ranks(3, rank_function)
    assert torch.equal(finals[0], finals[2]) and torch.equal(finals[1], finals[2]) and finals[2].abs().sum() > 0


@pytest.mark.parametrize("nranks", (1, 3))
@pytest.mark.parametrize("decay", ("channel", "delta_none", "delta_scalar", "delta_channel"))
def test_step_follows_prefill(decay, nranks):
    x, _, _ = make_problem(decay, tokens=21, heads=(2, 2, 4))
    state = x.pop("initial_state")
    o, final = recurrence(**{name: None if value is None else value.double() for name, value in x.items()},
                          initial_state=state.double())
    prefix, rest = 16, slice(16, 21)

    def prefill(rank, group):
        mine = {name: None if value is None else lt.shard(value[:, :prefix], rank, nranks) for name, value in x.items()}
        return lt.linear_attention(**mine, initial_state=state, group=group, output_final_state=True,
                                   broadcast_final_state=True)[1]

    states = run_ranks(nranks, prefill)
    state = states[0]
    assert all(torch.equal(state, each) for each in states)
    one = lambda t: {name: None if value is None else value[:, t:t + 1] for name, value in x.items()}  # noqa: E731
    outputs = [lt.linear_attention_step(**one(t), state=state) for t in range(rest.start, rest.stop)]
    assert relative_error(torch.cat(outputs, dim=1), o[:, rest]) <= 2 * BOUNDS[torch.float32]
    assert relative_error(state, final) <= 2 * BOUNDS[torch.float32]


def layouts(x):
    """q, k, v as parts of one packed tensor, and as [B, H, T, D]."""
    packed = torch.cat([x[name].flatten(2) for name in "qkv"], dim=-1)
    widths = [x[name].shape[2] * x[name].shape[3] for name in "qkv"]
    views = [part.unflatten(-1, x[name].shape[2:]) for part, name in zip(packed.split(widths, -1), "qkv")]
    heads_first = [x[name].transpose(1, 2).contiguous().transpose(1, 2) for name in "qkv"]
    return {"packed": views, "heads first": heads_first}


def copies_of(function):
    """The torch operators that move data while `function` runs."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        function()
    names = {event.key for event in profiled.key_averages()}
    return names & {"aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy", "aten::cat"}


@pytest.mark.parametrize("layout", ("packed", "heads first"))
def test_strided_inputs_are_not_copied(layout, monkeypatch):
    x, d_o, _ = make_problem("scalar", heads=(2, 2, 2), tokens=33, states=False)
    q, k, v = (tensor.detach().requires_grad_() for tensor in layouts(x)[layout])
    assert not q.is_contiguous()
    seen = {}
    forward = lt.plans.Plan.forward

    def watched(plan, workspace, reuse, q, k, v, decay, beta, initial_state, *outputs):
        bound = plan._plan._pass_forward.bind(2, q, k, v, decay, beta, initial_state, *outputs, workspace)
        seen.update(bound.addresses())  # what the library is handed
        forward(plan, workspace, reuse, q, k, v, decay, beta, initial_state, *outputs)

    monkeypatch.setattr(lt.plans.Plan, "forward", watched)
    results = []

    def run():
        o = lt.linear_attention(q, k, v, x["decay"])
        results.append((o.detach(), *torch.autograd.grad(o, (q, k, v), d_o)))

    run()
    assert copies_of(run) == set()
    given = {"q": q, "k": k, "v": v, "decay": x["decay"]}
    assert {name: seen[name] for name in given} == {name: tensor.data_ptr() for name, tensor in given.items()}
    contiguous = [tensor.detach().contiguous().requires_grad_() for tensor in (q, k, v)]
    o = lt.linear_attention(*contiguous, x["decay"])
    for actual, expected in zip(results[0], (o, *torch.autograd.grad(o, contiguous, d_o))):
        assert relative_error(actual, expected) <= BOUNDS[torch.float32]


def test_copies_are_seen():
    """The instrument of the test above sees a copy where there is one."""
    x = torch.zeros(4, 4)
    assert copies_of(lambda: x.t().contiguous())


def test_outputs_alone_and_states_alone():
    x, d_o, d_final = make_problem("head")
    leaves = {name: value.detach().requires_grad_() for name, value in x.items()}
    zero = torch.zeros_like
    for gradient_o, gradient_final in ((d_o, None), (None, d_final)):
        o, final = lt.linear_attention(leaves["q"], leaves["k"], leaves["v"], leaves["decay"],
                                       output_final_state=True, initial_state=leaves["initial_state"])
        output, given = (o, gradient_o) if gradient_final is None else (final, gradient_final)
        actual = torch.autograd.grad(output, leaves["k"], given)[0]
        _, _, expected = reference_gradients(x, d_o if gradient_o is not None else zero(d_o),
                                             d_final if gradient_final is not None else zero(d_final))
        assert_close("dk", actual, expected["k"], torch.float32)


def test_expanded_gradient():
    """sum() hands back a gradient without memory of its own."""
    x, _, _ = make_problem("none", states=False)
    q = x["q"].detach().requires_grad_()
    lt.linear_attention(q, x["k"], x["v"]).sum().backward()
    wide = x["q"].double().requires_grad_()
    recurrence(wide, x["k"].double(), x["v"].double())[0].sum().backward()
    assert_close("dq", q.grad, wide.grad, torch.float32)


@pytest.mark.parametrize("decay", ("scalar", "delta_scalar"))
def test_autocast(decay):
    x, _, _ = make_problem(decay, states=False)
    with torch.autocast("cpu", torch.bfloat16):
        o = lt.linear_attention(**x)
    halves = [x[name].bfloat16() for name in "qkv"]
    assert o.dtype == torch.bfloat16 and torch.equal(o, lt.linear_attention(*halves, x["decay"], beta=x.get("beta")))


@pytest.mark.parametrize("nranks", (2, 3))
def test_a_segment_makes_the_cut_unseen(nranks):
    """Forward and backward of any number of ranks are those of one, bit for bit; with checksummed messages too."""
    x, d_o, _ = make_problem("scalar", batch=1, tokens=96, states=False)

    def rank_function(rank, group):
        begin, end = lt.shard_bounds(6, rank, group.size)
        mine = {name: shard_of(name, value, 16 * begin, 16 * end) for name, value in x.items()}
        o = lt.linear_attention(mine["q"], mine["k"], mine["v"], mine["decay"], group=group)
        o.backward(d_o[:, 16 * begin:16 * end])
        return (o.detach(), *(mine[name].grad for name in ("q", "k", "v", "decay")))

    options = {"chunk": 16, "segment": 16, "verify_messages": True}
    whole = run_ranks(1, rank_function, **options)[0]
    ranks = run_ranks(nranks, rank_function, **options)
    for one, parts in zip(whole, zip(*ranks)):
        assert torch.equal(one, torch.cat(parts, 1))


def test_a_scale_of_zero():
    """It is not the default: o is zero, and so is every gradient."""
    x, d_o, _ = make_problem("scalar", batch=1, tokens=20)
    q = x["q"].requires_grad_()
    for scale, is_zero in ((None, False), (0.0, True), (None, False)):
        o = lt.linear_attention(q, x["k"], x["v"], x["decay"], scale=scale)
        (d_q,) = torch.autograd.grad(o, q, d_o)
        assert o.any() != is_zero and d_q.any() != is_zero


def test_values_are_checked():
    x, _, _ = make_problem("scalar", batch=1, tokens=20)
    with lt.SequenceGroup(check_values=True) as group:
        expected = lt.linear_attention(x["q"], x["k"], x["v"], x["decay"], group=group)
        wrong = x["k"].clone()
        wrong[0, 7, 1, 3] = float("nan")
        with pytest.raises(liblasp.WrongValues, match="^k: NaN at sequence 0, token 7, head 1"):
            lt.linear_attention(x["q"], wrong, x["v"], x["decay"], group=group)
        assert torch.equal(lt.linear_attention(x["q"], x["k"], x["v"], x["decay"], group=group), expected)
