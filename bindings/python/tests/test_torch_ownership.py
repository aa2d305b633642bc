"""Which tokens a rank holds: liblasp.torch over ranks with several runs, against one rank; and what is refused."""
import pytest

torch = pytest.importorskip("torch")
import liblasp  # noqa: E402
import liblasp.torch as lt  # noqa: E402
from liblasp.torch.ownership import runs_of, take_ownership  # noqa: E402
from support import refused  # noqa: E402
from test_torch_support import (BOUNDS, DELTA, DELTA_GATES, make_problem, reference_gradients,  # noqa: E402
                                relative_error, run_ranks)

RANKS, TOKENS = 3, 36
RUNS = [(5, 1), (0, 0), (9, 0), (4, 1), (3, 1), (15, 2), (0, 1)]  # rank 1 has two runs, 0 and 2 have one
OWNERSHIPS = {"zigzag": "zigzag", "runs": RUNS, "one has all": [(TOKENS, 2)]}


def places(ownership, rank, total=TOKENS):
    return [at for run in runs_of(take_ownership(ownership), total, rank, RANKS) for at in range(*run)]


def each_zigzag(offsets, rank, total):
    own = []
    for begin, end in zip(offsets, offsets[1:]):
        part = (end - begin) // (2 * RANKS)
        for at in (rank, 2 * RANKS - 1 - rank):
            own += range(begin + at * part, begin + (at + 1) * part)
    padding = (total - offsets[-1]) // RANKS
    return own + list(range(offsets[-1] + rank * padding, offsets[-1] + (rank + 1) * padding))


def check_attention(kind, own, calls, **options):
    """Outputs and gradients of ranks that hold the tokens own(rank), each by `call(tensors, group)`."""
    offsets = options.get("cu_seqlens")
    x, d_o, d_final = make_problem(kind, batch=1 if offsets else 2, tokens=TOKENS,
                                   sequences=None if offsets is None else len(offsets) - 1)
    used = TOKENS if offsets is None else offsets[-1]
    inputs = {name: value if value is None or value.dim() == 1 or name == "initial_state" else value[:, :used]
              for name, value in x.items()}
    o, final, gradients = reference_gradients(inputs, d_o[:, :used], d_final, cu_seqlens=offsets)

    def body(rank, group):
        tokens = torch.tensor(own(rank), dtype=torch.int64)
        mine = {name: None if value is None else
                (value if value.dim() == 1 or name == "initial_state" else value[:, tokens]).detach().clone().requires_grad_()
                for name, value in x.items()}
        got, state = calls(mine, group)
        torch.autograd.backward([got, state], [d_o[:, tokens], d_final])
        return tokens, got.detach(), state.detach(), {name: value.grad for name, value in mine.items()
                                                      if value is not None}

    reports = run_ranks(RANKS, body)
    bound = BOUNDS[torch.float32] * (DELTA if kind.startswith("delta_") else 1)
    gates = BOUNDS[torch.float32] * (DELTA_GATES if kind.startswith("delta_") else 16)

    def gathered(pick, like):
        whole = torch.zeros_like(like)
        for report in reports:
            there = report[0] < used
            whole[:, report[0][there]] = pick(report)[:, there].to(whole.dtype)
        return whole

    assert relative_error(gathered(lambda report: report[1], o.detach()), o) <= bound
    assert relative_error(sum(report[2] for report in reports), final) <= bound
    for name, expected in gradients.items():
        if expected is None:
            continue
        if name == "initial_state" or expected.dim() == 1:
            found = sum(report[3][name] for report in reports)
        else:
            found = gathered(lambda report: report[3][name], expected)
        assert relative_error(found, expected) <= (gates if name in ("decay", "beta") else bound), name


@pytest.mark.parametrize("ownership", OWNERSHIPS.values(), ids=OWNERSHIPS)
@pytest.mark.parametrize("kind", ("none", "head", "channel"))
def test_attention_of_a_call(kind, ownership):
    check_attention(kind, lambda rank: places(ownership, rank), lambda mine, group: lt.linear_attention(
        mine["q"], mine["k"], mine["v"], mine["decay"], initial_state=mine["initial_state"], group=group,
        output_final_state=True, ownership=ownership))


def test_attention_of_a_group():
    def call(mine, group):
        return lt.linear_attention(mine["q"], mine["k"], mine["v"], mine["decay"], initial_state=mine["initial_state"],
                                   group=group.owned("zigzag"), output_final_state=True)

    check_attention("scalar", lambda rank: places("zigzag", rank), call)


@pytest.mark.parametrize("ownership", ("zigzag", RUNS), ids=("zigzag", "runs"))
def test_the_delta_rule(ownership):
    check_attention("delta_scalar", lambda rank: places(ownership, rank), lambda mine, group: lt.gated_delta_rule(
        mine["q"], mine["k"], mine["v"], mine["decay"], mine["beta"], initial_state=mine["initial_state"], group=group,
        output_final_state=True, ownership=ownership))


@pytest.mark.parametrize("kind", ("scalar", "delta_none"))
def test_each_packed_sequence_by_itself(kind):
    offsets = [0, 12, 12, 30]  # and padding

    def call(mine, group):
        return lt.linear_attention(mine["q"], mine["k"], mine["v"], mine["decay"], beta=mine.get("beta"),
                                   initial_state=mine["initial_state"], cu_seqlens=offsets, group=group,
                                   output_final_state=True, ownership="zigzag_each")

    check_attention(kind, lambda rank: each_zigzag(offsets, rank, TOKENS), call, cu_seqlens=offsets)


@pytest.mark.parametrize("offsets", (None, [0, 7, 20, 33]), ids=("whole", "packed"))
@pytest.mark.parametrize("ownership", OWNERSHIPS.values(), ids=OWNERSHIPS)
def test_short_convolutions(ownership, offsets):
    torch.manual_seed(3)
    x, weight = torch.randn(1 if offsets else 2, TOKENS, 5), torch.randn(5, 4)
    whole = x.clone().requires_grad_()
    expected = lt.causal_conv1d(whole, weight, activation="silu", cu_seqlens=offsets)
    d_y = torch.randn(expected.shape)
    expected.backward(d_y)

    def body(rank, group):
        tokens = torch.tensor(places(ownership, rank), dtype=torch.int64)
        mine = x[:, tokens].clone().requires_grad_()
        y = lt.causal_conv1d(mine, weight, activation="silu", cu_seqlens=offsets, group=group, ownership=ownership)
        y.backward(d_y[:, tokens])
        layer = lt.ShortConvolution(5, 4, activation="silu", group=group.owned(ownership))
        layer.weight.data.copy_(weight[:, None])
        assert torch.equal(layer(mine.detach(), cu_seqlens=offsets), y.detach())
        return tokens, y.detach(), mine.grad

    for tokens, y, gradient in run_ranks(RANKS, body):
        assert relative_error(y, expected[:, tokens]) <= BOUNDS[torch.float32]
        assert relative_error(gradient, whole.grad[:, tokens]) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("width", (1, 4))
@pytest.mark.parametrize("offsets", ([0, 18, 18, 36], [0, 24], [0, 0]), ids=("packed", "padded", "nothing"))
def test_short_convolutions_of_each(offsets, width):
    torch.manual_seed(4)
    x, weight, bias = torch.randn(1, TOKENS, 5), torch.randn(5, width), torch.randn(5)
    x[:, offsets[-1]:] = float("nan")
    whole, taps = x.clone().requires_grad_(), weight.clone().requires_grad_()
    expected = lt.causal_conv1d(whole, taps, bias, activation="silu", cu_seqlens=offsets)
    d_y = torch.randn(expected.shape)
    expected.backward(d_y)

    def body(rank, group):
        tokens = torch.tensor(each_zigzag(offsets, rank, TOKENS), dtype=torch.int64)
        mine, own = x[:, tokens].clone().requires_grad_(), weight.clone().requires_grad_()
        y = lt.causal_conv1d(mine, own, bias, activation="silu", cu_seqlens=torch.tensor(offsets), group=group,
                             ownership="zigzag_each")
        y.backward(d_y[:, tokens])
        return tokens, y.detach(), mine.grad, own.grad

    reports = run_ranks(RANKS, body)
    for tokens, y, gradient, _ in reports:
        assert relative_error(y, expected[:, tokens]) <= BOUNDS[torch.float32]
        assert relative_error(gradient, whole.grad[:, tokens]) <= BOUNDS[torch.float32]
    of_ranks = sum(0 if report[3] is None else report[3] for report in reports)
    assert relative_error(of_ranks + torch.zeros_like(taps), taps.grad) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("offsets, words, kind", (
    ([0, 4, 24], "parts of 1 tokens, which are fewer than the 3 rows", liblasp.Unsupported),
    ([0, 6, 24], "cut into 4 parts of one length", liblasp.InvalidArgument),
    (None, "cu_seqlens: is None; ownership = 'zigzag_each' is for packed", liblasp.InvalidArgument),
))
def test_convolutions_of_each_that_are_refused(offsets, words, kind):
    x = torch.randn(1, 12, 5)

    def body(rank, group):
        def call(given):
            return lt.causal_conv1d(x, torch.randn(5, 4), cu_seqlens=given, group=group, ownership="zigzag_each")

        if rank == 0:
            refused(words, lambda: call(offsets), kind)
        else:
            refused("rank 0", lambda: call([0, 12, 24]), liblasp.Error)

    run_ranks(2, body)


def test_shards():
    x = torch.arange(TOKENS)[None, :, None]
    for ownership in OWNERSHIPS.values():
        for rank in range(RANKS):
            assert lt.shard(x, rank, RANKS, ownership=ownership).flatten().tolist() == places(ownership, rank)
    assert places("zigzag", 2) == list(range(12, 24)) and places(RUNS, 1) == [0, 1, 2, 3, 4, 14, 15, 16, 17, 18, 19, 20]


def test_what_is_refused():
    x = torch.randn(1, TOKENS, 2, 8)
    group = lt.SequenceGroup(cpu_threads=1)

    def attend(ownership, tensor=x, **options):
        return lt.linear_attention(tensor, tensor, tensor, group=group, ownership=ownership, **options)

    refused("ownership = 'zagzig': must be one of", lambda: attend("zagzig"))
    refused("ownership = 5: must be a name", lambda: attend(5))
    refused("empty list", lambda: attend([]))
    refused(r"ownership\[1\]: must be \(tokens, rank\)", lambda: attend([(1, 0), (1, 0, 0)]))
    refused(r"ownership\[0\]", lambda: attend([(-1, 0)]))
    refused(r"tokens = 36: runs has 35 of rank 0", lambda: attend([(35, 0)]))
    refused(r"runs\[0\].rank = 1", lambda: attend([(36, 1)]))
    refused("tokens = 35: must be even", lambda: attend("zigzag", x[:, 1:]))
    refused("max_sequences = 0", lambda: attend("zigzag_each"))
    refused("2 parts of one length", lambda: attend("zigzag_each", cu_seqlens=[0, 5, 36]))
    refused("not with mask", lambda: attend("zigzag", causal=False), liblasp.Unsupported)
    refused("cannot be cut into 8 equal parts", lambda: lt.shard(x, 0, 4, ownership="zigzag"))
    refused("its runs have 35 tokens, there are 36", lambda: lt.shard(x, 0, 4, ownership=[(35, 0)]))
    refused("rank 4 is none of 4", lambda: lt.shard(x, 0, 4, ownership=[(36, 4)]))
    rows = x.flatten(2)
    zigzag = group.owned("zigzag")
    assert zigzag is group.owned("zigzag") and zigzag.owned("contiguous") is group
    for call in (lambda: lt.shift(rows, 1, zigzag), lambda: lt.time_segments(
            torch.nn.Linear(16, 16), rows, rows, torch.nn.functional.mse_loss, segment=8, group=zigzag)):
        refused("not with ownership = 'zigzag'", call, liblasp.Unsupported)
    group.close()
    refused("closed", lambda: attend("zigzag"), liblasp.InvalidHandle)


def test_lists_that_differ_between_ranks():
    x = torch.randn(1, 12, 2, 8)

    def body(rank, group):
        wrong = [(12, 0), (12, 1)] if rank == 0 else [(6, 0), (12, 1), (6, 0)]
        refused("runs: not the same on rank 0 and rank 1",
                lambda: lt.linear_attention(x, x, x, group=group, ownership=wrong), liblasp.Disagreement)
        refused("rank 0 has LASP_OWN_RUNS, rank 1 has LASP_OWN_ZIGZAG", lambda: lt.linear_attention(
            x, x, x, group=group, ownership=[(12, 0), (12, 1)] if rank == 0 else "zigzag"), liblasp.Disagreement)

    run_ranks(2, body)
